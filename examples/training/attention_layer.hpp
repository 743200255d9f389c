// SPDX-License-Identifier: MIT
// The attention layer: x + (silu(g) o RMSNorm(y)) W, where y = attention(q, k, v) and q, k, v and g
// are linear in RMSNorm(x); the gate silu(g) may be missing. It comes in three parts, so that a
// decoder can take the place of the attention over a whole sequence.
#pragma once

#include <string>

#include "../layers/activations.hpp"
#include "../layers/linear.hpp"
#include "../layers/norms.hpp"
#include "token_mixing.hpp"

namespace training {

using layers::gate;
using layers::gate_backward;
using layers::Linear;
using layers::RmsNorm;

template <class T>
struct AttentionActivations {
  Matrix<T> input;
  Matrix<T> normed;
  Matrix<T> projected;  // [tokens, 4 width]: q, k, v, g; [tokens, 3 width] without a gate
  Matrix<T> mixed;      // y
  Matrix<T> mixed_normed;
  Matrix<T> gated;
  mhla::ForwardState<T> summaries;
};

/// What a transformer is made of. `attention` says how MHLA cuts `tokens` into blocks; the other
/// kinds of mixing take its causality, feature map and rotation.
template <class Attention>
struct TransformerShape {
  Mixing mixing = Mixing::mhla;
  Attention attention{};
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

template <class T, class Attention>
class AttentionLayer {
 public:
  using TokenMixing = training::TokenMixing<T, Attention>;
  using Decoder = typename TokenMixing::Decoder;

  AttentionLayer(ParameterList& list, const std::string& name, Mixing mixing,
                 const TransformerShape<Attention>& shape, double out_gain)
      : width_(shape.width),
        heads_(shape.heads),
        has_gate_(shape.gate),
        norm_(list, name + ".norm", shape.width),
        project_(list, name + ".project", shape.width, (has_gate_ ? 4 : 3) * shape.width),
        mixing_(list, name + ".mix", mixing, shape.attention, shape.tokens, shape.heads,
                shape.head_dim()),
        mixed_norm_(list, name + ".mixed_norm", shape.head_dim()),
        out_(list, name + ".out", shape.width, shape.width, layers::Bias::none, out_gain) {}

  const TokenMixing& mixing() const { return mixing_; }

  /// Adds the layer's result to x, of `sequences` sequences of equal length.
  void forward(const Values<T>& values, Index sequences, Matrix<T>& x,
               AttentionActivations<T>& a) const {
    before_mixing(values, x, a);
    mixing_.forward(values, query(a, sequences), key(a, sequences), value(a, sequences), a.mixed,
                    a.summaries);
    after_mixing(values, x, a);
  }

  /// The same for the next tokens of one sequence.
  void forward(const Values<T>& values, Decoder& decoder, Matrix<T>& x,
               AttentionActivations<T>& a) const {
    before_mixing(values, x, a);
    decoder.step(query(a, 1), key(a, 1), value(a, 1), heads_of(a.mixed, 1, 0));
    after_mixing(values, x, a);
  }

  /// dx is the gradient of the sum on entry, of the layer's input afterwards.
  void backward(const Values<T>& values, Index sequences, const AttentionActivations<T>& a,
                Matrix<T>& dx, Values<T>& gradient) const {
    Matrix<T> d_gated, d_mixed_normed(dx.rows(), width_), d_mixed, d_normed, d_input;
    Matrix<T> d_projected(dx.rows(), a.projected.cols());
    if (has_gate_) {
      out_.backward(values, a.gated, dx, d_gated, gradient);
      gate_backward(a.projected.rightCols(width_), a.mixed_normed, d_gated,
                    d_projected.rightCols(width_), d_mixed_normed);
    } else {
      out_.backward(values, a.mixed_normed, dx, d_mixed_normed, gradient);
    }
    mixed_norm_.backward(values, a.mixed, d_mixed_normed, d_mixed, gradient);
    const Matrix<T>& dy = d_mixed;
    mixing_.backward(values, query(a, sequences), key(a, sequences), value(a, sequences),
                     heads_of(dy, sequences, 0), a.summaries, heads_of(d_projected, sequences, 0),
                     heads_of(d_projected, sequences, width_),
                     heads_of(d_projected, sequences, 2 * width_), gradient);
    project_.backward(values, a.normed, d_projected, d_normed, gradient);
    norm_.backward(values, a.input, d_normed, d_input, gradient);
    dx += d_input;
  }

 private:
  void before_mixing(const Values<T>& values, const Matrix<T>& x,
                     AttentionActivations<T>& a) const {
    a.input = x;
    norm_.forward(values, x, a.normed);
    project_.forward(values, a.normed, a.projected);
    a.mixed.resize(x.rows(), width_);
  }
  void after_mixing(const Values<T>& values, Matrix<T>& x, AttentionActivations<T>& a) const {
    mixed_norm_.forward(values, a.mixed, a.mixed_normed);
    if (has_gate_) gate(a.projected.rightCols(width_), a.mixed_normed, a.gated);
    out_.add_forward(values, has_gate_ ? a.gated : a.mixed_normed, x);
  }

  /// Columns [first, first + width) of `rows` as [sequences, heads, tokens, dim]: where they lie.
  template <class Rows>
  auto heads_of(Rows& rows, Index sequences, Index first) const {
    return mhla::heads_view(rows.middleCols(first, width_), heads_, sequences);
  }
  auto query(const AttentionActivations<T>& a, Index sequences) const {
    return heads_of(a.projected, sequences, 0);
  }
  auto key(const AttentionActivations<T>& a, Index sequences) const {
    return heads_of(a.projected, sequences, width_);
  }
  auto value(const AttentionActivations<T>& a, Index sequences) const {
    return heads_of(a.projected, sequences, 2 * width_);
  }

  Index width_;
  Index heads_;
  bool has_gate_;
  RmsNorm norm_;
  Linear project_;
  TokenMixing mixing_;
  RmsNorm mixed_norm_;
  Linear out_;
};

}  // namespace training
