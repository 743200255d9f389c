// SPDX-License-Identifier: MIT
#include "windows.hpp"

#include <algorithm>
#include <cstddef>
#include <mhla/testing/random_tensor.hpp>
#include <numeric>

namespace char_lm {

Batch batch_of(const ModelShape& shape, const std::vector<int>& text,
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

Score Windows::score(const Values& values, Part part, Index first, Index last,
                     Task::Scratch& memory, Scalar weight, Values* gradient) const {
  auto& scratch = static_cast<Scratch&>(memory);
  if (part == Part::training)
    return score(values, training_, drawn(first, last), length(), scratch, weight, gradient);
  const Index predicted = static_cast<Index>(validation_.size()) - 1;
  std::vector<Index> whole;
  for (Index i = first; i < last && (i + 1) * length() <= predicted; ++i)
    whole.push_back(i * length());
  Score sum;
  if (!whole.empty()) sum += score(values, validation_, whole, length(), scratch, weight, gradient);
  if (last * length() > predicted)
    sum += score(values, validation_, {(last - 1) * length()}, predicted - (last - 1) * length(),
                 scratch, weight, gradient);
  return sum;
}

std::vector<Index> Windows::drawn(Index first, Index last) const {
  std::vector<Index> starts;
  for (Index i = first; i < last; ++i)
    starts.push_back(mhla::testing::random_index(mhla::testing::random_bits(seed_, 0),
                                                 static_cast<std::uint64_t>(i),
                                                 static_cast<Index>(training_.size()) - length()));
  return starts;
}

Score Windows::score(const Values& values, const std::vector<int>& text,
                     const std::vector<Index>& starts, Index length, Scratch& scratch,
                     Scalar weight, Values* gradient) const {
  const auto& [tokens, sequences, predictions] = batch_of(model_.shape(), text, starts, length);
  model_.forward(values, tokens, sequences, scratch.activations);
  const Matrix& logits = scratch.activations.logits;
  Score score{.loss = cross_entropy(logits, predictions, weight,
                                    gradient != nullptr ? &scratch.d_logits : nullptr),
              .predictions = static_cast<Index>(predictions.size()),
              .right = layers::right_predictions(logits, predictions)};
  if (gradient != nullptr)
    model_.backward(values, tokens, sequences, scratch.activations, scratch.d_logits, *gradient);
  return score;
}

}  // namespace char_lm
