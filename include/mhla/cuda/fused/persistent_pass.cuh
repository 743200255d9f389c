// SPDX-License-Identifier: MIT
// A forward call whose summaries are made, mixed and read out in one launch, for the whole batch.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/forward_pass.cuh>
#include <mhla/cuda/fused/operands.cuh>
#include <mhla/cuda/fused/persistent.cuh>
#include <mhla/cuda/fused/persistent_plan.hpp>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/problem.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Places of summaries are indexed by the block table, the same for queries and keys.
template <int Side, class Dims, class V, class T>
void attend_unit_by_unit(const FusedOperands<V, T, PersistentPlan<V, T>>& call,
                         const TensorView<T, 4>& y, Index blocks) {
  const PersistentPlan<V, T>& plan = call.plan;
  const Extents<V>& e = plan.extents;
  const auto own = call.own_keys(1.0f);
  using Own = std::remove_const_t<decltype(own)>;
  using Body =
      AttendPersistently<T, typename V::FeatureMapType, rotates<V>, static_cast<int>(Dims::key_dim),
                         static_cast<int>(Dims::value_dim), Side, normalizes<V>, Own>;
  const MixingWork work(mixing_shape(e), false);
  const MixingMatrices matrices{plan.mixing.data, e.mixing_size(), e.mix_columns};
  const Index size = e.summary_size();
  const SummaryPlanes<T>& summaries = plan.summaries;
  const SummaryRows<T> rows{
      summaries.data, forward_parts, summaries.size, e.keys.table.blocks * size, size, 0};
  const typename Body::Summarize summarize{call.key_features(),
                                           call.values(),
                                           {e.keys.kv_heads, 1, 1},
                                           nullptr,
                                           nullptr,
                                           1.0f,
                                           {summaries.data, summaries.size, plan.scale()},
                                           plan.key_sums.data};
  const typename Body::ReadOut read_out{call.query_features(),
                                        tokens(y, e.queries.table),
                                        Update::overwrite,
                                        call.of_query_heads(),
                                        {summaries.data, summaries.size, plan.scale()},
                                        plan.mixed_key_sums.data,
                                        call.epsilon(),
                                        own};
  attend_persistently(call.device, blocks,
                      Body{plan.schedule,
                           static_cast<int>(plan.places),
                           summarize,
                           {work, matrices, rows, rows},
                           {work, matrices, plan.key_sums.data, plan.mixed_key_sums.data},
                           read_out,
                           plan.counters.data});
}

/// y of every query. Only for calls that can be mixed so.
template <class Dims, class V, class T>
void attend_in_one_launch(const CudaDevice& device, const V& attention, const Problem& problem,
                          const OperandViews<T>& operands, const TensorView<T, 4>& y,
                          WorkspaceView workspace, Index blocks = resident_thread_blocks) {
  Arena arena(workspace);
  const PersistentPlan<V, T> plan(arena, attention, problem, problem.shape.batch, false, blocks);
  const FusedOperands<V, T, PersistentPlan<V, T>> call{
      {device, attention, plan, operands.q, operands.k, operands.v, operands.mix}};
  if (!mix_in_place(attention, plan.extents))
    throw CudaError("mhla: the block summaries of a call cannot be mixed in one launch");
  fill_tables(call);
  clear(device, plan.counters);
  if (MixingWork(mixing_shape(plan.extents), false).side == 32)
    attend_unit_by_unit<32, Dims>(call, y, blocks);
  else
    attend_unit_by_unit<128, Dims>(call, y, blocks);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
