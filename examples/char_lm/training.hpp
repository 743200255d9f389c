// SPDX-License-Identifier: MIT
// Training: windows of the text are drawn, shared out over threads, and each step's gradient moves
// the parameters. Results do not depend on the number of threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mhla/mhla.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <numeric>
#include <vector>

#include "../layers/adamw.hpp"
#include "model.hpp"
#include "options.hpp"

namespace char_lm {

using layers::AdamW;
using layers::clip;
using layers::scheduled_rate;

/// Characters, in sequences of equal length, and what followed them.
struct Batch {
  std::vector<int> tokens;
  Index sequences = 0;
  std::vector<Prediction> predictions;
};

/// The windows of `length` characters that begin at starts[first, end). A model without mixing
/// predicts the same after the same character wherever it stands: for it, each symbol is evaluated
/// once, and counts as often as it occurs.
inline Batch batch_of(const ModelShape& shape, const std::vector<int>& text,
                      const std::vector<Index>& starts, std::size_t first, std::size_t end,
                      Index length) {
  Batch batch;
  const bool each_symbol_once = shape.mixing == Mixing::none;
  batch.sequences = each_symbol_once ? 1 : static_cast<Index>(end - first);
  if (each_symbol_once) {
    batch.tokens.resize(static_cast<std::size_t>(shape.vocabulary));
    std::iota(batch.tokens.begin(), batch.tokens.end(), 0);
  }
  for (std::size_t i = first; i < end; ++i)
    for (Index t = starts[i]; t < starts[i] + length; ++t) {
      const int current = text[static_cast<std::size_t>(t)];
      if (!each_symbol_once) batch.tokens.push_back(current);
      const Index row = each_symbol_once ? current : static_cast<Index>(batch.tokens.size()) - 1;
      batch.predictions.push_back({row, text[static_cast<std::size_t>(t + 1)]});
    }
  return batch;
}

template <class T, class FeatureMap = mhla::EluPlusOne>
class Trainer {
 public:
  Trainer(const ModelShape& shape, const Options& options, const std::vector<int>& text,
          const Eigen::ThreadPoolDevice& pool)
      : model_(shape),
        options_(options),
        text_(text),
        threads_(pool),
        values_(model_.initial_values(options.seed)),
        adam_(values_.size()) {}

  const Model<T, FeatureMap>& model() const { return model_; }
  const Values<T>& values() const { return values_; }
  Index characters_per_step() const { return options_.batch * model_.shape().context; }

  /// One update. Returns the loss before it, in nats per character.
  double step() {
    const Index length = model_.shape().context;
    std::vector<Index> starts(static_cast<std::size_t>(options_.batch));
    for (Index& start : starts)
      start = mhla::testing::random_index(mhla::testing::random_bits(options_.seed, 0), drawn_++,
                                          static_cast<Index>(text_.size()) - length);
    const double loss = over(text_, starts, length, true);
    Values<T>& gradient = shares_[0].gradient;
    for (std::size_t i = 1; i < shares_in_use_; ++i) gradient += shares_[i].gradient;
    clip(gradient, 1.0);
    adam_.update(values_, gradient, scheduled_rate(options_.rate, step_++, options_.steps));
    model_.project(values_);
    return loss / static_cast<double>(characters_per_step());
  }

  /// The loss on a text, in nats per character: every character but the first is predicted once,
  /// from the beginning of its window.
  double loss_on(const std::vector<int>& text) {
    const Index length = model_.shape().context;
    const Index predicted = static_cast<Index>(text.size()) - 1;
    std::vector<Index> starts;
    for (Index t = 0; t + length <= predicted; t += length) starts.push_back(t);
    double loss = 0;
    for (std::size_t i = 0; i < starts.size(); i += windows_at_once) {
      const std::size_t end = std::min(starts.size(), i + windows_at_once);
      loss += over(text,
                   {starts.begin() + static_cast<std::ptrdiff_t>(i),
                    starts.begin() + static_cast<std::ptrdiff_t>(end)},
                   length, false);
    }
    if (const Index rest = predicted % length; rest > 0)
      loss += over(text, {predicted - rest}, rest, false);
    return loss / static_cast<double>(predicted);
  }

 private:
  static constexpr std::size_t windows_at_once = 32;
  static constexpr std::size_t most_shares = 8;  // whatever the number of threads

  struct Share {
    Batch batch;
    Activations<T> activations;
    Matrix<T> d_logits;
    Values<T> gradient;
    double loss = 0;
  };

  /// The summed loss of windows and, wanted, its mean's gradient in the shares.
  double over(const std::vector<int>& text, const std::vector<Index>& starts, Index length,
              bool with_gradient) {
    const ModelShape& shape = model_.shape();
    shares_in_use_ = shape.mixing == Mixing::none ? 1 : std::min(starts.size(), most_shares);
    shares_.resize(std::max(shares_.size(), shares_in_use_));
    const T weight = T(1) / static_cast<T>(static_cast<Index>(starts.size()) * length);
    threads_.parallel_for(static_cast<Index>(shares_in_use_), [&](Index task, Index /*slot*/) {
      const auto number = static_cast<std::size_t>(task);
      Share& share = shares_[number];
      share.batch = batch_of(shape, text, starts, starts.size() * number / shares_in_use_,
                             starts.size() * (number + 1) / shares_in_use_, length);
      const auto& [tokens, sequences, predictions] = share.batch;
      model_.forward(values_, tokens, sequences, share.activations);
      share.loss = cross_entropy(share.activations.logits, predictions, weight,
                                 with_gradient ? &share.d_logits : nullptr);
      if (with_gradient)
        model_.backward(values_, tokens, sequences, share.activations, share.d_logits,
                        share.gradient);
    });
    double loss = 0;
    for (std::size_t i = 0; i < shares_in_use_; ++i) loss += shares_[i].loss;
    return loss;
  }

  Model<T, FeatureMap> model_;
  Options options_;
  const std::vector<int>& text_;
  mhla::ThreadPoolExecutor threads_;
  Values<T> values_;
  AdamW<T> adam_;
  std::vector<Share> shares_;
  std::size_t shares_in_use_ = 0;
  std::uint64_t drawn_ = 0;
  Index step_ = 0;
};

}  // namespace char_lm
