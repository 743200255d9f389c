// SPDX-License-Identifier: MIT
// The model: embedded characters through a transformer to the logits of the characters that follow,
// forward, backward, and a few tokens at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "../layers/embedding.hpp"
#include "../layers/linear.hpp"
#include "../training/transformer.hpp"

namespace char_lm {

using layers::Index;
using layers::Matrix;
using layers::ParameterList;
using layers::Values;
using training::Mixing;

/// The sizes of a model.
struct ModelShape {
  Mixing mixing = Mixing::mhla;
  Index vocabulary = 0;
  Index context = 0;  ///< tokens of a sequence, at most
  Index block = 0;    ///< tokens of an MHLA block
  Index layers = 0;
  Index width = 0;
  Index heads = 0;
  Index softmax_layers = 0;  ///< the last ones: a hybrid stack
};

/// What a forward pass leaves for the backward pass.
template <class T>
struct Activations {
  training::TransformerActivations<T> transformer;
  Matrix<T> logits;  ///< [tokens of all sequences, vocabulary]
};

template <class T, class FeatureMap = mhla::EluPlusOne>
class Model {
 public:
  /// Without a normalizer, because an RMSNorm follows (as in the released language model).
  using Attention = mhla::Attention<FeatureMap, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
                                    mhla::HalfSplitRotary>;
  using Transformer = training::Transformer<T, Attention>;
  using Decoder = typename Transformer::Decoder;

  explicit Model(const ModelShape& shape)
      : shape_(shape),
        embedding_(list_, "embedding", shape.vocabulary, shape.width),
        transformer_(list_, {.mixing = shape.mixing,
                             .attention = attention(shape),
                             .tokens = shape.context,
                             .layers = shape.layers,
                             .width = shape.width,
                             .heads = shape.heads,
                             .softmax_layers = shape.softmax_layers}),
        head_(list_, "head", shape.width, shape.vocabulary, layers::Bias::none, 0.1) {}

  const ModelShape& shape() const { return shape_; }
  const ParameterList& parameters() const { return list_; }
  const Transformer& transformer() const { return transformer_; }

  Values<T> initial_values(std::uint64_t seed) const {
    Values<T> values = list_.initial_values<T>(seed);
    transformer_.initialize(values);
    return values;
  }
  /// Keeps the mixing matrices where they may be, after an update.
  void project(Values<T>& values) const { transformer_.project(values); }

  /// The logits after each token, in a.logits, of sequences of equal length one after another.
  void forward(const Values<T>& values, const std::vector<int>& tokens, Index sequences,
               Activations<T>& a) const {
    transformer_.forward(values, sequences, embedded(values, tokens), a.transformer);
    head_.forward(values, a.transformer.normed, a.logits);
  }

  /// The same for the next tokens of one sequence, with a decoder for each layer.
  void forward(const Values<T>& values, const std::vector<int>& tokens,
               std::vector<Decoder>& decoders, Activations<T>& a) const {
    transformer_.forward(values, decoders, embedded(values, tokens), a.transformer);
    head_.forward(values, a.transformer.normed, a.logits);
  }

  /// Overwrites `gradient` with that of all parameters, d_logits being the logits'.
  void backward(const Values<T>& values, const std::vector<int>& tokens, Index sequences,
                const Activations<T>& a, const Matrix<T>& d_logits, Values<T>& gradient) const {
    gradient.resize(list_.size());
    Matrix<T> d_normed, dx;
    head_.backward(values, a.transformer.normed, d_logits, d_normed, gradient);
    transformer_.backward(values, sequences, a.transformer, d_normed, dx, gradient);
    embedding_.table().in(gradient).setZero();
    embedding_.add_backward(tokens, dx, gradient);
  }

 private:
  // High frequencies only, of periods up to some fifty characters: they tell neighbours apart. What
  // lies farther off is told apart by the mixing matrix, block by block.
  static Attention attention(const ModelShape& shape) {
    return {.blocks = {.block = shape.block},
            .rotation = {.theta = 10},
            .scale = 1 / std::sqrt(static_cast<double>(shape.width / shape.heads))};
  }

  Matrix<T> embedded(const Values<T>& values, const std::vector<int>& tokens) const {
    Matrix<T> x;
    embedding_.forward(values, tokens, x);
    return x;
  }

  ModelShape shape_;
  ParameterList list_;
  layers::Embedding embedding_;
  Transformer transformer_;
  layers::Linear head_;
};

}  // namespace char_lm
