// SPDX-License-Identifier: MIT
// Runs calls on cuBLAS, in parts of the batch, so that panels take bounded memory.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/backward_pass.cuh>
#include <mhla/cuda/call.hpp>
#include <mhla/cuda/forward_pass.cuh>
#include <mhla/cuda/gemm.cuh>
#include <mhla/cuda/paths/cublas.hpp>
#include <mhla/cuda/paths/operands.cuh>
#include <mhla/cuda/plan.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

template <class V, class T>
void CublasPath::forward(const ForwardCall<V, T>& call) {
  using A = Accumulator<T>;
  const Index at_once = items_at_once<V, A>(call.attention, call.problem, false);
  Arena arena(call.workspace);
  const Plan<V, A> whole(arena, call.attention, call.problem, at_once, false);
  const BorrowedCublas cublas(call.device, whole.cublas);
  for_each_part<V, T>(call, whole, at_once,
                      [&](const Operands<V, T>& part, Index first, Index count) {
                        pack_keys(part);
                        summarize_blocks(part);
                        mix_blocks(part);
                        pack_queries(part);
                        read_out_blocks(part, items(call.y, first, count));
                      });
}

template <class V, class T>
void CublasPath::backward(const BackwardCall<V, T>& call) {
  using A = Accumulator<T>;
  const Index at_once = items_at_once<V, A>(call.attention, call.problem, true);
  Arena arena(call.workspace);
  const Plan<V, A> whole(arena, call.attention, call.problem, at_once, true);
  const BorrowedCublas cublas(call.device, whole.cublas);
  clear(call.device, whole.grad_mixing);
  clear(call.device, whole.grad_own_mixing);
  for_each_part<V, T>(
      call, whole, at_once, [&](const Operands<V, T>& part, Index first, Index count) {
        pack_keys(part);
        if (call.state.data == nullptr) summarize_blocks(part);
        mix_blocks(part);
        pack_queries(part);
        backward_pass(part, part_of(BackwardRequest<V, T>{call.dy, call.gradients, call.update},
                                    first, count));
      });
  if (call.gradients.mix.wanted)
    write_mixing_gradient(call.device, whole, sight_of<V>, call.gradients.mix.view, call.update);
}

}  // namespace cuda

MHLA_NAMESPACE_END
