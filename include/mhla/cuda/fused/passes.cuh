// SPDX-License-Identifier: MIT
// The fused passes: runs each call on its chosen path.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/fused/passes.hpp>
#include <mhla/cuda/fused/persistent_pass.cuh>
#include <mhla/cuda/fused/quadratic_pass.cuh>
#include <mhla/cuda/fused/resident_pass.cuh>
#include <mhla/cuda/fused/summaries_pass.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

// Summaries of a whole batch are large. Tables, summaries of a few units, and what the quadratic
// form keeps per query are not, so the other paths process the whole batch at once.
template <class V, class T, class Dims>
CallMemory memory_of(CudaPath path, const V& attention, const Problem& problem,
                     Direction direction) {
  const bool backward = direction == Direction::backward;
  if (path != CudaPath::summaries) {
    const Index items = problem.shape.batch;
    if (path == CudaPath::resident)
      return {plan_size<ResidentPlan<V>>(attention, problem, items, backward), items};
    if (path == CudaPath::persistent)
      return {plan_size<PersistentPlan<V, T>>(attention, problem, items, backward), items};
    return {plan_size<PairPlan<V>>(attention, problem, items, backward), items};
  }
  const Index items = summary_items_at_once<V, T>(attention, problem, backward);
  return {plan_size<SummaryPlan<V, T>>(attention, problem, items, backward), items};
}

template <class V, class T, class Dims>
void run_forward(CudaPath path, const CudaDevice& device, const V& attention,
                 const Problem& problem, const OperandViews<T>& operands, const TensorView<T, 4>& y,
                 WorkspaceView workspace, Span<float> state) {
  if (path == CudaPath::quadratic) {
    attend_by_pairs<Dims>(device, attention, problem, operands, y, workspace);
  } else if (path == CudaPath::resident) {
    attend_with_resident_summaries<Dims>(device, attention, problem, operands, y, workspace);
  } else if (path == CudaPath::persistent) {
    attend_in_one_launch<Dims>(device, attention, problem, operands, y, workspace);
  } else {
    attend_by_summaries<Dims>(device, attention, problem, operands, y, workspace, state);
  }
}

template <class V, class T, class Dims>
void run_backward(CudaPath path, const CudaDevice& device, const V& attention,
                  const Problem& problem, const OperandViews<T>& operands,
                  const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                  Update update, WorkspaceView workspace, Span<float> state) {
  if (path == CudaPath::quadratic) {
    attend_by_pairs_gradient<Dims>(device, attention, problem, operands, dy, gradients, update,
                                   workspace);
  } else {
    attend_by_summaries_gradient<Dims>(device, attention, problem, operands, dy, gradients, update,
                                       workspace, state);
  }
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
