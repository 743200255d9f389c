// SPDX-License-Identifier: MIT
// What the model learns: to predict each next character of windows of a text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mhla/testing/random_tensor.hpp>
#include <numeric>
#include <vector>

#include "../layers/cross_entropy.hpp"
#include "../training/trainer.hpp"
#include "model.hpp"

namespace char_lm {

using layers::cross_entropy;
using layers::Prediction;
using training::Part;
using training::Score;

/// Characters, in sequences of equal length, and what followed them.
struct Batch {
  std::vector<int> tokens;
  Index sequences = 0;
  std::vector<Prediction> predictions;
};

/// The windows of `length` characters that begin at `starts`. A model without mixing predicts the
/// same after the same character wherever it stands: for it, each symbol is evaluated once, and
/// counts as often as it occurs.
inline Batch batch_of(const ModelShape& shape, const std::vector<int>& text,
                      const std::vector<Index>& starts, Index length) {
  Batch batch;
  const bool each_symbol_once = shape.mixing == Mixing::none && shape.softmax_layers == 0;
  batch.sequences = each_symbol_once ? 1 : static_cast<Index>(starts.size());
  if (each_symbol_once) {
    batch.tokens.resize(static_cast<std::size_t>(shape.vocabulary));
    std::iota(batch.tokens.begin(), batch.tokens.end(), 0);
  }
  for (const Index start : starts)
    for (Index t = start; t < start + length; ++t) {
      const int current = text[static_cast<std::size_t>(t)];
      if (!each_symbol_once) batch.tokens.push_back(current);
      const Index row = each_symbol_once ? current : static_cast<Index>(batch.tokens.size()) - 1;
      batch.predictions.push_back({row, text[static_cast<std::size_t>(t + 1)]});
    }
  return batch;
}

/// A TrainingTask: windows of the context's length. Those of training begin anywhere; those of
/// validation lie one after another, so that every character but the first is predicted once, from
/// the beginning of its window, the last of which may be shorter.
template <class T, class FeatureMap = mhla::EluPlusOne>
class Windows {
 public:
  using Scalar = T;
  struct Scratch {
    Activations<T> activations;
    Matrix<T> d_logits;
  };

  Windows(const ModelShape& shape, const std::vector<int>& training,
          const std::vector<int>& validation, std::uint64_t seed)
      : model_(shape), training_(training), validation_(validation), seed_(seed) {}

  const Model<T, FeatureMap>& model() const { return model_; }
  const ParameterList& parameters() const { return model_.parameters(); }
  Values<T> initial_values(std::uint64_t seed) const { return model_.initial_values(seed); }
  void project(Values<T>& values) const { model_.project(values); }
  Index predictions_per_example() const { return length(); }
  Index validation_examples() const {
    return mhla::ceil_div(static_cast<Index>(validation_.size()) - 1, length());
  }

  Score score(const Values<T>& values, Part part, Index first, Index last, Scratch& scratch,
              T weight, Values<T>* gradient) const {
    if (part == Part::training)
      return score(values, training_, drawn(first, last), length(), scratch, weight, gradient);
    const Index predicted = static_cast<Index>(validation_.size()) - 1;
    std::vector<Index> whole;
    for (Index i = first; i < last && (i + 1) * length() <= predicted; ++i)
      whole.push_back(i * length());
    Score sum;
    if (!whole.empty())
      sum += score(values, validation_, whole, length(), scratch, weight, gradient);
    if (last * length() > predicted)
      sum += score(values, validation_, {(last - 1) * length()}, predicted - (last - 1) * length(),
                   scratch, weight, gradient);
    return sum;
  }

 private:
  Index length() const { return model_.shape().context; }

  std::vector<Index> drawn(Index first, Index last) const {
    std::vector<Index> starts;
    for (Index i = first; i < last; ++i)
      starts.push_back(mhla::testing::random_index(
          mhla::testing::random_bits(seed_, 0), static_cast<std::uint64_t>(i),
          static_cast<Index>(training_.size()) - length()));
    return starts;
  }

  Score score(const Values<T>& values, const std::vector<int>& text,
              const std::vector<Index>& starts, Index length, Scratch& scratch, T weight,
              Values<T>* gradient) const {
    const auto& [tokens, sequences, predictions] = batch_of(model_.shape(), text, starts, length);
    model_.forward(values, tokens, sequences, scratch.activations);
    const Matrix<T>& logits = scratch.activations.logits;
    Score score{.loss = cross_entropy(logits, predictions, weight,
                                      gradient != nullptr ? &scratch.d_logits : nullptr),
                .predictions = static_cast<Index>(predictions.size()),
                .right = layers::right_predictions(logits, predictions)};
    if (gradient != nullptr)
      model_.backward(values, tokens, sequences, scratch.activations, scratch.d_logits, *gradient);
    return score;
  }

  Model<T, FeatureMap> model_;
  const std::vector<int>& training_;
  const std::vector<int>& validation_;
  std::uint64_t seed_;
};

}  // namespace char_lm
