// SPDX-License-Identifier: MIT
// Multi-Head Linear Attention as its definition states it: token by token, N x N, in plain loops
// (arXiv 2601.07832, eq. 5; the released code's normalizer and its causal form). An oracle: slow,
// allocating, and sharing no code with the backends it judges.
#pragma once

#include <mhla/reference/mixing.hpp>

MHLA_NAMESPACE_BEGIN

namespace reference {

/// \defgroup reference Reference
/// Oracles in plain loops, to test backends and models against: slow, allocating, and sharing no
/// code with the backends. Everything is computed in Accumulator<T>.
///
/// With s the scale, R the rotation, b(t) the block of token t, and j over the keys that query t
/// sees (arXiv 2601.07832, eq. 5):
///
///     weight[t, j] = s m[b(t), b(j)] (R phi(q_t))^T R phi(k_j)
///     y_t = sum_j weight[t, j] v_j / den_t
///
/// den_t is 1 (Unnormalized) or epsilon + sum_j s m[b(t), b(j)] phi(q_u)^T phi(k_j): u = t for
/// MixedKeySum, and the token at t's offset in j's block for MixedProduct. Linear attention is the
/// same with every entry of m equal to 1 (arXiv 2006.16236, eq. 4). Softmax attention has
/// exp(s q_t^T k_j) for weights and their sum for den_t (arXiv 1706.03762, eq. 1). A query whose
/// den_t is 0, or that sees no key, has output 0 and contributes to no gradient.
///
/// Shapes are on \ref rules; mix, weights and sums have the accumulator type. Destinations do not
/// share memory with operands, unchecked.
/// \{

/// \cond INTERNAL
// Features [tokens, feature_dim] of every token of one head: phi(x_t), and R_t phi(x_t). The
// numerator of attention uses the rotated features, the normalizer the unrotated ones (released
// video and language-model code).
template <class A>
struct TokenFeatures {
  Matrix<A> plain;
  Matrix<A> rotated;
};

template <class A>
TokenFeatures<A> zero_features(Index tokens, Index feature_dim) {
  return {Matrix<A>(tokens, feature_dim), Matrix<A>(tokens, feature_dim)};
}

// out = phi(in) of one row.
template <FeatureMap Map, class A>
void apply_feature_map(const Map& map, Span<const A> in, Span<A> out) {
  if constexpr (RowwiseFeatureMap<Map>) {
    map.value(in, out);
  } else {
    for (Index c = 0; c < in.size; ++c) out[c] = map.value(in[c]);
  }
}

// out = J(in)^T grad of one row.
template <FeatureMap Map, class A>
void apply_feature_map_adjoint(const Map& map, Span<const A> in, Span<const A> grad, Span<A> out) {
  if constexpr (RowwiseFeatureMap<Map>) {
    map.vjp(in, grad, out);
  } else {
    for (Index c = 0; c < in.size; ++c) out[c] = map.derivative(in[c]) * grad[c];
  }
}

// Rotates the feature pairs of `token` by the angles of its position; `direction` is +1, or -1 for
// the inverse, which is the adjoint.
template <Rotation R, class A>
void rotate(const R& rotation, const Grid& grid, int rank, Index token, int direction,
            Span<A> features) {
  if constexpr (!std::is_same_v<R, NoRotation>) {
    const RotationPairs pairs = rotation.pairs(features.size);
    Index pair = 0;
    for (int axis = 0; axis < rank; ++axis) {
      const auto position = static_cast<double>(grid.coordinate(token, 3 - rank + axis));
      const Index count = rotation.axis_pairs(axis, rank, features.size / 2);
      for (Index j = 0; j < count; ++j, ++pair) {
        const double angle = position * rotation.frequency(j, count);  // in double whatever A is
        const A cosine = static_cast<A>(std::cos(angle));
        const A sine = static_cast<A>(direction * std::sin(angle));
        A& first = features[pair * pairs.step];
        A& second = features[pair * pairs.step + pairs.gap];
        const A before = first;
        first = cosine * before - sine * second;
        second = sine * before + cosine * second;
      }
    }
  }
}

// phi and R phi of every row of `inputs`, whose tokens lie on `grid`.
template <AttentionVariant V, class A>
TokenFeatures<A> token_features(const V& attention, const Grid& grid, const Matrix<A>& inputs) {
  const Index tokens = inputs.rows();
  const Index features = feature_dim(attention.feature_map, inputs.columns());
  TokenFeatures<A> result = zero_features<A>(tokens, features);
  for (Index t = 0; t < tokens; ++t) {
    apply_feature_map<typename V::FeatureMapType, A>(attention.feature_map, inputs.row_of(t),
                                                     result.plain.row_of(t));
    for (Index c = 0; c < features; ++c) result.rotated(t, c) = result.plain(t, c);
    rotate(attention.rotation, grid, V::GeometryType::rank, t, +1, result.rotated.row_of(t));
  }
  return result;
}

// grad_in += J_phi(in)^T (grad.plain + R^T grad.rotated), for one token. Overwrites `grad`'s row.
template <AttentionVariant V, class A>
void add_input_gradient(const V& attention, const Grid& grid, Index token, const Matrix<A>& inputs,
                        TokenFeatures<A>& grad, Span<A> grad_in) {
  rotate(attention.rotation, grid, V::GeometryType::rank, token, -1, grad.rotated.row_of(token));
  add_scaled<A>(1, grad.rotated.row_of(token), grad.plain.row_of(token));
  Matrix<A> row(1, inputs.columns());
  const Matrix<A>& total = grad.plain;
  apply_feature_map_adjoint<typename V::FeatureMapType, A>(
      attention.feature_map, inputs.row_of(token), total.row_of(token), row.row_of(0));
  add_scaled<A>(1, row.row_of(0), grad_in);
}

// The block of every token.
inline std::vector<Index> blocks_of(const Grid& grid) {
  std::vector<Index> blocks;
  for (Index t = 0; t < grid.num_tokens(); ++t) blocks.push_back(grid.block_of(t));
  return blocks;
}

// Everything the weights of one (batch, head) depend on.
template <AttentionVariant V, class A>
struct MhlaHead {
  static constexpr bool normalized = !std::is_same_v<typename V::NormalizerType, Unnormalized>;

  const V& attention;
  const Problem& problem;
  const TokenMasks& masks;
  Index batch;
  Matrix<A> q;
  Matrix<A> k;
  Matrix<A> m;
  TokenFeatures<A> query = token_features(attention, problem.query_grid, q);
  TokenFeatures<A> key = token_features(attention, problem.key_grid, k);
  std::vector<Index> query_blocks = blocks_of(problem.query_grid);
  std::vector<Index> key_blocks = blocks_of(problem.key_grid);

  Index query_block(Index t) const { return query_blocks[static_cast<std::size_t>(t)]; }
  Index key_block(Index j) const { return key_blocks[static_cast<std::size_t>(j)]; }
  A scale() const { return static_cast<A>(attention.scale); }
  A mix(Index t, Index j) const { return m(query_block(t), key_block(j)); }

  /// Whether query t sees key j.
  bool sees(Index t, Index j) const {
    using Causality = typename V::CausalityType;
    if (!masks.takes_query(batch, t) || !masks.takes_key(batch, j)) return false;
    if constexpr (std::is_same_v<Causality, Causal>) return j <= t;
    if constexpr (std::is_same_v<Causality, BlockCausal>) return key_block(j) <= query_block(t);
    return true;
  }

  /// s (R phi(q_t)) . (R phi(k_j)), which mix multiplies in the numerator.
  A score(Index t, Index j) const {
    return scale() * inner_product<A>(query.rotated.row_of(t), key.rotated.row_of(j));
  }

  A weight(Index t, Index j) const { return mix(t, j) * score(t, j); }

  /// The query whose product with key j is in the denominator of query t; for MixedProduct, whose
  /// blocks have one size, at t's offset in j's block.
  Index normalizing_query(Index t, Index j) const {
    if constexpr (std::is_same_v<typename V::NormalizerType, MixedProduct>) {
      const Grid& grid = problem.key_grid;
      Index u = 0;
      for (int axis = 0; axis < 3; ++axis)
        u = u * grid.extent[axis] + grid.block_begin(key_block(j), axis) +
            grid.coordinate(t, axis) - grid.block_begin(query_block(t), axis);
      return u;
    } else {
      return t;
    }
  }

  /// s phi(q_u) . phi(k_j), which mix multiplies in the denominator.
  A normalizing_score(Index t, Index j) const {
    return scale() *
           inner_product<A>(query.plain.row_of(normalizing_query(t, j)), key.plain.row_of(j));
  }

  A denominator(Index t) const {
    if constexpr (normalized) {
      A den = A(0);
      for (Index j = 0; j < k.rows(); ++j)
        if (sees(t, j)) den += mix(t, j) * normalizing_score(t, j);
      return den + static_cast<A>(attention.normalizer.epsilon);
    } else {
      return A(1);
    }
  }
};

// What one query head of a call reads. The heads of a group share k.
template <class V, class T>
MhlaHead<V, Accumulator<T>> mhla_head(const V& attention, const Problem& problem,
                                      const TokenMasks& masks, const OperandViews<T>& of,
                                      Index batch, Index head) {
  const Shape& shape = problem.shape;
  return {attention,
          problem,
          masks,
          batch,
          head_of(of.q, batch, head),
          head_of(of.k, batch, head / shape.group_size()),
          mixing_matrix(attention, problem, matrix_view(of.mix, shape.mix_of(batch, head)))};
}

// The checked problem of a call; throws ShapeError if variant, operands and masks do not fit.
template <AttentionVariant V>
Problem checked_mhla(const V& attention, const Shape& shape, const TokenMasks& masks) {
  static_assert(!is_batch_layout<V>,
                "mhla: the oracle does not support packed or padded batches: call it once for each "
                "packed sequence, and give it the masks of a padded batch");
  const Problem problem = checked_problem(attention, shape);
  masks.require_fit(shape);
  if constexpr (std::is_same_v<typename V::NormalizerType, MixedProduct>) {
    if (masks.any())
      throw ShapeError(
          "mhla: masks: MixedProduct divides by products of other tokens' queries and "
          "takes no masks; use MixedKeySum");
  }
  return problem;
}

// Gradients of a head's features, and of its mixing matrix.
template <class A>
struct MhlaGradients {
  TokenFeatures<A> query;
  TokenFeatures<A> key;
  Matrix<A> mix;
};

// Adds what the output of query t has to the gradients; value_row(j) is dv_j.
template <class Head, class A, class GradOutput, class ValueRow>
void add_token_gradient(const Head& head, Index t, const Matrix<A>& values,
                        const GradOutput& grad_out, MhlaGradients<A>& sums,
                        const ValueRow& value_row) {
  const A den = head.denominator(t);
  if (den == A(0)) return;
  A dy_dot_y = A(0);

  // Through the numerator: y_t = sum_j weight[t, j] v_j / den_t.
  for (Index j = 0; j < values.rows(); ++j) {
    if (!head.sees(t, j)) continue;
    const A score = head.score(t, j);
    const A weight = head.mix(t, j) * score;
    const A dweight = inner_product<A>(grad_out, values.row_of(j)) / den;
    dy_dot_y += weight * dweight;
    add_scaled<A>(weight / den, grad_out, value_row(j));

    const A dscore = head.scale() * head.mix(t, j) * dweight;
    sums.mix(head.query_block(t), head.key_block(j)) += score * dweight;
    add_scaled<A>(dscore, head.key.rotated.row_of(j), sums.query.rotated.row_of(t));
    add_scaled<A>(dscore, head.query.rotated.row_of(t), sums.key.rotated.row_of(j));
  }

  // Through the denominator: d y_t / d den_t = -y_t / den_t.
  if constexpr (Head::normalized) {
    const A dden = -dy_dot_y / den;
    for (Index j = 0; j < values.rows(); ++j) {
      if (!head.sees(t, j)) continue;
      const Index u = head.normalizing_query(t, j);
      const A dscore = head.scale() * head.mix(t, j) * dden;
      sums.mix(head.query_block(t), head.key_block(j)) += head.normalizing_score(t, j) * dden;
      add_scaled<A>(dscore, head.key.plain.row_of(j), sums.query.plain.row_of(u));
      add_scaled<A>(dscore, head.query.plain.row_of(u), sums.key.plain.row_of(j));
    }
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

// Checks a call, and writes its gradients or adds to them.
template <AttentionVariant V, class T>
void write_gradients(const V& attention, const OperandViews<T>& of,
                     const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                     Update update, const TokenMasks& masks) {
  using A = Accumulator<T>;
  const Shape shape = of.shape();
  const Problem problem = checked_mhla(attention, shape, masks);
  require_output_fit(dy, "dy", shape);
  checked_gradients(shape, gradients);

  GradientSums<T> sums(shape);
  Owned<A, 3> grad_mix(shape.mix_heads, shape.mix_query_blocks, shape.mix_key_blocks);
  for_each_head(shape, [&](Index n, Index h, Index kv_head) {
    const TensorView<const A, 2> mix_of_head = matrix_view(of.mix, shape.mix_of(n, h));
    const Matrix<A> values = head_of(of.v, n, kv_head);
    const Matrix<A> grad_out = head_of(dy, n, h);
    const MhlaHead<V, A> head = mhla_head(attention, problem, masks, of, n, h);
    MhlaGradients<A> grad{zero_features<A>(shape.query_tokens, problem.feature_dim),
                          zero_features<A>(shape.key_tokens, problem.feature_dim),
                          Matrix<A>(problem.query_blocks, problem.key_blocks)};
    for (Index t = 0; t < shape.query_tokens; ++t)
      add_token_gradient(head, t, values, grad_out.row_of(t), grad,
                         [&](Index j) { return sums.value.row_of(n, kv_head, j); });
    add_mixing_gradient(attention, problem, mix_of_head, grad.mix,
                        matrix_view(grad_mix.view(), shape.mix_of(n, h)));
    add_input_gradients(head, grad.query, grad.key, h, kv_head, sums);
  });
  sums.write_to(gradients, update);
  write_gradient(grad_mix, gradients.mix, update);
}
/// \endcond

/// y = attention(q, k, v, mix).
/// \throws ShapeError if variant, operands, masks and y do not fit.
template <AttentionVariant V, class Output, StorageScalar T = ElementOf<Output>>
void mhla_forward(const V& attention, InputView<T, 4> q, InputView<T, 4> k, InputView<T, 4> v,
                  InputView<Accumulator<T>, 3> mix, Output&& output, const TokenMasks& masks = {}) {
  const TensorView<T, 4> y = view_of(output);
  const OperandViews<T> of{q, k, v, mix};
  const Problem problem = checked_mhla(attention, of.shape(), masks);
  require_output_fit(y, "y", problem.shape);
  for_each_head(problem.shape, [&](Index n, Index h, Index kv_head) {
    using A = Accumulator<T>;
    const MhlaHead<V, A> head = mhla_head(attention, problem, masks, of, n, h);
    const Matrix<A> values = head_of(v, n, kv_head);
    Matrix<A> num(head.q.rows(), values.columns());
    for (Index t = 0; t < num.rows(); ++t) {
      for (Index j = 0; j < values.rows(); ++j)
        if (head.sees(t, j)) add_scaled<A>(head.weight(t, j), values.row_of(j), num.row_of(t));
      const A den = head.denominator(t);
      for (Index c = 0; c < num.columns(); ++c)
        store(y(n, h, t, c), den == A(0) ? A(0) : num(t, c) / den);
    }
  });
}

/// Gradients of sum(dy o y) in q, k, v and mix, each of which may be skipped.
/// \throws ShapeError if variant, operands, masks, dy and gradients do not fit.
template <AttentionVariant V, class Query, class T = std::remove_const_t<ElementOf<const Query>>>
requires StorageScalar<T>
void mhla_backward(const V& attention, const Query& query, InputView<T, 4> k, InputView<T, 4> v,
                   InputView<Accumulator<T>, 3> mix, InputView<T, 4> dy,
                   const GradientViews<std::type_identity_t<T>>& gradients,
                   Update update = Update::overwrite, const TokenMasks& masks = {}) {
  write_gradients<V, T>(attention, {view_of(query), k, v, mix}, dy, gradients, update, masks);
}

/// The attention matrix of one batch item and head: weights [query tokens, key tokens]; if
/// normalized, y = weights v. A query whose denominator is 0 has a row of zeros.
/// \throws ShapeError if variant, operands, masks and weights do not fit.
template <AttentionVariant V, class Query, class T = std::remove_const_t<ElementOf<const Query>>>
requires StorageScalar<T>
void mhla_weights(const V& attention, const Query& query, InputView<T, 4> k,
                  InputView<Accumulator<T>, 3> mix, Index batch, Index head_index, Weights form,
                  TensorView<Accumulator<std::type_identity_t<T>>, 2> weights,
                  const TokenMasks& masks = {}) {
  const OperandViews<T> of{view_of(query), k, k, mix};
  const Problem problem = checked_mhla(attention, of.shape(), masks);
  require_weights_fit(weights, problem.shape, batch, head_index);
  using A = Accumulator<T>;
  const MhlaHead<V, A> head = mhla_head(attention, problem, masks, of, batch, head_index);
  for (Index t = 0; t < head.q.rows(); ++t) {
    const A den = form == Weights::normalized ? head.denominator(t) : A(1);
    for (Index j = 0; j < head.k.rows(); ++j)
      weights(t, j) = den == A(0) || !head.sees(t, j) ? A(0) : head.weight(t, j) / den;
  }
}

/// \cond INTERNAL
MHLA_ANY_CALL(void mhla_forward, { explain_oracle<Given...>(); })
MHLA_ANY_CALL(void mhla_backward, { explain_oracle<Given...>(); })
MHLA_ANY_CALL(void mhla_weights, { explain_oracle<Given...>(); })
/// \endcond

/// \}

}  // namespace reference

MHLA_NAMESPACE_END
