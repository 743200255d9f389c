// SPDX-License-Identifier: MIT
// Runs calls whose summaries stay in shared memory: the whole batch, one launch per sequence.
#pragma once

#include <mhla/cuda/fused/resident.cuh>
#include <mhla/cuda/paths/operands.cuh>
#include <mhla/cuda/paths/resident.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

namespace fused {

/// Launches the kernel for slices of `Slice` value columns.
template <int Slice, class Dims, class V, class T>
void attend_resident_slices(const Operands<V, T, ResidentPath::Plan<V, T>>& of,
                            const TensorView<T, 4>& y) {
  using Traits =
      KernelTraits<T, typename V::FeatureMapType, rotates<V>, Dims::key_dim, Dims::value_dim>;
  const Extents<V>& e = of.e;
  for_each_sequence_side(of.variant, e, [&](const Sequence& queries, const Sequence& keys) {
    run_over_items(of.device, e.queries.batch,
                   AttendResident<Traits, Slice, normalizes<V>>{
                       of.query_features(), of.key_features(), of.values(),
                       tokens(y, e.queries.table), of.of_query_heads(), of.mixing(), sight_of<V>,
                       queries, keys, summary_scale<T>(e.keys.table.block_tokens), of.epsilon()});
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
  bool compiled = false;
  if constexpr (!is_causal_within_block<V> &&
                fused::has_resident_kernels(Dims::key_dim, Dims::value_dim)) {
    const Index columns = slice<V>(call.problem, shared_bytes_of_device(NominalGpu().shared_bytes));
    compiled = fused::visit_resident_slice<Dims::value_dim>(columns, [&](auto slice) {
      for_each_part(call, plan_of_parts<Plan<V, T>>(call), [&](const auto& of, const auto&) {
        fused::attend_resident_slices<decltype(slice)::value, Dims>(of, call.y);
      });
    });
  }
  if (!compiled)
    throw CudaError("mhla: the block summaries of a call do not fit into the chip's shared memory");
}

}  // namespace cuda

MHLA_NAMESPACE_END
