// SPDX-License-Identifier: MIT
// Fills the tables of blocks, on the device: sequences are passed as kernel arguments, so that
// nothing is copied and a graph can contain the call.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/block_table.hpp>
#include <mhla/cuda/launch.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Fills in the blocks of sequences of a grid. That many sequences fit into a kernel's arguments.
template <int MaxSequences>
struct FillTable {
  Grid grid;
  Index block_tokens;
  Index sequences;
  Sequence sequence[std::size_t{MaxSequences}];
  Place* places;
  Index* mix_rows;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index block = sequence[0].first_block + i / block_tokens;
    const Index entry = i % block_tokens;
    Index s = 0;
    while (s + 1 < sequences && block >= sequence[s + 1].first_block) ++s;
    const Sequence& of = sequence[s];
    const Index b = block - of.first_block;
    Grid own = grid;
    if (MaxSequences > 1) own.extent[2] = of.length;
    if (entry == 0) mix_rows[block] = b;

    const Index count[3] = {own.block_extent(b, 0), own.block_extent(b, 1), own.block_extent(b, 2)};
    Place& place = places[block * block_tokens + entry];
    if (entry >= count[0] * count[1] * count[2]) {
      place = {-1, 0};
      return;
    }
    const Index x = own.block_begin(b, 2) + entry % count[2];
    const Index y = own.block_begin(b, 1) + entry / count[2] % count[1];
    const Index z = own.block_begin(b, 0) + entry / count[2] / count[1];
    const Index position = (z * own.extent[1] + y) * own.extent[2] + x;
    place = {of.begin + position, position};
  }
};

/// Fills it in.
template <AttentionVariant V>
void fill(const CudaDevice& device, const V& attention, const BlockTable& table) {
  if (table.block_tokens == 0) return;
  constexpr int at_once = is_packed<V> ? 96 : 1;
  FillTable<at_once> body{table.grid, table.block_tokens, 0,
                          {},         table.places.data,  table.mix_rows.data};
  Index blocks = 0;
  const auto run = [&] {
    launch(device, blocks * table.block_tokens, body);
    body.sequences = blocks = 0;
  };
  for_each_sequence(attention, table.grid, [&](const Sequence& sequence) {
    if (sequence.blocks == 0) return;
    body.sequence[body.sequences++] = sequence;
    blocks += sequence.blocks;
    if (body.sequences == at_once) run();
  });
  run();
}

}  // namespace cuda

MHLA_NAMESPACE_END
