// SPDX-License-Identifier: MIT
// phi of every token of one head, and phi rotated by the token's position, with the adjoint of
// both. The numerator of attention uses the rotated features, the normalizer the unrotated ones
// (released video and language-model code).
#pragma once

#include <mhla/policy/variant.hpp>
#include <mhla/reference/token_matrix.hpp>

MHLA_NAMESPACE_BEGIN

namespace reference {

/// Features [tokens, feature_dim] of every token of one head: phi(x_t), and R_t phi(x_t).
template <class A>
struct TokenFeatures {
  Matrix<A> plain;
  Matrix<A> rotated;
};

template <class A>
TokenFeatures<A> zero_features(Index tokens, Index feature_dim) {
  return {Matrix<A>(tokens, feature_dim), Matrix<A>(tokens, feature_dim)};
}

/// out = phi(in) of one row.
template <FeatureMap Map, class A>
void apply_feature_map(const Map& map, Span<const A> in, Span<A> out) {
  if constexpr (RowwiseFeatureMap<Map>) {
    map.value(in, out);
  } else {
    for (Index c = 0; c < in.size; ++c) out[c] = map.value(in[c]);
  }
}

/// out = J(in)^T grad of one row.
template <FeatureMap Map, class A>
void apply_feature_map_adjoint(const Map& map, Span<const A> in, Span<const A> grad, Span<A> out) {
  if constexpr (RowwiseFeatureMap<Map>) {
    map.vjp(in, grad, out);
  } else {
    for (Index c = 0; c < in.size; ++c) out[c] = map.derivative(in[c]) * grad[c];
  }
}

/// Rotates the feature pairs of `token` by the angles of its position; `direction` is +1, or -1 for
/// the inverse, which is the adjoint.
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

/// phi and R phi of every row of `inputs`, whose tokens lie on `grid`.
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

/// grad_in += J_phi(in)^T (grad.plain + R^T grad.rotated), for one token. Overwrites `grad`'s row.
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

}  // namespace reference

MHLA_NAMESPACE_END
