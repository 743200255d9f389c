// SPDX-License-Identifier: MIT
// Training: a step's examples are shared out over threads, and their gradient moves the parameters.
// Results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mhla/mhla.hpp>
#include <vector>

#include "../layers/adamw.hpp"
#include "../layers/parameters.hpp"
#include "draws.hpp"

namespace training {

using layers::Index;
using layers::Values;

/// How good predictions are.
struct Score {
  double loss = 0;  ///< summed over the predictions
  Index predictions = 0;
  Index right = 0;

  double mean_loss() const { return loss / static_cast<double>(predictions); }
  double accuracy() const { return static_cast<double>(right) / static_cast<double>(predictions); }
  Score& operator+=(const Score& other) {
    loss += other.loss;
    predictions += other.predictions;
    right += other.right;
    return *this;
  }
};

/// A model and what it learns: numbered examples of two parts. Those of training never end; there
/// are `validation_examples()` to judge by. `score` evaluates examples [first, last) and, where
/// `gradient` is not null, overwrites it with that of `weight` times the summed loss; examples of
/// training hold equally many predictions, `predictions_per_example()`.
template <class Task>
concept TrainingTask = requires(const Task& task, Values<typename Task::Scalar>& values,
                                typename Task::Scratch& scratch) {
  { task.parameters().size() } -> std::convertible_to<Index>;
  { task.initial_values(std::uint64_t{}) } -> std::same_as<Values<typename Task::Scalar>>;
  task.project(values);
  { task.predictions_per_example() } -> std::convertible_to<Index>;
  { task.validation_examples() } -> std::convertible_to<Index>;
  {
    task.score(values, Part::training, Index{}, Index{}, scratch, typename Task::Scalar{}, &values)
    } -> std::same_as<Score>;
};

struct Schedule {
  Index steps = 300;  ///< updates of the parameters
  Index batch = 8;    ///< examples in each
  double rate = 0.006;
  std::uint64_t seed = 1;
};

template <TrainingTask Task>
class Trainer {
 public:
  using T = typename Task::Scalar;

  Trainer(const Task& task, const Schedule& schedule, const Eigen::ThreadPoolDevice& pool)
      : task_(task),
        schedule_(schedule),
        threads_(pool),
        values_(task.initial_values(schedule.seed)),
        adam_(values_.size()) {}

  const Values<T>& values() const { return values_; }

  /// One update. Returns the mean loss before it.
  double step() {
    const Index first = step_ * schedule_.batch;
    const double predictions =
        static_cast<double>(schedule_.batch * task_.predictions_per_example());
    const Score score =
        over(Part::training, first, first + schedule_.batch, static_cast<T>(1 / predictions), true);
    Values<T>& gradient = shares_[0].gradient;
    for (std::size_t i = 1; i < shares_in_use_; ++i) gradient += shares_[i].gradient;
    layers::clip(gradient, 1.0);
    adam_.update(values_, gradient,
                 layers::scheduled_rate(schedule_.rate, step_++, schedule_.steps));
    task_.project(values_);
    return score.mean_loss();
  }

  Score validate() {
    Score score;
    const Index examples = task_.validation_examples();
    for (Index i = 0; i < examples; i += examples_at_once)
      score += over(Part::validation, i, std::min(examples, i + examples_at_once), T(0), false);
    return score;
  }

 private:
  static constexpr Index examples_at_once = 32;
  static constexpr Index most_shares = 8;  // whatever the number of threads

  struct Share {
    typename Task::Scratch scratch;
    Values<T> gradient;
    Score score;
  };

  /// The score of examples and, wanted, the gradient of weight times their loss, in the shares.
  Score over(Part part, Index first, Index last, T weight, bool with_gradient) {
    const Index shares = std::min(last - first, most_shares);
    shares_in_use_ = static_cast<std::size_t>(shares);
    shares_.resize(std::max(shares_.size(), shares_in_use_));
    threads_.parallel_for(shares, [&](Index number, Index /*slot*/) {
      Share& share = shares_[static_cast<std::size_t>(number)];
      share.score = task_.score(values_, part, first + (last - first) * number / shares,
                                first + (last - first) * (number + 1) / shares, share.scratch,
                                weight, with_gradient ? &share.gradient : nullptr);
    });
    Score score;
    for (std::size_t i = 0; i < shares_in_use_; ++i) score += shares_[i].score;
    return score;
  }

  const Task& task_;
  Schedule schedule_;
  mhla::ThreadPoolExecutor threads_;
  Values<T> values_;
  layers::AdamW<T> adam_;
  std::vector<Share> shares_;
  std::size_t shares_in_use_ = 0;
  Index step_ = 0;
};

}  // namespace training
