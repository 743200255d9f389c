// SPDX-License-Identifier: MIT
// Bytes and FLOPs of the one launch that makes, mixes and reads out all summaries. Its stages
// overlap, so that it counts as one kernel, bounded by the slowest of memory, caches and products.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/fused/block_mixing.hpp>
#include <mhla/cuda/fused/persistent.hpp>
#include <mhla/cuda/fused/persistent_plan.hpp>
#include <mhla/cuda/fused/summaries_cost.hpp>
#include <mhla/cuda/kernel_cost.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

template <AttentionVariant V>
struct PersistentCost : SummariesCost<V> {
  MixingShape shape;

  PersistentCost(const V& variant, const Problem& of_call, const CallSize& call_size, Arena& arena)
      : SummariesCost<V>(variant, of_call, call_size, arena, of_call.shape.batch,
                         Direction::forward),
        shape(fused::mixing_shape(this->extents)) {}

  KernelCost summarize_keys() const { return this->summarize("", this->keys, false); }
  KernelCost read_out_queries() const {
    return this->read_out("", this->queries, this->keys, this->own_keys(), normalizes<V>);
  }
  MovedBytes mixing_bytes() const {
    MovedBytes bytes = mix_in_stretches_bytes(shape);
    if (normalizes<V>) bytes += mix_key_sums_bytes(shape, this->extents.key_dim);
    return bytes;
  }
  MovedBytes moved() const {
    MovedBytes bytes = mixing_bytes();
    bytes += summarize_keys().moved;
    bytes += read_out_queries().moved;
    return bytes;
  }
  /// Bytes of the summaries and key sums in memory at once.
  double bytes_in_flight() const {
    const auto places = static_cast<double>(unit_schedule(this->extents).places());
    return places * static_cast<double>(shape.key_blocks) *
           (this->summary_bytes() + 2 * this->key_sum_bytes());
  }

  KernelCost all() const {
    KernelCost cost{"summaries, mixing and readout"};
    for (const KernelCost& stage : {summarize_keys(), read_out_queries()}) {
      cost.tensor_bytes += stage.tensor_bytes;
      cost.summary_bytes += stage.summary_bytes;
      cost.repeated_bytes += stage.repeated_bytes;
      cost.flops += stage.flops;
    }
    const MovedBytes of_mixing = mixing_bytes();
    const double of_summaries =
        2 * this->size.key_summaries() * (this->summary_bytes() + this->key_sum_bytes());
    cost.summary_bytes += of_summaries;
    cost.repeated_bytes += static_cast<double>(of_mixing.total()) - of_summaries;
    cost.flops += 2 * MixingWork(shape, false).multiply_adds(forward_parts);
    cost.count(moved());
    return cost;
  }

  PathCost path(const NominalGpu& gpu) const {
    PathCost path;
    path.flops_per_second = gpu.sixteen_bit_flops;
    path.summaries_in_cache = bytes_in_flight() <= gpu.cache_bytes;
    KernelCost tables = tables_cost(this->size);
    ++tables.launches;  // clears the counters
    path.add_beside(tables);
    path.add(all());
    return path;
  }
};

/// The forward pass of a call in one launch, if it can run so.
template <AttentionVariant V>
PathCost persistent_cost(const V& attention, const Problem& problem, const CallSize& size,
                         const NominalGpu& gpu) {
  Arena arena;
  return PersistentCost<V>(attention, problem, size, arena).path(gpu);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
