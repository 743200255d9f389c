// SPDX-License-Identifier: MIT
// What a call's geometry and rotation become in device memory: tables, which tables.cuh fills.
//
// The tokens of each block: blocks are padded to one length, so that every product is a batch of
// equal ones; entries after a block's last token are absent. Packed and padded batches differ only
// in their tables. And the cosine and sine of every position on every axis, computed in double.
#pragma once

#include <mhla/cuda/chip/divisor.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// One sequence's blocks: a range of the table's.
struct Sequence {
  Index begin;  // its first token
  Index length;
  Index first_block;
  Index blocks;
};

/// A token's entry. Absent entries have token -1 and coordinates 0.
struct alignas(16) Place {
  std::int32_t token;          // in the tensors' token axis
  std::int32_t coordinate[3];  // in its sequence's grid, from the table's origin on
};
inline constexpr Place absent{-1, {0, 0, 0}};

/// The blocks of a batch item; all items have the same.
struct BlockTable {
  Grid grid;                    // of the longest sequence
  BlockRange range;             // of its blocks: all, or a stage's
  BlockRange held;              // blocks whose tokens tensors hold: these, or more
  Index origin[3] = {0, 0, 0};  // of coordinates, in the grid
  Index blocks = 0;             // of all sequences
  Index block_tokens = 0;       // of the longest block
  Span<Place> places;           // [blocks, block tokens]
  Span<Index> mix_rows;         // [blocks]: a block's row, or column, of the mixing matrix
  /// Tokens that take part, [batch, tokens]; without data, all.
  TensorView<const std::uint8_t, 2> mask;

  /// The block of an entry, and its first entry. Entries are below 2^31: chips divide no 64 bits.
  MHLA_HOST_DEVICE int block_of(int entry) const {
    return static_cast<int>(static_cast<std::uint32_t>(entry) /
                            static_cast<std::uint32_t>(block_tokens));
  }
  MHLA_HOST_DEVICE int begin_of(int block) const { return block * static_cast<int>(block_tokens); }
  MHLA_HOST_DEVICE int tiles_of_block(int tile_tokens) const {
    return ceil_div(static_cast<int>(block_tokens), tile_tokens);
  }
  MHLA_HOST_DEVICE int entries() const { return begin_of(static_cast<int>(blocks)); }

  MHLA_HOST_DEVICE Place place(Index item, Index entry) const {
    const Place found = places[entry];
    if (found.token >= 0 && mask.data != nullptr && mask(item, found.token) == 0) return absent;
    return found;
  }
};

/// Calls f(sequence) for the sequences of one batch item, in order.
template <AttentionVariant V, class F>
void for_each_sequence(const V&, const Grid& grid, F&& f) {
  f(Sequence{0, grid.num_tokens(), 0, grid.num_blocks()});
}
template <class A, class Offset, class F>
void for_each_sequence(const Packed<A, Offset>& packed, const Grid& grid, F&& f) {
  Index blocks = 0;
  for (Index s = 0; s < packed.sequences(); ++s) {
    const Index own = ceil_div(packed.length(s), grid.block[2]);
    f(Sequence{packed.begin(s), packed.length(s), blocks, own});
    blocks += own;
  }
}

/// Takes the table's memory from the arena.
template <AttentionVariant V>
BlockTable block_table(Arena& arena, const V& attention, const Grid& grid, const BlockRange& range,
                       const BlockRange& held, const TensorView<const std::uint8_t, 2>& mask) {
  BlockTable table;
  table.grid = grid;
  table.range = range;
  table.held = held;
  table.mask = mask;
  if constexpr (is_packed<V>) {
    for_each_sequence(attention, grid, [&](const Sequence& s) { table.blocks += s.blocks; });
  } else {
    table.blocks = range.count;
  }
  table.block_tokens = grid.block_tokens();
  if (grid.num_tokens() > 0x7fffffff)  // of which a stage may have a few
    throw ShapeError(
        {"mhla: on CUDA a sequence has at most 2147483647 tokens, not ", grid.num_tokens()});
  if (checked_mul(table.blocks, table.block_tokens) > 0x7fffffff)
    throw ShapeError(
        {"mhla: on CUDA the blocks of a batch item, padded to one length, have at most ",
         "2147483647 tokens"});
  if (mask.data != nullptr && (mask.stride[1] > 0x7fffffff || mask.stride[1] < -0x7fffffff))
    throw ShapeError({"mhla: on CUDA the tokens of a mask are at most 2147483647 bytes apart, not ",
                      mask.stride[1]});
  table.places = arena.take<Place>(checked_mul(table.blocks, table.block_tokens));
  table.mix_rows = arena.take<Index>(table.blocks);
  return table;
}

/// How rows of panels map to tokens: of the queries, or of the keys, whose group has size 1.
struct PanelRows {
  BlockTable table;
  Index batch;
  Index kv_heads;
  Index group_size;  // heads of a kv head

  MHLA_HOST_DEVICE Index units() const { return batch * kv_heads; }
  MHLA_HOST_DEVICE Index of_block() const { return group_size * table.block_tokens; }
  MHLA_HOST_DEVICE Index of_unit() const { return table.blocks * of_block(); }
  MHLA_HOST_DEVICE Index count() const { return units() * of_unit(); }
};

/// Finds rows in kernels, which divide by products. There are less than 2^31 rows.
struct RowFinder {
  Divisor block_tokens;
  Divisor group_size;
  Divisor blocks;
  Divisor kv_heads;
  BlockTable table;

  explicit RowFinder(const PanelRows& rows)
      : block_tokens(rows.table.block_tokens),
        group_size(rows.group_size),
        blocks(rows.table.blocks),
        kv_heads(rows.kv_heads),
        table(rows.table) {}

  struct Indices {
    std::uint32_t entry;  // in its block
    std::uint32_t g;      // head of the kv head
    std::uint32_t block;
    std::uint32_t unit;
  };
  MHLA_HOST_DEVICE Indices indices(std::uint32_t row) const {
    const std::uint32_t entry = block_tokens.divide(row);
    const std::uint32_t g = group_size.divide(row);
    const std::uint32_t block = blocks.divide(row);
    return {entry, g, block, row};
  }

  struct Row {
    std::uint32_t item;
    std::uint32_t head;
    Place place;

    MHLA_HOST_DEVICE bool present() const { return place.token >= 0; }
    /// Where its first element is, if it is present.
    template <class T>
    MHLA_HOST_DEVICE Index offset_in(const TensorView<T, 4>& tensor) const {
      return item * tensor.stride[0] + head * tensor.stride[1] + place.token * tensor.stride[2];
    }
  };
  MHLA_HOST_DEVICE Row operator[](std::uint32_t row) const {
    const Indices at = indices(row);
    std::uint32_t item = at.unit;
    const std::uint32_t head = kv_heads.divide(item) * group_size.divisor() + at.g;
    return {item, head, table.place(item, at.block * block_tokens.divisor() + at.entry)};
  }
};

/// The cosine and sine of a rotation's pair at a coordinate.
template <class A>
struct alignas(2 * sizeof(A)) Angle {
  A cosine;
  A sine;
};

/// Where a token's angles of adjacent pairs are: in row `first` + the sum of coordinate * step.
struct alignas(16) AngleRow {
  std::int32_t step[3];
  std::int32_t first;

  MHLA_HOST_DEVICE std::int32_t of(const std::int32_t (&coordinate)[3]) const {
    return first + coordinate[0] * step[0] + coordinate[1] * step[1] + coordinate[2] * step[2];
  }
};

/// Rows of angles, one per pair: a row for every coordinate of every axis; and, where a kernel
/// reads pairs of several axes at once, one for every combination of their coordinates. What
/// belongs to other axes is zero.
template <class A>
struct RotationTable {
  struct Axis {
    Index first = 0;      // pair
    Index count = 0;      // pairs
    Index begin = 0;      // coordinate of the first position
    Index positions = 0;  // coordinates
  };
  RotationPairs layout{0, 0};
  Axis axis[3];
  Index first_row[3][3] = {{-1, -1, -1}, {-1, -1, -1}, {-1, -1, -1}};  // of axes a to b; or none
  Index pairs = 0;                                                     // of a row
  Index strip = 0;        // order of a row's pairs: see pair_of
  Span<Angle<A>> angles;  // [rows, pairs]
  Span<AngleRow> halves;  // [2, strips]: of the halves of strips

  MHLA_HOST_DEVICE int axis_of(Index pair) const {
    return pair < axis[0].count ? 0 : pair < axis[2].first ? 1 : 2;
  }
  /// Rows of axes a to b.
  MHLA_HOST_DEVICE Index rows(int a, int b) const {
    Index product = 1;
    for (int x = a; x <= b; ++x) product *= axis[x].positions;
    return product;
  }

  /// The first pair of half h of strip s.
  MHLA_HOST_DEVICE Index first_pair(Index h, Index s) const {
    return layout.gap == 1 ? h * (pairs / 2) + s * (strip / 2) : s * strip + h * (strip / 2);
  }
  MHLA_HOST_DEVICE AngleRow row_of(Index h, Index s) const {
    const int a = axis_of(first_pair(h, s));
    const int b = axis_of(first_pair(h, s) + strip / 2 - 1);
    AngleRow row{{0, 0, 0}, static_cast<std::int32_t>(first_row[a][b])};
    for (int x = a; x <= b; ++x) row.step[x] = static_cast<std::int32_t>(rows(x + 1, b));
    return row;
  }
  /// The pair whose angle is n-th in a row. Kernels that process a row in strips of elements (see
  /// fused/features.cuh) read vectors of two angles, of which those of all strips are adjacent.
  MHLA_HOST_DEVICE Index pair_of(Index n) const {
    if (strip == 0) return n;
    const Index strips = pairs / strip;
    const Index of_strip = n / 2 / strips * 2 + n % 2;
    return first_pair(of_strip / (strip / 2), n / 2 % strips) + of_strip % (strip / 2);
  }

  /// Rotates pair `c` of the features of a token, where angles are in order of pairs.
  MHLA_HOST_DEVICE void turn(const std::int32_t (&coordinate)[3], Index c, const A* in, A* out,
                             Turn turn) const {
    const int a = axis_of(c);
    const Angle<A> angle = angles[(first_row[a][a] + coordinate[a]) * pairs + c];
    const A sine = turn == Turn::forward ? angle.sine : -angle.sine;
    const Index i = c * layout.step;
    const A x = in[i];
    const A y = in[i + layout.gap];
    out[i] = x * angle.cosine - y * sine;
    out[i + layout.gap] = y * angle.cosine + x * sine;
  }
};

/// Takes the memory of a table for every position in a box from the arena.
template <class A, class Rotation>
RotationTable<A> rotation_table(Arena& arena, const Rotation& rotation, int rank, Index feature_dim,
                                const GridBox& box, Index strip = 0) {
  RotationTable<A> table;
  if constexpr (!std::is_same_v<Rotation, NoRotation>) {
    table.layout = rotation.pairs(feature_dim);
    table.pairs = feature_dim / 2;
    table.strip = strip;
    Index first = 0;
    Index rows = 0;
    const auto add_rows = [&](int a, int b) {
      if (table.first_row[a][b] >= 0) return;
      table.first_row[a][b] = rows;
      rows += table.rows(a, b);
    };
    for (int a = 3 - rank; a < 3; ++a) {
      auto& axis = table.axis[a];
      axis.first = first;
      axis.count = rotation.axis_pairs(a - 3 + rank, rank, table.pairs);
      axis.begin = box.begin[a];
      axis.positions = box.extent(a);
      first += axis.count;
      add_rows(a, a);
    }
    const Index strips = strip == 0 ? 0 : table.pairs / strip;
    for (Index h = 0; h < 2; ++h)
      for (Index s = 0; s < strips; ++s) {
        const Index pair = table.first_pair(h, s);
        add_rows(table.axis_of(pair), table.axis_of(pair + strip / 2 - 1));
      }
    if (rows > 0x7fffffff)
      throw ShapeError("mhla: on CUDA a rotation has at most 2147483647 rows of angles");
    table.angles = arena.take<Angle<A>>(checked_mul(rows, table.pairs));
    table.halves = arena.take<AngleRow>(2 * strips);
  }
  return table;
}

}  // namespace cuda

MHLA_NAMESPACE_END
