// SPDX-License-Identifier: MIT
// Predicting symbols of sequences, as a TrainingTask: embeddings, learned positions, a transformer,
// and a linear head where something is to be predicted.
#pragma once

#include <cstdint>
#include <vector>

#include "../layers/embedding.hpp"
#include "../layers/linear.hpp"
#include "token_sequences.hpp"
#include "trainer.hpp"
#include "transformer.hpp"

namespace training {

template <class T, class Attention>
class TokenPrediction {
 public:
  using Scalar = T;
  struct Scratch {
    TokenBatch batch;
    TransformerActivations<T> transformer;
    Matrix<T> logits;
  };

  TokenPrediction(const TransformerShape<Attention>& shape, const TokenSequences& sequences)
      : sequences_(sequences),
        embedding_(list_, "embedding", sequences.symbols(), shape.width),
        positions_(list_, "positions", shape.tokens, shape.width),
        transformer_(list_, shape),
        head_(list_, "head", shape.width, sequences.classes(), layers::Bias::one, 0.1) {}

  const ParameterList& parameters() const { return list_; }
  Values<T> initial_values(std::uint64_t seed) const {
    Values<T> values = list_.initial_values<T>(seed);
    transformer_.initialize(values);
    return values;
  }
  void project(Values<T>& values) const { transformer_.project(values); }
  Index predictions_per_example() const { return sequences_.predictions(); }
  Index validation_examples() const { return sequences_.validation(); }

  Score score(const Values<T>& values, Part part, Index first, Index last, Scratch& s, T weight,
              Values<T>* gradient) const {
    s.batch = {};
    for (Index i = first; i < last; ++i) sequences_.append(part, i, s.batch);
    transformer_.forward(values, last - first, embedded(values, s.batch), s.transformer);
    head_.forward(values, s.transformer.normed, s.logits);
    Matrix<T> d_logits;
    const Score score{.loss = cross_entropy(s.logits, s.batch.predictions, weight,
                                            gradient != nullptr ? &d_logits : nullptr),
                      .predictions = static_cast<Index>(s.batch.predictions.size()),
                      .right = right_predictions(s.logits, s.batch.predictions)};
    if (gradient != nullptr) backward(values, last - first, s, d_logits, *gradient);
    return score;
  }

 private:
  Matrix<T> embedded(const Values<T>& values, const TokenBatch& batch) const {
    Matrix<T> x, part;
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

  void backward(const Values<T>& values, Index sequences, const Scratch& s,
                const Matrix<T>& d_logits, Values<T>& gradient) const {
    gradient.resize(list_.size());
    Matrix<T> d_normed, dx;
    head_.backward(values, s.transformer.normed, d_logits, d_normed, gradient);
    transformer_.backward(values, sequences, s.transformer, d_normed, dx, gradient);
    positions_.backward(dx, gradient);
    embedding_.table().in(gradient).setZero();
    for (const std::vector<int>& symbols : s.batch.symbols)
      embedding_.add_backward(symbols, dx, gradient);
  }

  const TokenSequences& sequences_;
  ParameterList list_;
  layers::Embedding embedding_;
  layers::PositionEmbedding positions_;
  Transformer<T, Attention> transformer_;
  layers::Linear head_;
};

}  // namespace training
