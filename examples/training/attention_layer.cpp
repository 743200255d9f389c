// SPDX-License-Identifier: MIT
#include "attention_layer.hpp"

#include <mhla/eigen/tensor_views.hpp>

#include "../layers/activations.hpp"

namespace training {

using layers::gate;
using layers::gate_backward;

namespace {

/// q, k and v, or their gradients, where they lie in [tokens, 3 width or more].
template <class Rows>
struct QueryKeyValue {
  QueryKeyValue(Rows& rows, Index width, Index heads, Index sequences)
      : q(mhla::heads_view(rows.leftCols(width), heads, sequences)),
        k(mhla::heads_view(rows.middleCols(width, width), heads, sequences)),
        v(mhla::heads_view(rows.middleCols(2 * width, width), heads, sequences)) {}

  std::conditional_t<std::is_const_v<Rows>, ConstView, View> q, k, v;
};

}  // namespace

AttentionLayer::AttentionLayer(ParameterList& list, const std::string& name, Mixing mixing,
                               const TransformerShape& shape, double out_gain)
    : width_(shape.width),
      heads_(shape.heads),
      has_gate_(shape.gate),
      norm_(list, name + ".norm", shape.width),
      project_(list, name + ".project", shape.width, (has_gate_ ? 4 : 3) * shape.width),
      mixing_(list, name + ".mix", mixing, shape.attention, shape.tokens, shape.heads,
              shape.head_dim()),
      mixed_norm_(list, name + ".mixed_norm", shape.head_dim()),
      out_(list, name + ".out", shape.width, shape.width, layers::Bias::none, out_gain) {}

void AttentionLayer::forward(const Values& values, Index sequences, Matrix& x,
                             AttentionActivations& a) const {
  before_mixing(values, x, a);
  const QueryKeyValue<const Matrix> in(a.projected, width_, heads_, sequences);
  mixing_.forward(values, in.q, in.k, in.v, mhla::heads_view(a.mixed, heads_, sequences),
                  a.summaries);
  after_mixing(values, x, a);
}

void AttentionLayer::forward(const Values& values, AnyDecoder& decoder, Matrix& x,
                             AttentionActivations& a) const {
  before_mixing(values, x, a);
  const QueryKeyValue<const Matrix> in(a.projected, width_, heads_, 1);
  decoder.step(in.q, in.k, in.v, mhla::heads_view(a.mixed, heads_));
  after_mixing(values, x, a);
}

void AttentionLayer::backward(const Values& values, Index sequences, const AttentionActivations& a,
                              Matrix& dx, Values& gradient) const {
  Matrix d_gated, d_mixed_normed(dx.rows(), width_), d_mixed, d_normed, d_input;
  Matrix d_projected(dx.rows(), a.projected.cols());
  if (has_gate_) {
    out_.backward(values, a.gated, dx, d_gated, gradient);
    gate_backward(a.projected.rightCols(width_), a.mixed_normed, d_gated,
                  d_projected.rightCols(width_), d_mixed_normed);
  } else {
    out_.backward(values, a.mixed_normed, dx, d_mixed_normed, gradient);
  }
  mixed_norm_.backward(values, a.mixed, d_mixed_normed, d_mixed, gradient);
  const QueryKeyValue<const Matrix> in(a.projected, width_, heads_, sequences);
  const QueryKeyValue<Matrix> d(d_projected, width_, heads_, sequences);
  mixing_.backward(values, in.q, in.k, in.v, mhla::heads_view(d_mixed, heads_, sequences),
                   a.summaries, d.q, d.k, d.v, gradient);
  project_.backward(values, a.normed, d_projected, d_normed, gradient);
  norm_.backward(values, a.input, d_normed, d_input, gradient);
  dx += d_input;
}

void AttentionLayer::before_mixing(const Values& values, const Matrix& x,
                                   AttentionActivations& a) const {
  a.input = x;
  norm_.forward(values, x, a.normed);
  project_.forward(values, a.normed, a.projected);
  a.mixed.resize(x.rows(), width_);
}
void AttentionLayer::after_mixing(const Values& values, Matrix& x, AttentionActivations& a) const {
  mixed_norm_.forward(values, a.mixed, a.mixed_normed);
  if (has_gate_) gate(a.projected.rightCols(width_), a.mixed_normed, a.gated);
  out_.add_forward(values, has_gate_ ? a.gated : a.mixed_normed, x);
}

}  // namespace training
