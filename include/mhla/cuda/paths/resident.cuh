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
void attend_resident(const ForwardCall<V, T>& call) {
  using Traits =
      KernelTraits<T, typename V::FeatureMapType, rotates<V>, Dims::key_dim, Dims::value_dim>;
  for_each_part(call, plan_of_parts<ResidentPath::Plan<V, T>>(call), [&](const auto& of, auto) {
    const BlockTable& table = of.e.queries.table;
    for_each_sequence_side(of.variant, of.e, [&](const Sequence& queries, const Sequence& keys) {
      run_over_items(of.device, of.e.queries.batch,
                     AttendResident<Traits, Slice, normalizes<V>>{
                         of.query_features(), of.key_features(), of.values(), tokens(call.y, table),
                         of.of_query_heads(), of.mixing(), sight_of<V>, queries, keys,
                         summary_scale<T>(of.e.keys.table.block_tokens), of.epsilon()});
    });
  });
}

}  // namespace fused

template <class Dims, class V, class T>
void ResidentPath::forward(const ForwardCall<V, T>& call) {
  bool compiled = false;
  if constexpr (!is_causal_within_block<V> &&
                fused::has_resident_kernels(Dims::key_dim, Dims::value_dim)) {
    const Index columns = slice<V>(call.problem, shared_bytes_of_device(NominalGpu().shared_bytes));
    compiled = [&]<int... n>(std::integer_sequence<int, n...>) {
      constexpr auto of = [](int number) { return fused::resident_slice(Dims::value_dim, number); };
      return ((columns == of(n) && (fused::attend_resident<of(n), Dims>(call), true)) || ...);
    }
    (std::make_integer_sequence<int, fused::resident_slices>());
  }
  if (!compiled)
    throw CudaError("mhla: the block summaries of a call do not fit into the chip's shared memory");
}

}  // namespace cuda

MHLA_NAMESPACE_END
