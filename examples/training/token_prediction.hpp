// SPDX-License-Identifier: MIT
// Predicting symbols of sequences: embeddings, learned positions, a transformer, and a linear head
// where something is to be predicted.
#pragma once

#include <cstdint>
#include <memory>

#include "../layers/embedding.hpp"
#include "../layers/linear.hpp"
#include "token_sequences.hpp"
#include "trainer.hpp"
#include "transformer.hpp"

namespace training {

class TokenPrediction : public Task {
 public:
  TokenPrediction(const TransformerShape& shape, const TokenSequences& sequences);

  const ParameterList& parameters() const override { return list_; }
  Values initial_values(std::uint64_t seed) const override;
  void project(Values& values) const override { transformer_.project(values); }
  Index predictions_per_example() const override { return sequences_.predictions(); }
  Index validation_examples() const override { return sequences_.validation(); }
  std::unique_ptr<Task::Scratch> scratch() const override { return std::make_unique<Scratch>(); }
  Score score(const Values& values, Part part, Index first, Index last, Task::Scratch& scratch,
              Scalar weight, Values* gradient) const override;

 private:
  struct Scratch : Task::Scratch {
    TokenBatch batch;
    TransformerActivations transformer;
    Matrix logits;
  };

  Matrix embedded(const Values& values, const TokenBatch& batch) const;
  void backward(const Values& values, Index sequences, const Scratch& s, const Matrix& d_logits,
                Values& gradient) const;

  const TokenSequences& sequences_;
  ParameterList list_;
  layers::Embedding embedding_;
  layers::PositionEmbedding positions_;
  Transformer transformer_;
  layers::Linear head_;
};

}  // namespace training
