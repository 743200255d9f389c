// SPDX-License-Identifier: MIT
// Token tiles: the rows of a block's tokens are gathered into a packed panel, through phi and the
// rotation, and gradients are scattered back. The only code that touches q, k, v, y and their
// gradients.
#pragma once

#include <mhla/cpu/kernels_elsewhere.hpp>
#include <mhla/cpu/memory.hpp>

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
      : data(view.data), dim(view.extent[3]), token_stride(0), stride(1) {
    if (view.data == nullptr) return;  // an empty tensor
    data += batch * view.stride[0] + head * view.stride[1];
    token_stride = view.stride[2];
    stride = view.stride[3];
  }

  StridedRows<T> strided(const TokenRun& run) const {
    return {data + run.first * token_stride, run.count, dim, token_stride, stride};
  }
};

/// Calls visit(run, row) for the runs of a tile, whose tokens are its rows from `row` on.
template <class Visitor>
void for_each_run(const BlockTable& table, const TokenTile& tile, const Visitor& visit) {
  Index row = 0;
  for (Index r = tile.first_run; r < tile.first_run + tile.runs; ++r) {
    visit(table.runs[r], row);
    row += table.runs[r].count;
  }
}

/// Whether kernels that compute in A read and write rows of storage type T in place.
template <class A, class T>
bool is_in_place(const TokenRows<T>& tokens) {
  using Stored = std::remove_const_t<T>;
  constexpr bool is_float_in_16_bits =
      std::is_same_v<A, float> &&
      (std::is_same_v<Stored, BFloat16> || std::is_same_v<Stored, Half>);
  return (std::is_same_v<Stored, A> || is_float_in_16_bits) && tokens.stride == 1;
}
/// Whether products do.
template <class A, class T>
bool is_in_place_of_products(const TokenRows<T>& tokens) {
  return std::is_same_v<std::remove_const_t<T>, A> && is_in_place<A>(tokens);
}
template <class T>
Rows<T> in_place(const BlockTable& table, const TokenTile& tile, const TokenRows<T>& tokens) {
  return {tokens.data, tokens.token_stride, table.places_of(tile)};
}
/// These rows as rows of A; none for another type.
template <class A, class T>
Rows<A> in_place_of_products(const BlockTable& table, const TokenTile& tile,
                             const TokenRows<T>& tokens) {
  if constexpr (std::is_same_v<std::remove_const_t<T>, std::remove_const_t<A>>) {
    return in_place(table, tile, tokens);
  } else {
    return {};
  }
}

/// Packs the rows of a tile, each times its weight if there are weights.
//                                                                           // [tile tokens, dim]
template <class T, class A>
MHLA_OUT_OF_LINE void gather(const BlockTable& table, const TokenTile& tile,
                             const TokenRows<const T>& tokens, Span<const A> weights,
                             const Panel<A>& packed) {
  if (is_in_place<A>(tokens))
    return weighted_rows<A, T>(packed, weights, in_place(table, tile, tokens));
  for_each_run(table, tile, [&](const TokenRun& run, Index row) {
    gather_strided<A, T>(packed.row_range(row, run.count), tokens.strided(run));
  });
  if (weights.size > 0) weighted_rows<A, A>(packed, weights, packed.placed());
}

/// The rows of a tile: in place, or gathered into `buffer`.
template <class T, class A>
Rows<const A> readable_rows(const BlockTable& table, const TokenTile& tile,
                            const TokenRows<const T>& tokens, Span<A> buffer) {
  if (is_in_place_of_products<A>(tokens)) return in_place_of_products<const A>(table, tile, tokens);
  const Panel<A> packed = panel(buffer.data, tile.tokens, tokens.dim);
  gather(table, tile, tokens, {}, packed);
  return {packed.data, packed.stride};
}

/// A tile of consecutive tokens as a panel in place, if products can use it; no rows otherwise.
template <class A, class T>
Panel<A> panel_in_place(const BlockTable& table, const TokenTile& tile,
                        const TokenRows<T>& tokens) {
  if (tile.runs != 1 || !is_in_place_of_products<std::remove_const_t<A>>(tokens)) return {};
  const Rows<A> rows = in_place_of_products<A>(table, tile, tokens);
  return {rows[0], tile.tokens, tokens.dim, rows.stride};
}

/// A tile as a panel: in place, or gathered into `buffer`.
template <class T, class A>
Panel<const A> readable_panel(const BlockTable& table, const TokenTile& tile,
                              const TokenRows<const T>& tokens, Span<A> buffer) {
  const Panel<const A> there = panel_in_place<const A>(table, tile, tokens);
  if (there.rows > 0) return there;
  const Panel<A> packed = panel(buffer.data, tile.tokens, tokens.dim);
  gather(table, tile, tokens, {}, packed);
  return packed;
}

/// The adjoint of `gather`; writes every result.
template <class T, class A>
MHLA_OUT_OF_LINE void scatter(const BlockTable& table, const TokenTile& tile,
                              const Panel<const A>& packed, Span<const A> weights,
                              const TokenRows<T>& tokens, Update update) {
  if (is_in_place<A>(tokens))
    return store_rows<T, A>(in_place(table, tile, tokens), weights, packed, update);
  for_each_run(table, tile, [&](const TokenRun& run, Index row) {
    scatter_strided<T, A>(
        tokens.strided(run),
        {weights.data + (weights.size > 0 ? row : 0), (std::min)(weights.size, run.count)},
        packed.row_range(row, run.count), update);
  });
}

/// R or R^T of the rows of a tile.
template <class A>
MHLA_OUT_OF_LINE void rotate_rows(const RotationTable<A>& rotation, const BlockTable& table,
                                  const TokenTile& tile, const Panel<A>& rows, Turn turn) {
  for_each_run(table, tile, [&](const TokenRun& run, Index row) {
    (rotation.*rotation.turn_rows)(rows.row_range(row, run.count), run.coordinate, turn);
  });
}

/// What the features of a tile, s R phi(x), are computed from.
template <class Map, class T, class A>
struct TileFeatures {
  const Map& map;
  const RotationTable<A>& rotation;
  A scale;
  const BlockTable& table;
  const TokenTile& tile;
  TokenRows<const T> tokens;
};

/// Panels of a tile's features, [tile tokens, feature_dim]: the same one twice if there is no
/// rotation, or if unrotated features are not needed.
template <class A>
struct FeaturePanels {
  Panel<A> features;
  Panel<A> rotated;
};

/// features = s phi(x), rotated = s R phi(x), which is left where both are one panel.
template <class Map, class T, class A>
MHLA_OUT_OF_LINE void pack_features(const TileFeatures<Map, T, A>& of, const FeaturePanels<A>& to,
                                    const RowBuffers<A>& buffers) {
  const auto& [map, rotation, scale, table, tile, tokens] = of;
  const auto& [features, rotated] = to;
  if (ElementwiseFeatureMap<Map> && is_in_place<A>(tokens)) {
    if constexpr (ElementwiseFeatureMap<Map>)
      map_rows<Map, T>(map, scale, in_place(table, tile, tokens), features);
  } else {
    const Rows<const A> x = readable_rows<T, A>(table, tile, tokens, buffers.input);
    if constexpr (ElementwiseFeatureMap<Map>) {
      map_rows<Map, A>(map, scale, x, features);
    } else {
      for (Index r = 0; r < features.rows; ++r) {
        A* const out = features.row(r);
        map.value(Span<const A>{x[r], tokens.dim}, Span<A>{out, features.cols});
        for (Index c = 0; c < features.cols; ++c) out[c] *= scale;
      }
    }
  }
  if (!rotation.rotates()) return;
  if (rotated.data != features.data)
    for (Index r = 0; r < features.rows; ++r)
      copy_row(rotated.row(r), features.row(r), features.cols);
  rotate_rows(rotation, table, tile, rotated, Turn::forward);
}

/// Packs the features of a tile into panels `in`, by default those of the slot.
template <class Map, class T, class A>
FeaturePanels<A> pack_features(const TileFeatures<Map, T, A>& of, const SlotScratch<A>& scratch,
                               const TilePanels<A>& in) {
  const Index dim = feature_dim(of.map, of.tokens.dim);
  const FeaturePanels<A> to{panel(in.features.data, of.tile.tokens, dim),
                            panel(in.rotated.data, of.tile.tokens, dim)};
  pack_features(of, to, scratch.row);
  return to;
}
template <class Map, class T, class A>
FeaturePanels<A> pack_features(const TileFeatures<Map, T, A>& of, const SlotScratch<A>& scratch) {
  return pack_features(of, scratch, scratch);
}

/// The gradients of a tile's scaled features: of the rotated ones, which is overwritten, and of the
/// unrotated ones, which the normalizer uses: weight_t times row t of `rows`, or one row for all.
template <class A>
struct FeatureGradients {
  Panel<A> rotated;           // [tile tokens, feature_dim]
  Span<const A> weights{};    // [tile tokens]; empty: all 1
  Rows<const A> unrotated{};  // rows of feature_dim; null without a normalizer
};

/// One row for every token.
template <class A>
Rows<const A> every_row(Span<A> row) {
  return {row.data, 0};
}

/// The adjoint of `pack_features`: dx (+)= J^T s (R^T g^r + g), J of phi at x.
template <class Map, class T, class A>
void unpack_feature_gradient(const TileFeatures<Map, T, A>& of,
                             const FeatureGradients<A>& gradients, const TokenRows<T>& destination,
                             Update update, const RowBuffers<A>& buffers) {
  const auto& [map, rotation, scale, table, tile, tokens] = of;
  const Panel<A>& g = gradients.rotated;
  if (rotation.rotates()) rotate_rows(rotation, table, tile, g, Turn::back);
  if constexpr (ElementwiseFeatureMap<Map>)
    if (is_in_place<A>(tokens) && is_in_place<A>(destination))
      return unmap_rows<Map, T>(map, scale, in_place(table, tile, tokens), g, gradients.weights,
                                gradients.unrotated, in_place(table, tile, destination), update);
  const Rows<const A> x = readable_rows<T, A>(table, tile, tokens, buffers.input);
  const Panel<A> dx = panel(buffers.gradient.data, tile.tokens, tokens.dim);
  if constexpr (ElementwiseFeatureMap<Map>) {
    unmap_rows<Map, A>(map, scale, x, g, gradients.weights, gradients.unrotated, dx.placed(),
                       Update::overwrite);
  } else {
    for (Index r = 0; r < g.rows; ++r) {
      if (gradients.unrotated.data != nullptr)
        add_scaled_row(g.row(r), gradients.weights.size > 0 ? gradients.weights[r] : A(1),
                       gradients.unrotated[r], g.cols);
      for (Index c = 0; c < g.cols; ++c) g.row(r)[c] *= scale;
      map.vjp(Span<const A>{x[r], tokens.dim}, Span<const A>{g.row(r), g.cols},
              Span<A>{dx.row(r), dx.cols});
    }
  }
  scatter<T, A>(table, tile, dx, {}, destination, update);
}

}  // namespace cpu

MHLA_NAMESPACE_END
