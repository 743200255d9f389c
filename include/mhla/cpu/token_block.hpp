// SPDX-License-Identifier: MIT
// Token tiles: rows are gathered from wherever a block's tokens lie into a packed panel, through
// phi and the rotation, and gradients are carried back the same way. The only code that touches
// q, k, v, y and their gradients.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/block_table.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/cpu/rotation_table.hpp>
#include <mhla/policy/feature_map.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// The tokens of one (batch, head) of a tensor: [tokens, dim].
template <class T>
struct TokenRows {
  T* data;
  Index dim;
  Index token_stride;
  Index stride;

  TokenRows(const TensorView<T, 4>& view, Index batch, Index head)
      : data(view.data + batch * view.stride[0] + head * view.stride[1]),
        dim(view.extent[3]),
        token_stride(view.stride[2]),
        stride(view.stride[3]) {}

  T* row(Index token) const { return data + token * token_stride; }
};

/// Room for one row of a tensor before phi and for its gradient, where a row must be contiguous.
template <class A>
struct RowBuffers {
  Span<A> input;     // [key_dim]
  Span<A> gradient;  // [key_dim]
};

// f(row of the tile, token, coordinate on the last axis, run)
template <class F>
void for_each_token(const BlockTable& table, const TokenTile& tile, F&& f) {
  Index row = 0;
  for (Index r = tile.first_run; r < tile.first_run + tile.runs; ++r) {
    const TokenRun& run = table.runs[r];
    Index coordinate[3] = {run.coordinate[0], run.coordinate[1], run.coordinate[2]};
    for (Index i = 0; i < run.count; ++i, ++row, ++coordinate[2]) f(row, run.first + i, coordinate);
  }
}

// to[c] = f(from[c * stride]); the branch lets the compiler vectorize the contiguous case.
template <class To, class From, class F>
void transform_row(To* to, const From* from, Index stride, Index count, F&& f) {
  if (stride == 1) {
    for (Index c = 0; c < count; ++c) to[c] = f(from[c]);
  } else {
    for (Index c = 0; c < count; ++c) to[c] = f(from[c * stride]);
  }
}

/// Packs the values (or output gradients) of a tile.                         // [tile tokens, dim]
template <class T, class A>
void gather(const BlockTable& table, const TokenTile& tile, const TokenRows<T>& tokens,
            const Panel<A>& packed) {
  for_each_token(table, tile, [&](Index row, Index token, const Index(&)[3]) {
    transform_row(packed.row(row), tokens.row(token), tokens.stride, tokens.dim,
                  [](auto x) { return static_cast<A>(load(x)); });
  });
}

/// The adjoint of `gather`, and the way out of every result.
template <class T, class A>
void scatter(const BlockTable& table, const TokenTile& tile, const Panel<const A>& packed,
             const TokenRows<T>& tokens, Update update) {
  for_each_token(table, tile, [&](Index row, Index token, const Index(&)[3]) {
    const A* from = packed.row(row);
    T* to = tokens.row(token);
    if (update == Update::overwrite) {
      for (Index c = 0; c < tokens.dim; ++c) store(to[c * tokens.stride], from[c]);
    } else {
      for (Index c = 0; c < tokens.dim; ++c)
        store(to[c * tokens.stride], static_cast<A>(load(to[c * tokens.stride])) + from[c]);
    }
  });
}

/// features = s phi(x), rotated = s R phi(x) for the tokens of a tile. Both panels are one where
/// nothing rotates.                                                  // [tile tokens, feature_dim]
template <class Map, class T, class A>
void pack_features(const Map& map, const RotationTable<A>& rotation, A scale,
                   const BlockTable& table, const TokenTile& tile, const TokenRows<T>& tokens,
                   const Panel<A>& features, const Panel<A>& rotated,
                   const RowBuffers<A>& buffers) {
  for_each_token(table, tile, [&](Index row, Index token, const Index(&coordinate)[3]) {
    A* out = features.row(row);
    const auto* in = tokens.row(token);
    if constexpr (ElementwiseFeatureMap<Map>) {
      transform_row(out, in, tokens.stride, tokens.dim,
                    [&](auto x) { return scale * map.value(static_cast<A>(load(x))); });
    } else {
      transform_row(buffers.input.data, in, tokens.stride, tokens.dim,
                    [](auto x) { return static_cast<A>(load(x)); });
      map.value(Span<const A>(buffers.input), Span<A>{out, features.cols});
      for (Index c = 0; c < features.cols; ++c) out[c] *= scale;
    }
    if (rotation.rotates()) {
      A* turned = rotated.row(row);
      for (Index c = 0; c < features.cols; ++c) turned[c] = out[c];
      rotation.rotate(turned, coordinate);
    }
  });
}

/// The gradients of a tile's scaled features, [tile tokens, feature_dim] each and used up: of the
/// rotated ones, and of the unrotated ones, which the normalizer sees (no rows without one).
template <class A>
struct FeatureGradients {
  Panel<A> rotated;
  Panel<A> unrotated;
};

/// The adjoint of `pack_features`: dx (+)= J^T s (R^T g^r + g), J of phi at x.
template <class Map, class T, class A>
void unpack_feature_gradient(const Map& map, const RotationTable<A>& rotation, A scale,
                             const BlockTable& table, const TokenTile& tile,
                             const TokenRows<const T>& tokens, const FeatureGradients<A>& gradients,
                             const TokenRows<T>& destination, Update update,
                             const RowBuffers<A>& buffers) {
  const Index features = gradients.rotated.cols;
  for_each_token(table, tile, [&](Index row, Index token, const Index(&coordinate)[3]) {
    A* g = gradients.rotated.row(row);
    if (rotation.rotates()) rotation.rotate_back(g, coordinate);
    if (gradients.unrotated.rows > 0)
      add_scaled_row(g, A(1), gradients.unrotated.row(row), features);
    for (Index c = 0; c < features; ++c) g[c] *= scale;

    const Span<A> x = buffers.input;
    const Span<A> dx = buffers.gradient;
    transform_row(x.data, tokens.row(token), tokens.stride, tokens.dim,
                  [](auto stored) { return static_cast<A>(load(stored)); });
    if constexpr (ElementwiseFeatureMap<Map>) {
      for (Index c = 0; c < x.size; ++c) dx[c] = map.derivative(x[c]) * g[c];
    } else {
      map.vjp(Span<const A>(x), Span<const A>{g, features}, dx);
    }
    T* to = destination.row(token);
    if (update == Update::overwrite) {
      for (Index c = 0; c < dx.size; ++c) store(to[c * destination.stride], dx[c]);
    } else {
      for (Index c = 0; c < dx.size; ++c)
        store(to[c * destination.stride], static_cast<A>(load(to[c * destination.stride])) + dx[c]);
    }
  });
}

}  // namespace cpu

MHLA_NAMESPACE_END
