// SPDX-License-Identifier: MIT
// Global linear attention in plain loops (arXiv 2006.16236, eq. 4): MHLA with every entry of the
// mixing matrix equal to 1.
//
//   weight[t, j] = s (R phi(q_t)) . (R phi(k_j))     if query t sees key j
//   y_t = sum_j weight[t, j] v_j / den_t,   den_t = epsilon + sum_j s phi(q_t) . phi(k_j), or 1
//
// A query whose den_t is 0 has output 0 and contributes to no gradient. Slow and allocating.
#pragma once

#include <mhla/core/any_argument.hpp>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/policy/causality.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/normalizer.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/variant.hpp>
#include <mhla/reference/token_features.hpp>
#include <mhla/reference/token_matrix.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace reference {

/// \addtogroup reference
/// \{

/// \cond INTERNAL
// The checked problem of a call without mix; throws ShapeError if anything does not fit.
template <AttentionVariant V, class T>
Problem checked_linear(const V& attention, const TensorView<const T, 4>& q,
                       const TensorView<const T, 4>& k, const TensorView<const T, 4>& v,
                       const TokenMasks& masks) {
  static_assert(!std::is_same_v<typename V::NormalizerType, MixedProduct>,
                "mhla: linear attention has one normalizer: use MixedKeySum or Unnormalized");
  static_assert(!is_structured<V>, "mhla: linear attention does not mix: use DenseMixing");
  const bool cross = !attention.key_blocks.unset();
  Shape shape = shape_of(q, k, v, TensorView<const T, 3>{nullptr, {1, 0, 0}, {}});
  shape.mix_query_blocks =
      checked_grid(attention.blocks, shape.query_tokens, "blocks", "q").num_blocks();
  shape.mix_key_blocks = checked_grid(cross ? attention.key_blocks : attention.blocks,
                                      shape.key_tokens, cross ? "key_blocks" : "blocks", "k")
                             .num_blocks();
  masks.require_fit(shape);
  return checked_problem(attention, shape);
}

// Everything the weights of one (batch, head) depend on.
template <AttentionVariant V, class A>
struct LinearHead {
  const V& attention;
  const Problem& problem;
  const TokenMasks& masks;
  Index batch;
  TokenFeatures<A> query;
  TokenFeatures<A> key;

  LinearHead(const V& variant, const Problem& checked, const TokenMasks& token_masks,
             Index batch_index, const Matrix<A>& q, const Matrix<A>& k)
      : attention(variant),
        problem(checked),
        masks(token_masks),
        batch(batch_index),
        query(token_features(variant, checked.query_grid, q)),
        key(token_features(variant, checked.key_grid, k)) {}

  A scale() const { return static_cast<A>(attention.scale); }

  /// Whether query t sees key j.
  bool sees(Index t, Index j) const {
    using Causality = typename V::CausalityType;
    if (!masks.takes_query(batch, t) || !masks.takes_key(batch, j)) return false;
    if constexpr (std::is_same_v<Causality, Causal>) return j <= t;
    if constexpr (std::is_same_v<Causality, BlockCausal>)
      return problem.key_grid.block_of(j) <= problem.query_grid.block_of(t);
    return true;
  }

  A weight(Index t, Index j) const {
    return scale() * inner_product<A>(query.rotated.row_of(t), key.rotated.row_of(j));
  }

  A denominator(Index t) const {
    if constexpr (std::is_same_v<typename V::NormalizerType, Unnormalized>) {
      return A(1);
    } else {
      A den = A(0);
      for (Index j = 0; j < problem.shape.key_tokens; ++j)
        if (sees(t, j))
          den += scale() * inner_product<A>(query.plain.row_of(t), key.plain.row_of(j));
      return den + static_cast<A>(attention.normalizer.epsilon);
    }
  }
};

/// \endcond

/// y = linear attention with the variant's feature map, causality, normalizer, rotation and scale.
/// Its blocks matter only to a rotation, for the grid, and to BlockCausal.
/// \throws ShapeError if variant, operands, masks and y do not fit.
template <AttentionVariant V, class Output, StorageScalar T = ElementOf<Output>>
void linear_attention_forward(const V& attention, Operand<T, 4> q, Operand<T, 4> k, Operand<T, 4> v,
                              Output&& output, const TokenMasks& masks = {}) {
  const TensorView<T, 4> y = view_of(output);
  using A = Accumulator<T>;
  const Problem problem = checked_linear<V, T>(attention, q, k, v, masks);
  const Shape& shape = problem.shape;
  require_output_fit(y, "y", shape);

  for (Index n = 0; n < shape.batch; ++n)
    for (Index h = 0; h < shape.heads; ++h) {
      const Index kv_head = h / shape.group_size();
      const Matrix<A> values = head_of(v, n, kv_head);
      const LinearHead<V, A> head(attention, problem, masks, n, head_of(q, n, h),
                                  head_of(k, n, kv_head));
      Matrix<A> num(shape.query_tokens, shape.value_dim);
      for (Index t = 0; t < shape.query_tokens; ++t) {
        for (Index j = 0; j < shape.key_tokens; ++j)
          if (head.sees(t, j)) add_scaled<A>(head.weight(t, j), values.row_of(j), num.row_of(t));
        const A den = head.denominator(t);
        for (Index c = 0; c < shape.value_dim; ++c)
          store(y(n, h, t, c), den == A(0) ? A(0) : num(t, c) / den);
      }
    }
}

/// \cond INTERNAL
// Adds what the output of query t has to the gradients; value_row(j) is dv_j.
template <class V, class A, class GradOutput, class ValueRow>
void add_token_gradient(const LinearHead<V, A>& head, Index t, const Matrix<A>& values,
                        const GradOutput& grad_out, TokenFeatures<A>& dq, TokenFeatures<A>& dk,
                        const ValueRow& value_row) {
  const A den = head.denominator(t);
  if (den == A(0)) return;
  A dy_dot_y = A(0);
  for (Index j = 0; j < values.rows(); ++j) {
    if (!head.sees(t, j)) continue;
    const A weight = head.weight(t, j);
    const A dweight = inner_product<A>(grad_out, values.row_of(j)) / den;
    dy_dot_y += weight * dweight;
    add_scaled<A>(weight / den, grad_out, value_row(j));
    add_scaled<A>(head.scale() * dweight, head.key.rotated.row_of(j), dq.rotated.row_of(t));
    add_scaled<A>(head.scale() * dweight, head.query.rotated.row_of(t), dk.rotated.row_of(j));
  }
  if constexpr (std::is_same_v<typename V::NormalizerType, Unnormalized>) return;
  const A dscore = head.scale() * -dy_dot_y / den;  // d y_t / d den_t = -y_t / den_t
  for (Index j = 0; j < values.rows(); ++j) {
    if (!head.sees(t, j)) continue;
    add_scaled<A>(dscore, head.key.plain.row_of(j), dq.plain.row_of(t));
    add_scaled<A>(dscore, head.query.plain.row_of(t), dk.plain.row_of(j));
  }
}
/// \endcond

/// Gradients of sum(dy o y) in q, k and v, each of which may be skipped; that of mix must be.
/// \throws ShapeError if variant, operands, masks, dy and gradients do not fit.
template <AttentionVariant V, class Query, class T = std::remove_const_t<ElementOf<const Query>>>
requires StorageScalar<T>
void linear_attention_backward(const V& attention, const Query& query, Operand<T, 4> k,
                               Operand<T, 4> v, Operand<T, 4> dy,
                               const GradientViews<std::type_identity_t<T>>& gradients,
                               Update update = Update::overwrite, const TokenMasks& masks = {}) {
  const Operand<T, 4> q = view_of(query);
  using A = Accumulator<T>;
  const Problem problem = checked_linear<V, T>(attention, q, k, v, masks);
  const Shape& shape = problem.shape;
  require_output_fit(dy, "dy", shape);
  require_no_mix(gradients);
  checked_gradients(shape, gradients);

  GradientSum<T, 4> grad_query(shape.batch, shape.heads, shape.query_tokens, shape.key_dim);
  GradientSum<T, 4> grad_key(shape.batch, shape.kv_heads, shape.key_tokens, shape.key_dim);
  GradientSum<T, 4> grad_value(shape.batch, shape.kv_heads, shape.key_tokens, shape.value_dim);
  for (Index n = 0; n < shape.batch; ++n)
    for (Index h = 0; h < shape.heads; ++h) {
      const Index kv_head = h / shape.group_size();
      const Matrix<A> queries = head_of<T>(q, n, h);
      const Matrix<A> keys = head_of(k, n, kv_head);
      const Matrix<A> values = head_of(v, n, kv_head);
      const Matrix<A> grad_out = head_of(dy, n, h);
      const LinearHead<V, A> head(attention, problem, masks, n, queries, keys);
      TokenFeatures<A> dq = zero_features<A>(shape.query_tokens, problem.feature_dim);
      TokenFeatures<A> dk = zero_features<A>(shape.key_tokens, problem.feature_dim);

      for (Index t = 0; t < shape.query_tokens; ++t)
        add_token_gradient(head, t, values, grad_out.row_of(t), dq, dk,
                           [&](Index j) { return grad_value.row_of(n, kv_head, j); });
      for (Index t = 0; t < shape.query_tokens; ++t)
        if (masks.takes_query(n, t))
          add_input_gradient(attention, problem.query_grid, t, queries, dq,
                             grad_query.row_of(n, h, t));
      for (Index j = 0; j < shape.key_tokens; ++j)
        if (masks.takes_key(n, j))
          add_input_gradient(attention, problem.key_grid, j, keys, dk,
                             grad_key.row_of(n, kv_head, j));
    }

  grad_query.write_to(gradients.query, update);
  grad_key.write_to(gradients.key, update);
  grad_value.write_to(gradients.value, update);
}

/// The attention matrix of one batch item and head: weights [query tokens, key tokens]; if
/// normalized, y = weights v.
/// \throws ShapeError if variant, operands, masks and weights do not fit.
template <AttentionVariant V, class Query, class T = std::remove_const_t<ElementOf<const Query>>>
requires StorageScalar<T>
void linear_attention_weights(const V& attention, const Query& query, Operand<T, 4> k, Index batch,
                              Index head_index, Weights form,
                              TensorView<Accumulator<std::type_identity_t<T>>, 2> weights,
                              const TokenMasks& masks = {}) {
  const Operand<T, 4> q = view_of(query);
  using A = Accumulator<T>;
  const Problem problem = checked_linear<V, T>(attention, q, k, k, masks);
  const Shape& shape = problem.shape;
  require_weights_fit(weights, shape, batch, head_index);
  const LinearHead<V, A> head(attention, problem, masks, batch, head_of<T>(q, batch, head_index),
                              head_of(k, batch, head_index / shape.group_size()));
  for (Index t = 0; t < shape.query_tokens; ++t) {
    const A den = form == Weights::normalized ? head.denominator(t) : A(1);
    for (Index j = 0; j < shape.key_tokens; ++j)
      weights(t, j) = den == A(0) || !head.sees(t, j) ? A(0) : head.weight(t, j) / den;
  }
}

/// \cond INTERNAL
MHLA_ANY_CALL(void linear_attention_forward, { explain_oracle<Given...>(); })
MHLA_ANY_CALL(void linear_attention_backward, { explain_oracle<Given...>(); })
MHLA_ANY_CALL(void linear_attention_weights, { explain_oracle<Given...>(); })
/// \endcond

/// \}

}  // namespace reference

MHLA_NAMESPACE_END
