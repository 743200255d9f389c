// SPDX-License-Identifier: MIT
// The tables of a call, filled on the device in one launch: the tokens of each block, a rotation's
// angles, and the mixing matrix, packed. Sequences and frequencies are kernel arguments, so that
// nothing is copied and a graph can contain the call.
#pragma once

#include <mhla/cuda/chip/launch.cuh>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/tables.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Fills in the blocks of a sequence, entry by entry. Tokens are counted in 32 bits.
struct FillBlocks {
  std::int32_t extent[3];  // of its grid
  std::int32_t block[3];
  std::int32_t layout[2];  // blocks along the last two axes
  std::int32_t origin[3];  // of coordinates
  std::int32_t block_tokens;
  std::int32_t first_token;
  std::int32_t first_block;  // of the table's
  Index count;               // entries
  Place* places;
  Index* mix_rows;

  FillBlocks() = default;
  FillBlocks(const BlockTable& table, const Sequence& sequence, bool packed)
      : block_tokens(static_cast<std::int32_t>(table.block_tokens)),
        first_token(static_cast<std::int32_t>(sequence.begin)),
        first_block(static_cast<std::int32_t>(table.range.first)),
        count((packed ? sequence.blocks : table.blocks) * table.block_tokens),
        places(table.places.data + sequence.first_block * table.block_tokens),
        mix_rows(table.mix_rows.data + sequence.first_block) {
    Grid grid = table.grid;
    if (packed) grid.extent[2] = sequence.length;
    for (int a = 0; a < 3; ++a) {
      extent[a] = static_cast<std::int32_t>(grid.extent[a]);
      block[a] = static_cast<std::int32_t>((std::min)(grid.block[a], grid.extent[a]));
      origin[a] = static_cast<std::int32_t>(table.origin[a]);
    }
    for (int a = 0; a < 2; ++a) layout[a] = static_cast<std::int32_t>(grid.layout(a + 1));
  }

  MHLA_DEVICE std::int32_t left(int axis, std::int32_t first) const {
    const std::int32_t tokens = extent[axis] - first;
    return tokens < block[axis] ? tokens : block[axis];
  }
  MHLA_DEVICE void operator()(Index i) const {
    const auto row = static_cast<std::int32_t>(i / block_tokens);
    const auto entry = static_cast<std::int32_t>(i - Index{row} * block_tokens);
    if (entry == 0) machine::store_to(mix_rows + row, Index{row});
    const std::int32_t b = first_block + row;
    const std::int32_t of_plane = b / layout[1];
    const std::int32_t first_x = (b - of_plane * layout[1]) * block[2];
    const std::int32_t first_y = of_plane % layout[0] * block[1];
    const std::int32_t first_z = of_plane / layout[0] * block[0];
    const std::int32_t columns = left(2, first_x);
    const std::int32_t rows = left(1, first_y);
    const std::int32_t line = entry / columns;
    const std::int32_t x = first_x + entry - line * columns;
    const std::int32_t y = first_y + line % rows;
    const std::int32_t z = first_z + line / rows;
    const bool present = line / rows < left(0, first_z);
    const std::int32_t token = first_token + (z * extent[1] + y) * extent[2] + x;
    machine::store_to(
        places + i, present ? Place{token, {z - origin[0], y - origin[1], x - origin[2]}} : absent);
  }
};

/// Counts tokens as the tensors of a stage hold them.
struct CountTokens {
  Grid grid;
  BlockRange held;
  Span<Place> places;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    std::int32_t& token = places[i].token;
    if (token >= 0)
      token = static_cast<std::int32_t>(grid.tokens_before(held.end(), token) -
                                        grid.tokens_before(held.first, token));
  }
};

/// Fills in the angles of a few pairs, row by row, and where strips find theirs.
template <class A>
struct FillAngles {
  static constexpr int max_pairs = 256;

  RotationTable<A> table;
  Index first;  // pair
  Index count;  // angles of all pairs, or none
  double frequency[std::size_t{max_pairs}];

  MHLA_DEVICE void operator()(Index i) const {
    using std::cos;
    using std::sin;
    const Index strips = table.halves.size / 2;
    if (i < table.halves.size)
      machine::store_to(table.halves.data + i, table.row_of(i / strips, i % strips));
    const Index pair = table.pair_of(i % table.pairs);
    if (pair < first || pair >= first + max_pairs) return;
    const int axis = table.axis_of(pair);
    const Index coordinate = coordinate_of(axis, i / table.pairs);
    Angle<A> angle{A(0), A(0)};
    if (coordinate >= 0) {
      const auto position = static_cast<double>(table.axis[axis].begin + coordinate);
      const double radians = position * frequency[pair - first];
      angle = {static_cast<A>(cos(radians)), static_cast<A>(sin(radians))};
    }
    machine::store_to(table.angles.data + i, angle);
  }

 private:
  /// A row's coordinate on an axis, from the first position on; -1 if it has none there.
  MHLA_DEVICE Index coordinate_of(int axis, Index row) const {
    for (int a = 0; a <= axis; ++a)
      for (int b = axis; b < 3; ++b) {
        const Index of_span = row - table.first_row[a][b];
        if (table.first_row[a][b] >= 0 && of_span >= 0 && of_span < table.rows(a, b))
          return of_span / table.rows(axis + 1, b) % table.axis[axis].positions;
      }
    return -1;
  }
};

/// Packs the leading corner of mix, whatever its strides: [heads, query blocks, key blocks].
template <class A>
struct PackMixing {
  TensorView<const A, 3> mix;
  Index query_blocks;
  Index key_blocks;
  Span<A> packed;

  MHLA_DEVICE void operator()(Index i) const {
    const Index b = i % key_blocks;
    const Index rest = i / key_blocks;
    machine::store_to(packed.data + i,
                      machine::load_from(&mix(rest / query_blocks, rest % query_blocks, b)));
  }
};

/// All of them, or as many as fit into a kernel's arguments.
template <class A>
struct FillTables {
  static constexpr int threads = 256;
  static constexpr int shared_bytes = 0;
  static constexpr int min_blocks_per_sm = 2;
  static constexpr int max_sequences = 16;

  int sequences = 0;
  FillBlocks blocks[std::size_t{max_sequences}]{};
  FillAngles<A> angles{};
  PackMixing<A> mixing{};

  Index entries() const {
    Index count = angles.count + mixing.packed.size;
    for (int s = 0; s < sequences; ++s) count += blocks[s].count;
    return count;
  }
  MHLA_DEVICE void operator()(const machine::Block& block) const {
    machine::wait_for_earlier_kernels();
    Index i = block.number * threads + block.thread;
    if (i < angles.count) return angles(i);
    i -= angles.count;
    if (i < mixing.packed.size) return mixing(i);
    i -= mixing.packed.size;
    for (int s = 0; s < sequences; ++s) {
      if (i < blocks[s].count) return blocks[s](i);
      i -= blocks[s].count;
    }
  }
};

/// Fills the tables of a call; those of queries and keys may be the same. A stage's take a launch
/// more for each of them.
template <AttentionVariant V, class A>
void fill_tables(const CudaDevice& device, const V& attention, const BlockTable& queries,
                 const BlockTable& keys, const RotationTable<A>& rotation,
                 const PackMixing<A>& mixing) {
  using Rotation = std::remove_cvref_t<decltype(attention.rotation)>;
  FillTables<A> body;
  const auto run = [&] {
    machine::run(device, ceil_div(body.entries(), FillTables<A>::threads), body);
    body.sequences = 0;
    body.mixing.packed.size = body.angles.count = 0;
  };
  body.mixing = mixing;
  if constexpr (!std::is_same_v<Rotation, NoRotation>) {
    FillAngles<A>& angles = body.angles;
    angles.table = rotation;
    for (Index pair = 0; pair < rotation.pairs; ++pair) {
      if (pair == angles.first + FillAngles<A>::max_pairs) {
        run();
        angles.first = pair;
      }
      int a = 2;
      while (pair < rotation.axis[a].first) --a;
      const auto& axis = rotation.axis[a];
      angles.frequency[pair - angles.first] =
          attention.rotation.frequency(pair - axis.first, axis.count);
      angles.count = rotation.angles.size;
    }
  }
  const auto count = [&](const BlockTable& table) {
    if (table.held.count != table.grid.num_blocks())
      launch(device, table.places.size, CountTokens{table.grid, table.held, table.places});
  };
  const auto add = [&](const BlockTable& table) {
    for_each_sequence(attention, table.grid, [&](const Sequence& sequence) {
      const FillBlocks blocks(table, sequence, is_packed<V>);
      if (blocks.count == 0) return;
      if (body.sequences == FillTables<A>::max_sequences) run();
      body.blocks[body.sequences++] = blocks;
    });
  };
  const bool apart = keys.places.data != queries.places.data || queries.places.size == 0;
  add(queries);
  if (apart) add(keys);
  run();
  count(queries);
  if (apart) count(keys);
}

}  // namespace cuda

MHLA_NAMESPACE_END
