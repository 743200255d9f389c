// SPDX-License-Identifier: MIT
#include "trainer.hpp"

#include <algorithm>

namespace training {

Trainer::Trainer(const Task& task, const Schedule& schedule, const mhla::ForkJoin& threads)
    : task_(task),
      schedule_(schedule),
      threads_(threads),
      values_(task.initial_values(schedule.seed)),
      adam_(values_.size()) {}

double Trainer::step() {
  const Index first = step_ * schedule_.batch;
  const double predictions = static_cast<double>(schedule_.batch * task_.predictions_per_example());
  const Score score = over(Part::training, first, first + schedule_.batch,
                           static_cast<Scalar>(1 / predictions), true);
  Values& gradient = shares_[0].gradient;
  for (std::size_t i = 1; i < shares_in_use_; ++i) gradient += shares_[i].gradient;
  layers::clip(gradient, 1.0);
  adam_.update(values_, gradient, layers::scheduled_rate(schedule_.rate, step_++, schedule_.steps));
  task_.project(values_);
  return score.mean_loss();
}

Score Trainer::validate() {
  Score score;
  const Index examples = task_.validation_examples();
  for (Index i = 0; i < examples; i += examples_at_once)
    score += over(Part::validation, i, std::min(examples, i + examples_at_once), 0, false);
  return score;
}

Score Trainer::over(Part part, Index first, Index last, Scalar weight, bool with_gradient) {
  const Index shares = std::min(last - first, most_shares);
  shares_in_use_ = static_cast<std::size_t>(shares);
  while (shares_.size() < shares_in_use_) shares_.push_back({task_.scratch(), {}, {}});
  threads_.parallel_for(shares, [&](Index number, Index /*slot*/) {
    Share& share = shares_[static_cast<std::size_t>(number)];
    share.score = task_.score(values_, part, first + (last - first) * number / shares,
                              first + (last - first) * (number + 1) / shares, *share.scratch,
                              weight, with_gradient ? &share.gradient : nullptr);
  });
  Score score;
  for (std::size_t i = 0; i < shares_in_use_; ++i) score += shares_[i].score;
  return score;
}

}  // namespace training
