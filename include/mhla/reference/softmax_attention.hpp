// SPDX-License-Identifier: MIT
// Softmax attention in plain loops (arXiv 1706.03762, eq. 1), a baseline for MHLA.
#pragma once

#include <mhla/policy/problem.hpp>
#include <mhla/reference/token_matrix.hpp>

MHLA_NAMESPACE_BEGIN

namespace reference {

/// \addtogroup reference
/// \{

/// Softmax attention over every key or, with Causal, over keys up to the query's own token.
template <Causality CausalityT = Bidirectional>
struct SoftmaxAttention {
  static_assert(!std::is_same_v<CausalityT, BlockCausal>,
                "mhla: softmax attention has no blocks: use Bidirectional or Causal");
  std::optional<double> scale = {};  ///< s; empty: key_dim^(-1/2)

  /// Whether query t sees key j of the same sequence.
  static bool sees(const TokenMasks& masks, Index batch, Index t, Index j) {
    return masks.takes_query(batch, t) && masks.takes_key(batch, j) &&
           (std::is_same_v<CausalityT, Bidirectional> || j <= t);
  }
};

/// \cond INTERNAL
// The shape of a call; throws ShapeError if operands and masks do not fit.
template <class C, class T>
Shape checked_softmax(const SoftmaxAttention<C>& attention, const TensorView<const T, 4>& q,
                      const TensorView<const T, 4>& k, const TensorView<const T, 4>& v,
                      const TokenMasks& masks) {
  Shape shape = shape_of(q, k, v, TensorView<const T, 3>{nullptr, {1, 0, 0}, {}});
  require_consistent(shape);
  if (attention.scale) require_not_negative("scale", *attention.scale);
  if constexpr (std::is_same_v<C, Causal>)
    require_extent("k", "tokens", shape.key_tokens, shape.query_tokens,
                   "Causal needs the same tokens on the query and the key side");
  masks.require_fit(shape);
  return shape;
}

template <class A, class C>
A softmax_scale(const SoftmaxAttention<C>& attention, Index key_dim) {
  if (attention.scale.has_value()) return static_cast<A>(*attention.scale);
  return A(1) / std::sqrt(static_cast<A>(key_dim));
}

// The attention matrix p [query tokens, key tokens] of one head, 0 where a query does not see a
// key.
template <class C, class A>
Matrix<A> softmax_matrix(const SoftmaxAttention<C>& attention, const TokenMasks& masks, Index batch,
                         const Matrix<A>& q, const Matrix<A>& k) {
  const A scale = softmax_scale<A>(attention, q.columns());
  Matrix<A> p(q.rows(), k.rows());
  for (Index t = 0; t < q.rows(); ++t) {
    bool sees_any = false;
    A largest = A(0);
    for (Index j = 0; j < k.rows(); ++j) {
      if (!attention.sees(masks, batch, t, j)) continue;
      p(t, j) = scale * inner_product<A>(q.row_of(t), k.row_of(j));
      if (!sees_any || largest < p(t, j)) largest = p(t, j);
      sees_any = true;
    }
    A sum = A(0);
    for (Index j = 0; j < k.rows(); ++j)
      if (attention.sees(masks, batch, t, j)) sum += p(t, j) = std::exp(p(t, j) - largest);
    for (Index j = 0; j < k.rows(); ++j)
      if (attention.sees(masks, batch, t, j)) p(t, j) /= sum;
  }
  return p;
}

/// \endcond

/// y = softmax attention of q [batch, heads, query tokens, key_dim], k [batch, kv_heads, key
/// tokens, key_dim] and v [batch, kv_heads, key tokens, value_dim].
/// \throws ShapeError if operands, masks and y do not fit.
template <class C, class Output, StorageScalar T = ElementOf<Output>>
void softmax_attention_forward(const SoftmaxAttention<C>& attention, InputView<T, 4> q,
                               InputView<T, 4> k, InputView<T, 4> v, Output&& output,
                               const TokenMasks& masks = {}) {
  const TensorView<T, 4> y = view_of(output);
  using A = Accumulator<T>;
  const Shape shape = checked_softmax<C, T>(attention, q, k, v, masks);
  require_output_fit(y, "y", shape);

  for_each_head(shape, [&](Index n, Index h, Index kv_head) {
    const Matrix<A> p =
        softmax_matrix(attention, masks, n, head_of(q, n, h), head_of(k, n, kv_head));
    const Matrix<A> values = head_of(v, n, kv_head);
    Matrix<A> out(shape.query_tokens, shape.value_dim);
    for (Index t = 0; t < shape.query_tokens; ++t) {
      for (Index j = 0; j < shape.key_tokens; ++j)
        if (attention.sees(masks, n, t, j)) add_scaled<A>(p(t, j), values.row_of(j), out.row_of(t));
      for (Index c = 0; c < shape.value_dim; ++c) store(y(n, h, t, c), out(t, c));
    }
  });
}

/// Gradients of sum(dy o y) in q, k and v, each of which may be skipped; that of mix must be:
/// ds[t, j] = p[t, j] (dy_t^T v_j - sum_j' p[t, j'] dy_t^T v_j').
template <class C, class Query, class T = std::remove_const_t<ElementOf<const Query>>>
requires StorageScalar<T>
void softmax_attention_backward(const SoftmaxAttention<C>& attention, const Query& query,
                                InputView<T, 4> k, InputView<T, 4> v, InputView<T, 4> dy,
                                const GradientViews<std::type_identity_t<T>>& gradients,
                                Update update = Update::overwrite, const TokenMasks& masks = {}) {
  const InputView<T, 4> q = view_of(query);
  using A = Accumulator<T>;
  const Shape shape = checked_softmax<C, T>(attention, q, k, v, masks);
  require_output_fit(dy, "dy", shape);
  require_no_mix(gradients);
  checked_gradients(shape, gradients);
  const A scale = softmax_scale<A>(attention, shape.key_dim);

  GradientSums<T> sums(shape);
  for_each_head(shape, [&](Index n, Index h, Index kv_head) {
    const Matrix<A> queries = head_of<T>(q, n, h);
    const Matrix<A> keys = head_of(k, n, kv_head);
    const Matrix<A> values = head_of(v, n, kv_head);
    const Matrix<A> grad_out = head_of(dy, n, h);
    const Matrix<A> p = softmax_matrix(attention, masks, n, queries, keys);
    for (Index t = 0; t < shape.query_tokens; ++t) {
      const auto dp = [&](Index j) {
        return inner_product<A>(grad_out.row_of(t), values.row_of(j));
      };
      A inner = A(0);
      for (Index j = 0; j < shape.key_tokens; ++j)
        if (attention.sees(masks, n, t, j)) inner += p(t, j) * dp(j);
      for (Index j = 0; j < shape.key_tokens; ++j) {
        if (!attention.sees(masks, n, t, j)) continue;
        const A ds = scale * p(t, j) * (dp(j) - inner);
        add_scaled<A>(ds, keys.row_of(j), sums.query.row_of(n, h, t));
        add_scaled<A>(ds, queries.row_of(t), sums.key.row_of(n, kv_head, j));
        add_scaled<A>(p(t, j), grad_out.row_of(t), sums.value.row_of(n, kv_head, j));
      }
    }
  });
  sums.write_to(gradients, update);
}

/// The attention matrix of one batch item and head: weights [query tokens, key tokens], whose rows
/// sum to 1.
/// \throws ShapeError if operands, masks and weights do not fit.
template <class C, class Query, class T = std::remove_const_t<ElementOf<const Query>>>
requires StorageScalar<T>
void softmax_attention_weights(const SoftmaxAttention<C>& attention, const Query& query,
                               InputView<T, 4> k, Index batch, Index head,
                               TensorView<Accumulator<std::type_identity_t<T>>, 2> weights,
                               const TokenMasks& masks = {}) {
  const InputView<T, 4> q = view_of(query);
  using A = Accumulator<T>;
  const Shape shape = checked_softmax<C, T>(attention, q, k, k, masks);
  require_weights_fit(weights, shape, batch, head);
  const Matrix<A> p = softmax_matrix(attention, masks, batch, head_of<T>(q, batch, head),
                                     head_of(k, batch, head / shape.group_size()));
  for (Index t = 0; t < shape.query_tokens; ++t)
    for (Index j = 0; j < shape.key_tokens; ++j) weights(t, j) = p(t, j);
}

/// \cond INTERNAL
MHLA_ANY_CALL(void softmax_attention_forward, { explain_oracle<Given...>(); })
MHLA_ANY_CALL(void softmax_attention_backward, { explain_oracle<Given...>(); })
MHLA_ANY_CALL(void softmax_attention_weights, { explain_oracle<Given...>(); })
/// \endcond

/// \}

}  // namespace reference

MHLA_NAMESPACE_END
