// SPDX-License-Identifier: MIT
// Global linear attention in plain loops (arXiv 2006.16236, eq. 4): MHLA with every entry of the
// mixing matrix equal to 1. The MHLA oracle is made of the same parts.
#pragma once

#include <mhla/policy/checks.hpp>
#include <mhla/reference/token_features.hpp>

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
  Shape shape = shape_of(q, k, v, TensorView<const T, 3>{nullptr, {1, 0, 0}, {}});
  const auto [query_grid, key_grid] =
      checked_grids(attention, shape.query_tokens, shape.key_tokens);
  shape.mix_query_blocks = query_grid.num_blocks();
  shape.mix_key_blocks = key_grid.num_blocks();
  masks.require_fit(shape);
  return checked_problem(attention, shape);
}

// The block of every token.
inline std::vector<Index> blocks_of(const Grid& grid) {
  std::vector<Index> blocks;
  for (Index t = 0; t < grid.num_tokens(); ++t) blocks.push_back(grid.block_of(t));
  return blocks;
}

// Everything the weights of one (batch, head) depend on.
template <AttentionVariant V, class A>
struct LinearHead {
  static constexpr bool normalized = !std::is_same_v<typename V::NormalizerType, Unnormalized>;

  const V& attention;
  const Problem& problem;
  const TokenMasks& masks;
  Index batch;
  Matrix<A> q;
  Matrix<A> k;
  TokenFeatures<A> query = token_features(attention, problem.query_grid, q);
  TokenFeatures<A> key = token_features(attention, problem.key_grid, k);
  std::vector<Index> query_blocks = blocks_of(problem.query_grid);
  std::vector<Index> key_blocks = blocks_of(problem.key_grid);

  Index query_block(Index t) const { return query_blocks[static_cast<std::size_t>(t)]; }
  Index key_block(Index j) const { return key_blocks[static_cast<std::size_t>(j)]; }
  A scale() const { return static_cast<A>(attention.scale); }

  /// Whether query t sees key j.
  bool sees(Index t, Index j) const {
    using Causality = typename V::CausalityType;
    if (!masks.takes_query(batch, t) || !masks.takes_key(batch, j)) return false;
    if constexpr (std::is_same_v<Causality, Causal>) return j <= t;
    if constexpr (std::is_same_v<Causality, BlockCausal>) return key_block(j) <= query_block(t);
    return true;
  }

  /// s (R phi(q_t)) . (R phi(k_j))
  A weight(Index t, Index j) const {
    return scale() * inner_product<A>(query.rotated.row_of(t), key.rotated.row_of(j));
  }

  A denominator(Index t) const {
    if constexpr (normalized) {
      A den = A(0);
      for (Index j = 0; j < k.rows(); ++j)
        if (sees(t, j))
          den += scale() * inner_product<A>(query.plain.row_of(t), key.plain.row_of(j));
      return den + static_cast<A>(attention.normalizer.epsilon);
    } else {
      return A(1);
    }
  }
};

// y of one head.
template <class Head, class A, class T>
void write_output(const Head& head, const Matrix<A>& values, const TensorView<T, 4>& y, Index h) {
  Matrix<A> num(head.q.rows(), values.columns());
  for (Index t = 0; t < num.rows(); ++t) {
    for (Index j = 0; j < values.rows(); ++j)
      if (head.sees(t, j)) add_scaled<A>(head.weight(t, j), values.row_of(j), num.row_of(t));
    const A den = head.denominator(t);
    for (Index c = 0; c < num.columns(); ++c)
      store(y(head.batch, h, t, c), den == A(0) ? A(0) : num(t, c) / den);
  }
}

// The attention matrix of one head.
template <class Head, class A>
void write_weights(const Head& head, Weights form, const TensorView<A, 2>& weights) {
  for (Index t = 0; t < head.q.rows(); ++t) {
    const A den = form == Weights::normalized ? head.denominator(t) : A(1);
    for (Index j = 0; j < head.k.rows(); ++j)
      weights(t, j) = den == A(0) || !head.sees(t, j) ? A(0) : head.weight(t, j) / den;
  }
}

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

  for_each_head(shape, [&](Index n, Index h, Index kv_head) {
    write_output(
        LinearHead<V, A>{attention, problem, masks, n, head_of(q, n, h), head_of(k, n, kv_head)},
        head_of(v, n, kv_head), y, h);
  });
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
  if constexpr (!LinearHead<V, A>::normalized) return;
  const A dscore = head.scale() * -dy_dot_y / den;  // d y_t / d den_t = -y_t / den_t
  for (Index j = 0; j < values.rows(); ++j) {
    if (!head.sees(t, j)) continue;
    add_scaled<A>(dscore, head.key.plain.row_of(j), dq.plain.row_of(t));
    add_scaled<A>(dscore, head.query.plain.row_of(t), dk.plain.row_of(j));
  }
}

// Adds the gradients of a head's q and k that follow from those of its features.
template <class Head, class A, class T>
void add_input_gradients(const Head& head, TokenFeatures<A>& dq, TokenFeatures<A>& dk, Index h,
                         Index kv_head, GradientSums<T>& sums) {
  for (Index t = 0; t < head.q.rows(); ++t)
    if (head.masks.takes_query(head.batch, t))
      add_input_gradient(head.attention, head.problem.query_grid, t, head.q, dq,
                         sums.query.row_of(head.batch, h, t));
  for (Index j = 0; j < head.k.rows(); ++j)
    if (head.masks.takes_key(head.batch, j))
      add_input_gradient(head.attention, head.problem.key_grid, j, head.k, dk,
                         sums.key.row_of(head.batch, kv_head, j));
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

  GradientSums<T> sums(shape);
  for_each_head(shape, [&](Index n, Index h, Index kv_head) {
    const Matrix<A> values = head_of(v, n, kv_head);
    const Matrix<A> grad_out = head_of(dy, n, h);
    const LinearHead<V, A> head{
        attention, problem, masks, n, head_of<T>(q, n, h), head_of(k, n, kv_head)};
    TokenFeatures<A> dq = zero_features<A>(shape.query_tokens, problem.feature_dim);
    TokenFeatures<A> dk = zero_features<A>(shape.key_tokens, problem.feature_dim);
    for (Index t = 0; t < shape.query_tokens; ++t)
      add_token_gradient(head, t, values, grad_out.row_of(t), dq, dk,
                         [&](Index j) { return sums.value.row_of(n, kv_head, j); });
    add_input_gradients(head, dq, dk, h, kv_head, sums);
  });
  sums.write_to(gradients, update);
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
  write_weights(LinearHead<V, A>{attention, problem, masks, batch, head_of<T>(q, batch, head_index),
                                 head_of(k, batch, head_index / shape.group_size())},
                form, weights);
}

/// \cond INTERNAL
MHLA_ANY_CALL(void linear_attention_forward, { explain_oracle<Given...>(); })
MHLA_ANY_CALL(void linear_attention_backward, { explain_oracle<Given...>(); })
MHLA_ANY_CALL(void linear_attention_weights, { explain_oracle<Given...>(); })
/// \endcond

/// \}

}  // namespace reference

MHLA_NAMESPACE_END
