// SPDX-License-Identifier: MIT
// Runs calls through block summaries, in parts of the batch.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/batch_part.hpp>
#include <mhla/cuda/call.hpp>
#include <mhla/cuda/fused/plan.hpp>
#include <mhla/cuda/paths/summaries.hpp>
#include <mhla/cuda/paths/summaries_backward.cuh>
#include <mhla/cuda/paths/summaries_forward.cuh>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// A part of a call, with the head dimensions that its kernels are compiled for.
template <class Dims, class V, class T>
auto of_dims(const Operands<V, T, fused::SummaryPlan<V, T>>& part) {
  return fused::SummaryCall<V, T, static_cast<int>(Dims::key_dim),
                            static_cast<int>(Dims::value_dim)>{{part}};
}

template <class Dims, class V, class T>
void SummariesPath::forward(const ForwardCall<V, T>& call) {
  const Index at_once = fused::summary_items_at_once<V, T>(call.attention, call.problem, false);
  Arena arena(call.workspace);
  const fused::SummaryPlan<V, T> whole(arena, call.attention, call.problem, at_once, false);
  for_each_part<V, T>(call, whole, at_once, [&](const auto& part, Index first, Index count) {
    forward_pass(of_dims<Dims>(part), items(call.y, first, count));
  });
}

template <class Dims, class V, class T>
void SummariesPath::backward(const BackwardCall<V, T>& call) {
  const Index at_once = fused::summary_items_at_once<V, T>(call.attention, call.problem, true);
  Arena arena(call.workspace);
  const fused::SummaryPlan<V, T> whole(arena, call.attention, call.problem, at_once, true);
  clear(call.device, whole.grad_mixing);
  clear(call.device, whole.grad_own_mixing);
  for_each_part<V, T>(call, whole, at_once, [&](const auto& part, Index first, Index count) {
    backward_pass(
        of_dims<Dims>(part),
        part_of(BackwardRequest<V, T>{call.dy, call.gradients, call.update}, first, count));
  });
  if (call.gradients.mix.wanted)
    write_mixing_gradient(call.device, whole, sight_of<V>, call.gradients.mix.view, call.update);
}

}  // namespace cuda

MHLA_NAMESPACE_END
