// SPDX-License-Identifier: MIT
#include "token_prediction.hpp"

namespace training {

TokenPrediction::TokenPrediction(const TransformerShape& shape, const TokenSequences& sequences)
    : sequences_(sequences),
      embedding_(list_, "embedding", sequences.symbols(), shape.width),
      positions_(list_, "positions", shape.tokens, shape.width),
      transformer_(list_, shape),
      head_(list_, "head", shape.width, sequences.classes(), layers::Bias::one, 0.1) {}

Values TokenPrediction::initial_values(std::uint64_t seed) const {
  Values values = list_.initial_values<Scalar>(seed);
  transformer_.initialize(values);
  return values;
}

Score TokenPrediction::score(const Values& values, Part part, Index first, Index last,
                             Task::Scratch& scratch, Scalar weight, Values* gradient) const {
  auto& s = static_cast<Scratch&>(scratch);
  s.batch = {};
  for (Index i = first; i < last; ++i) sequences_.append(part, i, s.batch);
  transformer_.forward(values, last - first, embedded(values, s.batch), s.transformer);
  head_.forward(values, s.transformer.normed, s.logits);
  Matrix d_logits;
  const Score score{.loss = cross_entropy(s.logits, s.batch.predictions, weight,
                                          gradient != nullptr ? &d_logits : nullptr),
                    .predictions = static_cast<Index>(s.batch.predictions.size()),
                    .right = right_predictions(s.logits, s.batch.predictions)};
  if (gradient != nullptr) backward(values, last - first, s, d_logits, *gradient);
  return score;
}

Matrix TokenPrediction::embedded(const Values& values, const TokenBatch& batch) const {
  Matrix x, part;
  for (const std::vector<int>& symbols : batch.symbols) {
    embedding_.forward(values, symbols, part);
    if (x.size() == 0)
      x = part;
    else
      x += part;
  }
  positions_.add_forward(values, x);
  return x;
}

void TokenPrediction::backward(const Values& values, Index sequences, const Scratch& s,
                               const Matrix& d_logits, Values& gradient) const {
  gradient.resize(list_.size());
  Matrix d_normed, dx;
  head_.backward(values, s.transformer.normed, d_logits, d_normed, gradient);
  transformer_.backward(values, sequences, s.transformer, d_normed, dx, gradient);
  positions_.backward(dx, gradient);
  embedding_.table().in(gradient).setZero();
  for (const std::vector<int>& symbols : s.batch.symbols)
    embedding_.add_backward(symbols, dx, gradient);
}

}  // namespace training
