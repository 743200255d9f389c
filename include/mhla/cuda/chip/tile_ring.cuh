// SPDX-License-Identifier: MIT
// A pipeline of tiles from memory through a ring of slots in a thread block's shared memory.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/cuda/chip/machine.cuh>
#include <mhla/cuda/chip/tile.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Pipelines tiles from memory through a ring of `Stages` slots: begin_copy(tile), then, once it
/// has arrived, landed(tile), a sync of the thread block, and use(tile).
template <int Stages, class BeginCopy, class Landed, class Use>
MHLA_DEVICE void for_each_tile(const Block& block, int tiles, const BeginCopy& begin_copy,
                               const Landed& landed, const Use& use) {
  const auto begin = [&](int tile) {
    if (tile < tiles) begin_copy(tile);
    machine::commit_copies();
  };
  block.sync();  // what was in the ring has been read
  for (int tile = 0; tile < Stages - 1; ++tile) begin(tile);
  for (int tile = 0; tile < tiles; ++tile) {
    if constexpr (Stages == 1) {
      if (tile > 0) block.sync();
      begin(tile);
      machine::wait_for_copies<0>();
      block.sync();
    } else {
      machine::wait_for_copies<Stages - 2>();
      block.sync();  // this tile has landed, and the previous one has been read
      begin(tile + Stages - 1);
    }
    landed(tile);
    block.sync();
    use(tile);
  }
  machine::wait_for_copies<0>();
}

/// for_each_tile() by two teams of warps, with three slots and one sync for a tile: while one team
/// prepares a tile, by begin_copy() of the next one and landed(), the other use()s the previous
/// one.
template <class BeginCopy, class Landed, class Use>
MHLA_DEVICE void for_each_tile_in_teams(const Block& block, bool prepares, int tiles,
                                        const BeginCopy& begin_copy, const Landed& landed,
                                        const Use& use) {
  const auto begin = [&](int tile) {
    if (prepares && tile < tiles) begin_copy(tile);
    machine::commit_copies();
  };
  block.sync();  // what was in the ring has been read
  begin(0);
  for (int step = 0; step <= tiles; ++step) {
    machine::wait_for_copies<0>();
    block.sync();  // this tile has landed, the previous one is prepared, the one before was used
    begin(step + 1);
    if (prepares && step < tiles) landed(step);
    if (!prepares && step > 0) use(step - 1);
  }
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
