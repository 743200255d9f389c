// SPDX-License-Identifier: MIT
// The attention layer: x + (silu(g) o RMSNorm(y)) W, where y = attention(q, k, v) and q, k, v and g
// are linear in RMSNorm(x); the gate silu(g) may be missing. It comes in three parts, so that a
// decoder can take the place of the attention over a whole sequence.
#pragma once

#include <memory>
#include <string>

#include "../layers/linear.hpp"
#include "../layers/norms.hpp"
#include "token_mixing.hpp"

namespace training {

struct AttentionActivations {
  Matrix input;
  Matrix normed;
  Matrix projected;  // [tokens, 4 width]: q, k, v, g; [tokens, 3 width] without a gate
  Matrix mixed;      // y
  Matrix mixed_normed;
  Matrix gated;
  Saved summaries;
};

/// What a transformer is made of. `attention` says how MHLA cuts `tokens` into blocks; the other
/// kinds of mixing take its causality, feature map and rotation.
struct TransformerShape {
  Mixing mixing = Mixing::mhla;
  std::shared_ptr<const AnyAttention> attention{};
  Index tokens = 0;  ///< of a sequence, at most
  Index layers = 0;
  Index width = 0;
  Index heads = 0;
  bool gate = true;
  bool positional_convolution = false;  ///< before each attention layer (CPE, arXiv 2102.10882)
  Index softmax_layers = 0;             ///< the last ones: a hybrid stack

  Index head_dim() const { return width / heads; }
  Mixing mixing_of(Index layer) const {
    return layer + softmax_layers >= layers ? Mixing::softmax : mixing;
  }
};

class AttentionLayer {
 public:
  AttentionLayer(ParameterList& list, const std::string& name, Mixing mixing,
                 const TransformerShape& shape, double out_gain);

  const TokenMixing& mixing() const { return mixing_; }

  /// Adds the layer's result to x, of `sequences` sequences of equal length.
  void forward(const Values& values, Index sequences, Matrix& x, AttentionActivations& a) const;
  /// The same for the next tokens of one sequence.
  void forward(const Values& values, AnyDecoder& decoder, Matrix& x, AttentionActivations& a) const;
  /// dx is the gradient of the sum on entry, of the layer's input afterwards.
  void backward(const Values& values, Index sequences, const AttentionActivations& a, Matrix& dx,
                Values& gradient) const;

 private:
  void before_mixing(const Values& values, const Matrix& x, AttentionActivations& a) const;
  void after_mixing(const Values& values, Matrix& x, AttentionActivations& a) const;

  Index width_;
  Index heads_;
  bool has_gate_;
  layers::RmsNorm norm_;
  layers::Linear project_;
  TokenMixing mixing_;
  layers::RmsNorm mixed_norm_;
  layers::Linear out_;
};

}  // namespace training
