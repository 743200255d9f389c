// SPDX-License-Identifier: MIT
// What the oracles share: one head of a tensor as a matrix [tokens, dim] in the accumulator type,
// and sums of gradients. Plain and allocating; nothing here is shared with a backend.
#pragma once

#include <mhla/core/gradient_views.hpp>
#include <mhla/core/shape.hpp>
#include <utility>
#include <vector>

MHLA_NAMESPACE_BEGIN

namespace reference {

/// \cond INTERNAL
// What an oracle's scalar is deduced from: a view, or a tensor that has one.
template <class T, int Rank>
TensorView<T, Rank> view_of(const TensorView<T, Rank>& view) {
  return view;
}
template <class X>
auto view_of(X& tensor) -> decltype(tensor.view()) {
  return tensor.view();
}
template <class X>
using ElementOf = typename decltype(view_of(std::declval<X&>()))::Element;

// Says why a call of an oracle does not compile.
template <class... X>
void explain_oracle() {
  static_assert(no_such_call<X...>,
                "mhla: call mhla_forward(attention, q, k, v, mix, y, masks), "
                "mhla_backward(attention, q, k, v, mix, dy, {dq, dk, dv, dmix}, update, masks) "
                "or mhla_weights(attention, q, k, mix, batch, head, form, weights, masks), and "
                "linear_attention_forward and softmax_attention_forward and so on without mix: "
                "tensors are views or HostTensors of one scalar, mix of the type that it is "
                "accumulated in, results not const");
}
// A tensor with its own memory, initially zero.
template <class A, int Rank>
class Owned {
 public:
  template <class... Extents>
  explicit Owned(Extents... extents)
      : data_((std::size_t{1} * ... * static_cast<std::size_t>(extents))),
        view_(make_view(data_.data(), extents...)) {}
  Owned(Owned&&) = default;  // memory stays where it is

  const TensorView<A, Rank>& view() { return view_; }
  TensorView<const A, Rank> view() const { return view_; }
  Index rows() const { return view_.extent[0]; }
  Index columns() const { return view_.extent[Rank - 1]; }
  A& operator()(Index row, Index column) { return row_of(row)[column]; }
  const A& operator()(Index row, Index column) const { return row_of(row)[column]; }
  // A row of the last axis, by one index for each of the others.
  template <class... Indices>
  Span<A> row_of(Indices... index) {
    return {view_.data + place_of(index...), columns()};
  }
  template <class... Indices>
  Span<const A> row_of(Indices... index) const {
    return {view_.data + place_of(index...), columns()};
  }

 private:
  template <class... Indices>
  Index place_of(Indices... index) const {
    Index row = 0;
    int axis = 0;
    ((row = row * view_.extent[axis++] + index), ...);
    return row * columns();
  }

  std::vector<A> data_;
  TensorView<A, Rank> view_;
};
template <class A>
using Matrix = Owned<A, 2>;

// x . y. These two have most of an oracle's time, above all where nothing is inlined.
template <class A>
A inner_product(Span<const A> x, Span<const A> y) {
  const A* other = y.data;
  A sum = A(0);
  for (const A element : x) sum += element * *other++;
  return sum;
}

// y += factor x
template <class A>
void add_scaled(std::type_identity_t<A> factor, Span<const A> x, Span<A> y) {
  A* to = y.data;
  for (const A element : x) *to++ += factor * element;
}

// The matrix [tokens, dim] of one head.
template <class T>
Matrix<Accumulator<T>> head_of(const TensorView<const T, 4>& tensor, Index batch, Index head) {
  Matrix<Accumulator<T>> matrix(tensor.extent[2], tensor.extent[3]);
  for (Index t = 0; t < matrix.rows(); ++t)
    for (Index c = 0; c < matrix.columns(); ++c) matrix(t, c) = load(tensor(batch, head, t, c));
  return matrix;
}

// Writes a sum to a wanted destination of the same extents: replaces what it holds, or adds to it.
template <class A, class T, int Rank>
void write_gradient(const Owned<A, Rank>& sum, const GradientView<T, Rank>& destination,
                    Update update) {
  if (!destination.wanted) return;
  for (Index i = 0; i < sum.view().size(); ++i) {
    T& to = destination.view.element(i);
    store(to, (update == Update::overwrite ? A(0) : load(to)) + sum.view().data[i]);
  }
}

// Gradients of q, k and v, being summed in the accumulator type.
template <class T>
struct GradientSums {
  explicit GradientSums(const Shape& s)
      : query(s.batch, s.heads, s.query_tokens, s.key_dim),
        key(s.batch, s.kv_heads, s.key_tokens, s.key_dim),
        value(s.batch, s.kv_heads, s.key_tokens, s.value_dim) {}

  Owned<Accumulator<T>, 4> query;
  Owned<Accumulator<T>, 4> key;
  Owned<Accumulator<T>, 4> value;

  void write_to(const GradientViews<T>& gradients, Update update) const {
    write_gradient(query, gradients.query, update);
    write_gradient(key, gradients.key, update);
    write_gradient(value, gradients.value, update);
  }
};

// Calls f(batch item, head, its kv head).
template <class F>
void for_each_head(const Shape& shape, const F& f) {
  for (Index n = 0; n < shape.batch; ++n)
    for (Index h = 0; h < shape.heads; ++h) f(n, h, h / shape.group_size());
}

/// \endcond

/// Which attention matrix is meant.
/// \ingroup reference
enum class Weights {
  unnormalized,  ///< the products
  normalized     ///< the products divided by the query's denominator
};

/// \cond INTERNAL
// Throws ShapeError unless a matrix of weights belongs to a head of the call.
template <class A>
void require_weights_fit(const TensorView<A, 2>& weights, const Shape& shape, Index batch,
                         Index head) {
  if (batch < 0 || batch >= shape.batch || head < 0 || head >= shape.heads)
    throw ShapeError({"mhla: weights: (batch, head) is (", batch, ", ", head, ") but q has ",
                      shape.batch, " batches and ", shape.heads, " heads"});
  const char* rule = "weights is [query tokens, key tokens]";
  require_extent("weights", "query tokens", weights.extent[0], shape.query_tokens, rule);
  require_extent("weights", "key tokens", weights.extent[1], shape.key_tokens, rule);
}

// Throws ShapeError unless y (or dy) has the extents of the output.
template <class T>
void require_output_fit(const TensorView<T, 4>& output, const char* argument, const Shape& shape) {
  require_extents(output, argument, shape.batch, shape.heads, shape.query_tokens, shape.value_dim,
                  "it has the batch, heads and tokens of q and the dim of v");
}

// Throws ShapeError if a gradient of mix is requested of an attention without mix.
template <class T>
void require_no_mix(const GradientViews<T>& gradients) {
  if (gradients.mix.wanted)
    throw ShapeError("mhla: dmix: this attention has no mixing matrix; pass mhla::skip");
}
/// \endcond

}  // namespace reference

MHLA_NAMESPACE_END
