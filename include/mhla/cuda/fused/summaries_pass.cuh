// SPDX-License-Identifier: MIT
// A call through block summaries, in parts of the batch.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/batch_part.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/fused/backward_pass.cuh>
#include <mhla/cuda/fused/forward_pass.cuh>
#include <mhla/cuda/fused/plan.hpp>
#include <mhla/cuda/gemm.cuh>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// The part of a call for items [first, first + count).
template <class Dims, class V, class T>
auto summary_call(const CudaDevice& device, const V& attention, const SummaryPlan<V, T>& plan,
                  const OperandViews<T>& operands, Index first, Index count) {
  return SummaryCall<V, T, static_cast<int>(Dims::key_dim), static_cast<int>(Dims::value_dim)>{
      {{device, attention, plan, items(operands.q, first, count), items(operands.k, first, count),
        items(operands.v, first, count), operands.mix}}};
}

/// y of every query. Summaries are left in `state` if it has memory.
template <class Dims, class V, class T>
void attend_by_summaries(const CudaDevice& device, const V& attention, const Problem& problem,
                         const OperandViews<T>& operands, const TensorView<T, 4>& y,
                         WorkspaceView workspace, Span<float> state = {}) {
  const Index batch = problem.shape.batch;
  const Index at_once = summary_items_at_once<V, T>(attention, problem, false);
  Arena arena(workspace);
  const SummaryPlan<V, T> whole(arena, attention, problem, at_once, false);
  const BorrowedCublas cublas(device, whole.cublas);
  for (Index first = 0; first < batch; first += at_once) {
    const Index count = std::min(at_once, batch - first);
    SummaryPlan<V, T> plan = plan_of_items(whole, first, count);
    plan.keep_summaries(batch, first, state);
    const auto call = summary_call<Dims>(device, attention, plan, operands, first, count);
    if (first == 0) fill_tables(call);
    forward_pass(call, items(y, first, count));
  }
}

/// The wanted gradients. Summaries are taken from `state` if it has memory.
template <class Dims, class V, class T>
void attend_by_summaries_gradient(const CudaDevice& device, const V& attention,
                                  const Problem& problem, const OperandViews<T>& operands,
                                  const TensorView<const T, 4>& dy,
                                  const GradientViews<T>& gradients, Update update,
                                  WorkspaceView workspace, Span<float> state = {}) {
  const Index batch = problem.shape.batch;
  const Index at_once = summary_items_at_once<V, T>(attention, problem, true);
  Arena arena(workspace);
  const SummaryPlan<V, T> whole(arena, attention, problem, at_once, true);
  const BorrowedCublas cublas(device, whole.cublas);
  clear(device, whole.grad_mixing);
  clear(device, whole.grad_own_mixing);
  for (Index first = 0; first < batch; first += at_once) {
    const Index count = std::min(at_once, batch - first);
    SummaryPlan<V, T> plan = plan_of_items(whole, first, count);
    plan.keep_summaries(batch, first, state);
    const auto call = summary_call<Dims>(device, attention, plan, operands, first, count);
    if (first == 0) fill_tables(call);
    backward_pass(call, part_of(BackwardRequest<V, T>{dy, gradients, update}, first, count));
  }
  if (gradients.mix.wanted)
    write_mixing_gradient(device, whole, sight_of<V>, gradients.mix.view, update);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
