// SPDX-License-Identifier: MIT
// Bytes and FLOPs of the kernel that keeps all summaries in shared memory, by phase:
//
//   summaries of key blocks -> mixing -> readout of query blocks
//
// A thread block occupies a whole SM: phases are counted in sequence, like kernels of which only
// the first is launched, and so are a phase's memory traffic and products. If thread blocks are
// few, or the last wave does not fill the chip, SMs are idle. Every slice of values rereads queries
// and keys, mostly from L2.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/fused/block_mixing.hpp>
#include <mhla/cuda/fused/plan.hpp>
#include <mhla/cuda/fused/resident.hpp>
#include <mhla/cuda/fused/resident_bytes.hpp>
#include <mhla/cuda/fused/summaries_cost.hpp>
#include <mhla/cuda/kernel_cost.hpp>
#include <mhla/cuda/plan.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Costs of the phases of a call.
template <AttentionVariant V>
struct ResidentCost {
  const V& attention;
  const CallSize& size;
  Extents<V> extents;
  ResidentBytes bytes;

  ResidentCost(const V& variant, const Problem& problem, const CallSize& call_size, Arena& arena,
               Index slice)
      : attention(variant),
        size(call_size),
        extents(arena, variant, problem, problem.shape.batch),
        bytes(variant, problem, extents, slice) {}

  double slices() const { return static_cast<double>(bytes.slices); }
  /// One launch per sequence that has blocks.
  double launches() const {
    double count = 0;
    for_each_sequence_side(attention, extents, [&](const Sequence& queries, const Sequence&) {
      if (queries.blocks > 0) ++count;
    });
    return count;
  }
  /// A launch's thread blocks run in full waves, one per SM.
  double busy(const NominalGpu& gpu) const {
    const auto parts = static_cast<double>(bytes.parts);
    return parts / filled(parts, gpu.processors);
  }

  double tile_rows_of(const TileTokens& tokens) const {
    return static_cast<double>(tokens.tiles() * tile_rows(extents.key_dim));
  }
  KernelCost summarize() const {
    KernelCost cost{"summaries"};
    const double matrices = size.matrices;
    const double features = storage_bytes * size.keys() * size.key_dim;
    const double values = storage_bytes * size.keys() * size.value_dim;
    cost.tensor_bytes = features + values;
    cost.repeated_bytes =
        (matrices * slices() - 1) * features + (matrices - 1) * values +
        matrices * slices() *
            table_bytes(size, size.units * size.key_blocks * size.key_block_tokens, size.keys());
    cost.flops = 2 * size.matrices * static_cast<double>(bytes.stage.kv_heads) *
                 tile_rows_of(bytes.keys) * filled(size.key_dim, 16) * size.value_dim;
    cost.count(bytes.summarize());
    return cost;
  }
  KernelCost mix() const {
    KernelCost cost{"mixing"};
    cost.repeated_bytes = static_cast<double>(bytes.mix().total());
    for_each_sequence_side(attention, extents, [&](const Sequence& queries, const Sequence& keys) {
      const MixingShape shape = mixing_shape(extents, queries, keys);
      cost.flops += 2 * MixingWork(shape, false).multiply_adds(forward_parts);
    });
    cost.count(bytes.mix());
    return cost;
  }
  KernelCost read_out() const {
    KernelCost cost{"readout"};
    const double features = storage_bytes * size.queries() * size.key_dim;
    cost.tensor_bytes = features + storage_bytes * size.queries() * size.value_dim;
    cost.repeated_bytes =
        (slices() - 1) * features +
        slices() * table_bytes(size, size.heads * size.query_blocks * size.query_block_tokens,
                               size.queries());
    const auto heads = static_cast<double>(bytes.stage.all_heads());
    cost.flops = 2 * heads * tile_rows_of(bytes.queries) * size.key_dim * size.value_dim;
    if (bytes.own.any()) {
      const TileTokens::Count pairs = bytes.queries.of_pairs(false) * bytes.stage.all_heads();
      const auto tokens = static_cast<double>(pairs.present);
      cost.repeated_bytes +=
          storage_bytes * tokens * (slices() * size.key_dim + size.value_dim) +
          slices() * table_bytes(size, static_cast<double>(pairs.entries), tokens);
      const double rows = tile_rows(extents.key_dim);
      cost.flops += 2 * size.heads * size.own_tile_pairs * rows * rows *
                    (slices() * size.key_dim + size.value_dim);
    }
    cost.count(bytes.read_out());
    return cost;
  }

  PathCost path(const NominalGpu& gpu) const {
    PathCost path;
    path.flops_per_second = gpu.sixteen_bit_flops;
    path.add_beside(tables_cost(size));
    for (KernelCost phase : {summarize(), mix(), read_out()}) {
      phase.launches = path.count == 1 ? launches() : 0;
      phase.alone = true;
      phase.busy = busy(gpu);
      path.add(phase);
    }
    return path;
  }
};

/// The forward pass of a call with its summaries in shared memory, if they fit.
template <AttentionVariant V>
PathCost resident_cost(const V& attention, const Problem& problem, const CallSize& size,
                       const NominalGpu& gpu) {
  Arena arena;
  const Index slice = resident_slice_of(problem.shape.key_dim, problem.shape.value_dim,
                                        std::max(problem.query_blocks, problem.key_blocks),
                                        normalizes<V>, masks_own_block<V>, gpu.shared_bytes);
  return ResidentCost<V>(attention, problem, size, arena, slice).path(gpu);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
