// SPDX-License-Identifier: MIT
// The memory of a forward call whose summaries are made, mixed and read out in one launch: places
// for the summaries of a few units, whatever the batch. Needs no CUDA header.
#pragma once

#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/fused/block_mixing.hpp>
#include <mhla/cuda/fused/persistent.hpp>
#include <mhla/cuda/fused/plan.hpp>
#include <mhla/cuda/fused/table_plan.hpp>
#include <mhla/cuda/fused/tile_shape.hpp>
#include <mhla/cuda/plan.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// The mixing of a call without packed sequences.
template <class V>
MixingShape mixing_shape(const Extents<V>& e) {
  Sequence queries{};
  Sequence keys{};
  queries.blocks = e.queries.table.blocks;
  keys.blocks = e.keys.table.blocks;
  return mixing_shape(e, queries, keys);
}

/// The parts of a unit's stages.
template <class V>
UnitParts unit_parts(const Extents<V>& e) {
  const MixingShape shape = mixing_shape(e);
  const auto key_dim = static_cast<int>(e.key_dim);
  const auto value_dim = static_cast<int>(e.value_dim);
  const ReadOutShape read_out{key_dim, value_dim, forward_parts, masks_own_block<V>, false};
  const Index key_sum_slices = normalizes<V> ? key_dim / key_sum_slice(key_dim) : 0;
  return {shape.key_blocks * (value_dim / summary_slice(value_dim)),
          mixing_stretches(shape) + key_sum_slices,
          shape.query_blocks * e.queries.group_size * read_out.slices()};
}
/// Whether the tickets of a call can be numbered.
template <class V>
bool has_unit_schedule(const Extents<V>& e) {
  return UnitSchedule::counts(e.units(), unit_parts(e));
}
/// The tickets, for `blocks` thread blocks.
template <class V>
UnitSchedule unit_schedule(const Extents<V>& e, Index blocks = resident_thread_blocks) {
  return {e.units(), unit_parts(e), blocks};
}

template <class V, class T>
struct PersistentPlan : TablePlan<V> {
  UnitSchedule schedule;
  Index places;                  // for units' summaries, reused in turn
  Span<std::uint32_t> counters;  // tickets taken; parts done, [stages, units]
  SummaryPlanes<T> summaries;    // [places, blocks, feature_dim, value_dim]
  Span<float> key_sums;          // [places, key blocks, feature_dim]
  Span<float> mixed_key_sums;    // [places, query blocks, feature_dim]

  PersistentPlan(Arena& arena, const V& attention, const Problem& problem, Index items, bool,
                 Index blocks = resident_thread_blocks)
      : TablePlan<V>(arena, attention, problem, items),
        schedule(unit_schedule(this->extents, blocks)),
        places(schedule.places()) {
    const Extents<V>& e = this->extents;
    const auto take = [&](Index of_unit) {
      return arena.take<float>(
          normalizes<V> ? checked_mul(places, checked_mul(of_unit, e.feature_dim)) : 0);
    };
    counters = arena.take<std::uint32_t>(1 + Index{unit_stages} * schedule.units);
    const Index size = checked_mul(places, checked_mul(e.keys.table.blocks, e.summary_size()));
    summaries = {arena.take<T>(size).data, size};
    key_sums = take(e.keys.table.blocks);
    mixed_key_sums = take(e.queries.table.blocks);
  }

  float scale() const { return summary_scale<T>(this->extents.keys.table.block_tokens); }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
