// SPDX-License-Identifier: MIT
// The path whose block summaries stay in shared memory: one kernel makes, mixes and reads them out.
// Every slice of values reads queries and keys again, mostly from L2.
#pragma once

#include <mhla/cuda/paths/summaries.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// One fused kernel, for few blocks; forward only.
struct ResidentPath {
  static constexpr PathTraits traits{
      .id = CudaPath::resident, .name = "resident", .has_backward = false, .keeps_state = false};
  template <class V, class T>
  using Plan = TablePlan<V, float, true>;

  template <class V>
  static Index slice(const Problem& problem, Index shared_bytes) {
    return fused::resident_slice_of(problem.shape.key_dim, problem.shape.value_dim,
                                    (std::max)(problem.query_blocks, problem.key_blocks),
                                    normalizes<V>, rotates<V>, shared_bytes);
  }
  template <class V, class T>
  static Refusal refusal(const Call<V, T>& call, const NominalGpu& gpu) {
    const Shape& shape = call.problem.shape;
    if (is_causal_within_block<V>) return {"Causal, with tokens that see a part of their block"};
    if (!fused::has_resident_kernels(shape.key_dim, shape.value_dim))
      return {"head dimensions over 128"};
    static_assert(fused::max_resident_blocks == 64);
    if ((std::max)(call.problem.query_blocks, call.problem.key_blocks) > fused::max_resident_blocks)
      return {"more than 64 blocks"};
    if (slice<V>(call.problem, gpu.shared_bytes) == 0)
      return {"the block summaries do not fit into the chip's shared memory"};
    return {};
  }
  template <class V, class T>
  static PathCost cost(const Call<V, T>& call, const NominalGpu& gpu) {
    const TokenCost<V> of{{call.attention, call.problem}, fused::forward_parts};
    const CallSize<V>& size = of.size;
    const Problem& problem = call.problem;
    const fused::ResidentMemory memory(static_cast<int>(problem.shape.key_dim),
                                       static_cast<int>(slice<V>(problem, gpu.shared_bytes)),
                                       normalizes<V>, rotates<V>);
    const double slices = size.value_dim / memory.slice;
    KernelCost cost = of.product(of.queries(), {.slices = slices});
    // Every matrix mixes summaries of its own.
    const KernelCost keys = of.product(of.keys(), {.slices = slices * size.matrices});
    cost.tensor_bytes += keys.tensor_bytes;
    cost.cached_bytes += keys.cached_bytes;
    cost.flops += size.matrices * keys.flops;
    cost.instructions += keys.instructions;
    cost.summary_bytes = 0;
    const KernelCost mixing = of.mixing([](const fused::MixingShape& shape) {
      return typename TokenCost<V>::MixingLoad{
          fused::MixingWork(shape, false).multiply_adds(fused::forward_parts)};
    });
    cost.flops += mixing.flops;
    cost.instructions += mixing.instructions;
    cost.launches = mixing.launches;
    // An SM that has two thread blocks, or a larger one, takes as long for each, but stands still
    // less.
    const double blocks = size.units * size.matrices * slices;
    cost.busy = blocks / filled(blocks, gpu.sms);
    constexpr Index reserved = 1024;  // bytes, which CUDA keeps for itself in each
    const auto summaries = static_cast<int>((std::max)(problem.query_blocks, problem.key_blocks));
    const bool two_fit = 2 * (memory.bytes(summaries) + reserved) <= gpu.shared_bytes + reserved;
    cost.alone = memory.teams == 1 && (blocks <= static_cast<double>(gpu.sms) || !two_fit);
    PathCost path{.flops_per_second = gpu.sixteen_bit_flops};
    path.add(size.tables());
    path.add(cost);
    return path;
  }
  template <class Dims, class V, class T>
  static void forward(const ForwardCall<V, T>& call);
};

}  // namespace cuda

MHLA_NAMESPACE_END
