// SPDX-License-Identifier: MIT
// The model: embedded characters through a transformer to the logits of the characters that follow,
// forward, backward, and a few tokens at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/mixing.hpp>
#include <mhla/policy/normalizer.hpp>
#include <mhla/policy/variant.hpp>
#include <utility>
#include <vector>

#include "../layers/embedding.hpp"
#include "../layers/linear.hpp"
#include "../training/attention_of.hpp"
#include "../training/transformer.hpp"

namespace char_lm {

using layers::Index;
using layers::ParameterList;
using training::Matrix;
using training::Mixing;
using training::Scalar;
using training::Values;

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
  Index states = 0;          ///< of MHLA's recurrent mixing; 0: dense
};

/// What a forward pass leaves for the backward pass.
struct Activations {
  training::TransformerActivations transformer;
  Matrix logits;  ///< [tokens of all sequences, vocabulary]
};

class Model {
 public:
  explicit Model(const ModelShape& shape);
  /// Of another feature map, with dense mixing.
  template <class FeatureMap>
  Model(const ModelShape& shape, FeatureMap /*map*/)
      : Model(shape, training::any_attention(attention<FeatureMap>(shape))) {}

  const ModelShape& shape() const { return shape_; }
  const ParameterList& parameters() const { return list_; }
  const training::Transformer& transformer() const { return transformer_; }

  Values initial_values(std::uint64_t seed) const;
  /// Keeps the mixing matrices where they may be, after an update.
  void project(Values& values) const { transformer_.project(values); }

  /// The logits after each token, in a.logits, of sequences of equal length one after another.
  void forward(const Values& values, const std::vector<int>& tokens, Index sequences,
               Activations& a) const;
  /// The same for the next tokens of one sequence, with a decoder for each layer.
  void forward(const Values& values, const std::vector<int>& tokens,
               const training::Decoders& decoders, Activations& a) const;
  /// Overwrites `gradient` with that of all parameters, d_logits being the logits'.
  void backward(const Values& values, const std::vector<int>& tokens, Index sequences,
                const Activations& a, const Matrix& d_logits, Values& gradient) const;

 private:
  // Without a normalizer, because an RMSNorm follows (as in the released language model). High
  // frequencies only, of periods up to some fifty characters: they tell neighbours apart. What lies
  // farther off is told apart by the mixing matrix, block by block.
  template <class FeatureMap, class BlockMixing = mhla::DenseMixing>
  static mhla::Attention<FeatureMap, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
                         mhla::HalfSplitRotary, BlockMixing>
  attention(const ModelShape& shape, BlockMixing mixing = {}) {
    return {.blocks = {.block = shape.block},
            .rotation = {.theta = 10},
            .mixing = mixing,
            .scale = 1 / std::sqrt(static_cast<double>(shape.width / shape.heads))};
  }

  Model(const ModelShape& shape, std::shared_ptr<const training::AnyAttention> attention);
  Matrix embedded(const Values& values, const std::vector<int>& tokens) const;

  ModelShape shape_;
  ParameterList list_;
  layers::Embedding embedding_;
  training::Transformer transformer_;
  layers::Linear head_;
};

}  // namespace char_lm
