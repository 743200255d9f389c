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

/// \addtogroup reference
/// \{

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
// A matrix with its own memory, initially zero.
template <class A>
class Matrix {
 public:
  Matrix(Index rows, Index columns)
      : rows_(rows), columns_(columns), data_(static_cast<std::size_t>(rows * columns)) {}

  Index rows() const { return rows_; }
  Index columns() const { return columns_; }
  A& operator()(Index row, Index column) { return row_of(row)[column]; }
  const A& operator()(Index row, Index column) const { return row_of(row)[column]; }
  Span<A> row_of(Index row) { return {data_.data() + row * columns_, columns_}; }
  Span<const A> row_of(Index row) const { return {data_.data() + row * columns_, columns_}; }

 private:
  Index rows_;
  Index columns_;
  std::vector<A> data_;
};

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

// A gradient being summed in the accumulator type, written to its destination at the end.
template <class T, int Rank>
class GradientSum {
 public:
  using A = Accumulator<T>;

  template <class... Extents>
  explicit GradientSum(Extents... extents)
      : data_((std::size_t{1} * ... * static_cast<std::size_t>(extents))),
        sum_(make_view(data_.data(), extents...)) {}
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  const TensorView<A, Rank>& view() const { return sum_; }
  Span<A> row_of(Index batch, Index head, Index token) requires(Rank == 4) {
    return {sum_.data + batch * sum_.stride[0] + head * sum_.stride[1] + token * sum_.stride[2],
            sum_.extent[3]};
  }

  // Replaces what a wanted destination of the same extents holds, or adds to it.
  void write_to(const GradientView<T, Rank>& destination, Update update) const {
    if (!destination.wanted) return;
    for (Index i = 0; i < sum_.size(); ++i) {
      T& to = destination.view.element(i);
      store(to, (update == Update::overwrite ? A(0) : load(to)) + sum_.element(i));
    }
  }

 private:
  std::vector<A> data_;
  TensorView<A, Rank> sum_;
};

// Of q, k and v.
template <class T>
struct GradientSums {
  explicit GradientSums(const Shape& s)
      : query(s.batch, s.heads, s.query_tokens, s.key_dim),
        key(s.batch, s.kv_heads, s.key_tokens, s.key_dim),
        value(s.batch, s.kv_heads, s.key_tokens, s.value_dim) {}

  GradientSum<T, 4> query;
  GradientSum<T, 4> key;
  GradientSum<T, 4> value;

  void write_to(const GradientViews<T>& gradients, Update update) const {
    query.write_to(gradients.query, update);
    key.write_to(gradients.key, update);
    value.write_to(gradients.value, update);
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

/// \}

}  // namespace reference

MHLA_NAMESPACE_END
