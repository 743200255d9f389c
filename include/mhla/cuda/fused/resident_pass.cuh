// SPDX-License-Identifier: MIT
// A forward call whose summaries stay in shared memory: the whole batch, one launch per sequence.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/device_memory.cuh>
#include <mhla/cuda/forward_pass.cuh>
#include <mhla/cuda/fused/operands.cuh>
#include <mhla/cuda/fused/plan.hpp>
#include <mhla/cuda/fused/resident.cuh>
#include <mhla/cuda/fused/resident.hpp>
#include <mhla/cuda/fused/table_plan.hpp>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/kernel_cost.hpp>
#include <mhla/policy/problem.hpp>
#include <type_traits>
#include <utility>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Such a call's workspace.
template <class V>
struct ResidentPlan : TablePlan<V> {
  ResidentPlan(Arena& arena, const V& attention, const Problem& problem, Index items, bool)
      : TablePlan<V>(arena, attention, problem, items) {}
};

/// Launches the kernel for slices of `Slice` value columns.
template <int Slice, class Dims, class V, class T>
void attend_resident_slices(const FusedOperands<V, T, ResidentPlan<V>>& call,
                            const TensorView<T, 4>& y) {
  const Extents<V>& e = call.plan.extents;
  const auto own = call.own_keys(1.0f);
  using Own = std::remove_const_t<decltype(own)>;
  for_each_sequence_side(call.variant, e, [&](const Sequence& queries, const Sequence& keys) {
    attend_resident(
        call.device, e.queries.batch,
        AttendResident<T, typename V::FeatureMapType, rotates<V>, static_cast<int>(Dims::key_dim),
                       static_cast<int>(Dims::value_dim), Slice, normalizes<V>, Own>{
            call.query_features(), call.key_features(), call.values(), tokens(y, e.queries.table),
            call.of_query_heads(), call.mixing(), sight_of<V>, queries, keys,
            summary_scale<T>(e.keys.table.block_tokens), call.epsilon(), own});
  });
}

/// Calls f(std::integral_constant<int, slice>()) if kernels are compiled for slices of that many
/// value columns; else returns false.
template <int ValueDim, class F>
bool visit_resident_slice(Index slice, const F& f) {
  const auto visit = [&]<int... n>(std::integer_sequence<int, n...>) {
    return ((slice == resident_slice(ValueDim, n) &&
             (f(std::integral_constant<int, resident_slice(ValueDim, n)>()), true)) ||
            ...);
  };
  return visit(std::make_integer_sequence<int, resident_slices>());
}

/// y of every query. Only for calls whose summaries fit.
template <class Dims, class V, class T>
void attend_with_resident_summaries(const CudaDevice& device, const V& attention,
                                    const Problem& problem, const OperandViews<T>& operands,
                                    const TensorView<T, 4>& y, WorkspaceView workspace) {
  Arena arena(workspace);
  const ResidentPlan<V> plan(arena, attention, problem, problem.shape.batch, false);
  const FusedOperands<V, T, ResidentPlan<V>> call{
      {device, attention, plan, operands.q, operands.k, operands.v, operands.mix}};
  if constexpr (has_resident_kernels(Dims::key_dim, Dims::value_dim)) {
    const Index slice = resident_slice_of(
        Dims::key_dim, Dims::value_dim, std::max(problem.query_blocks, problem.key_blocks),
        normalizes<V>, masks_own_block<V>, shared_bytes_of_device(NominalGpu().shared_bytes));
    if (visit_resident_slice<static_cast<int>(Dims::value_dim)>(slice, [&](auto compiled) {
          fill_tables(call);
          attend_resident_slices<decltype(compiled)::value, Dims>(call, y);
        }))
      return;
  }
  throw CudaError("mhla: the block summaries of a call do not fit into the chip's shared memory");
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
