// SPDX-License-Identifier: MIT
// A unit's keys and values as the quadratic path takes them.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cpu/plan.hpp>
#include <mhla/cpu/quadratic/memory.hpp>
#include <mhla/cpu/quadratic/scores.hpp>
#include <mhla/cpu/tiles.hpp>
#include <mhla/cpu/unit.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::quadratic {

/// Rows of [key tokens, columns], of a unit whose sequence has `tokens`.
template <class A>
Panel<A> key_panel(Span<A> memory, Index tokens, Index columns) {
  return panel(memory.data, memory.size > 0 ? tokens : 0, columns);
}
/// Of [rows, key tokens].
template <class A>
Panel<A> key_columns(Span<A> memory, const Extents& e, Index rows, Index tokens) {
  return {memory.data, memory.size > 0 ? rows : 0, tokens, key_stride(e.key_tokens)};
}

inline Span<const BlockSpan> blocks_of(const BlockTable& table, const SequenceSpan& sequence) {
  return {table.blocks.data + sequence.first_block, sequence.blocks};
}

/// The tiles of a sequence.
inline Span<const TokenTile> tiles_of(const BlockTable& table, const SequenceSpan& sequence) {
  if (sequence.blocks == 0) return {};
  const BlockSpan& all = table.blocks[sequence.first_block];
  return {table.tiles.data + all.first_tile, all.tiles};
}

/// A unit at work on the quadratic path.
template <class L, class T>
struct QuadraticUnit {
  using A = Accumulator<T>;

  const Operands<L, T>& operands;
  const Unit<A>& unit;
  const Memory<A>& memory;
  Span<const TokenTile> query_tiles;
  Span<const TokenTile> key_tiles;
  Span<const BlockSpan> key_blocks;
  Index key_tokens;
  Span<const KeyRange> ranges;

  MHLA_ONCE_A_CALL QuadraticUnit(const Operands<L, T>& of, const Unit<A>& at)
      : operands(of),
        unit(at),
        memory(at.memory.quadratic),
        query_tiles(tiles_of(of.plan.tables.queries, at.queries)),
        key_tiles(tiles_of(of.plan.tables.keys, at.keys)),
        key_blocks(blocks_of(of.plan.tables.keys, at.keys)),
        key_tokens(tokens_of(key_blocks)),
        ranges{memory.ranges.data, cut_keys(key_blocks, memory.ranges)} {}

  const Extents& extents() const { return operands.plan.extents; }
  /// Whether denominators have features of their own: those before the rotation.
  bool unrotated_too() const { return normalizes<L> && operands.plan.rotation.rotates(); }
  MHLA_ONCE_A_CALL Weights<A, sight_of<L>> weights(Index matrix) const {
    return {blocks_of(operands.plan.tables.queries, unit.queries), key_blocks,
            unit_mixing(operands.plan, unit, matrix)};
  }
  Panel<A> keys_transposed() const {
    return key_columns(memory.keys_transposed, extents(), extents().feature_dim, key_tokens);
  }
  Panel<A> unrotated_transposed() const {
    return key_columns(memory.unrotated_transposed, extents(), extents().feature_dim, key_tokens);
  }
  Panel<A> values_transposed() const {
    return key_columns(memory.values_transposed, extents(), extents().value_dim, key_tokens);
  }
  MHLA_ONCE_A_CALL KeyPanels<A> key_panels(const Panel<const A>& of_values) const {
    return {ranges, keys_transposed(), unrotated_transposed(), of_values};
  }
  /// In place, if one tile has all of them.
  MHLA_ONCE_A_CALL Panel<const A> values() const {
    if (key_tiles.size == 1) {
      const Panel<const A> there = panel_in_place<const A>(operands.plan.tables.keys, key_tiles[0],
                                                           key_rows(unit, operands.v));
      if (there.rows > 0) return there;
    }
    return key_panel(memory.values, key_tokens, extents().value_dim);
  }

  /// phi(k), v and what is transposed of them.
  MHLA_ONCE_A_CALL void pack_keys(const ExecutorRef& loop) const {
    loop.parallel_for(key_tiles.size,
                      [&](Index index, Index slot) { pack_keys(key_tiles[index], slot); });
  }

 private:
  // Optimized for size, as it calls what takes the time.
  MHLA_ONCE_A_CALL void pack_keys(const TokenTile& tile, Index slot) const {
    const BlockTable& table = operands.plan.tables.keys;
    const SlotScratch<A>& scratch = operands.plan.scratch[slot];
    const bool backward = operands.plan.is_backward;
    const auto rows = [&](Span<A> of_unit, Span<A> of_slot) {
      const Index columns = extents().feature_dim;
      return backward ? key_panel(of_unit, key_tokens, columns).row_range(tile.offset, tile.tokens)
                      : panel(of_slot.data, tile.tokens, columns);
    };
    const Panel<A> rotated = rows(memory.keys, scratch.rotated);
    const Panel<A> features =
        unrotated_too() ? rows(memory.unrotated_keys, scratch.features) : rotated;
    pack_features(features_of(operands, A(1), table, tile), key_rows(unit, operands.k),
                  FeaturePanels<A>{features, rotated}, scratch.row);
    transpose<A>(keys_transposed().col_range(tile.offset, tile.tokens), rotated);
    if (unrotated_too())
      transpose<A>(unrotated_transposed().col_range(tile.offset, tile.tokens), features);
    const TokenRows<const T> tokens = key_rows(unit, operands.v);
    if (backward) {
      transpose<A>(values_transposed().col_range(tile.offset, tile.tokens),
                   readable_panel<T>(table, tile, tokens, scratch.values));
    } else if (values().data == memory.values.data) {
      gather<T, A>(table, tile, tokens, {},
                   panel(memory.values.data + tile.offset * extents().value_dim, tile.tokens,
                         extents().value_dim));
    }
  }
};

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
