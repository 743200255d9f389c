// SPDX-License-Identifier: MIT
// Runs calls whose summaries stay in shared memory: the whole batch, one launch per sequence.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/call.hpp>
#include <mhla/cuda/chip/device_memory.cuh>
#include <mhla/cuda/forward_pass.cuh>
#include <mhla/cuda/fused/plan.hpp>
#include <mhla/cuda/fused/resident.cuh>
#include <mhla/cuda/fused/resident.hpp>
#include <mhla/cuda/fused/table_plan.hpp>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/paths/operands.cuh>
#include <mhla/cuda/paths/resident.hpp>
#include <mhla/policy/problem.hpp>
#include <type_traits>
#include <utility>

MHLA_NAMESPACE_BEGIN

namespace cuda {

namespace fused {

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
        AttendResident<
            KernelTraits<T, typename V::FeatureMapType, rotates<V>, static_cast<int>(Dims::key_dim),
                         static_cast<int>(Dims::value_dim)>,
            Slice, normalizes<V>, Own>{
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

}  // namespace fused

template <class Dims, class V, class T>
void ResidentPath::forward(const ForwardCall<V, T>& call) {
  const OperandViews<T>& of = call.operands;
  Arena arena(call.workspace);
  const ResidentPlan<V> plan(arena, call.attention, call.problem, call.problem.shape.batch, false);
  const fused::FusedOperands<V, T, ResidentPlan<V>> operands{
      {call.device, call.attention, plan, of.q, of.k, of.v, of.mix}};
  if constexpr (fused::has_resident_kernels(Dims::key_dim, Dims::value_dim)) {
    const Index columns = slice<V>(call.problem, shared_bytes_of_device(NominalGpu().shared_bytes));
    if (fused::visit_resident_slice<static_cast<int>(Dims::value_dim)>(columns, [&](auto compiled) {
          fill_tables(operands);
          fused::attend_resident_slices<decltype(compiled)::value, Dims>(operands, call.y);
        }))
      return;
  }
  throw CudaError("mhla: the block summaries of a call do not fit into the chip's shared memory");
}

}  // namespace cuda

MHLA_NAMESPACE_END
