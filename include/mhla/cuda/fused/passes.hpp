// SPDX-License-Identifier: MIT
// The fused passes of one variant, scalar and pair of head dimensions; pipeline.cuh calls them for
// the head dimensions that MHLA_INSTANTIATE_CUDA lists. `path` is CudaPath::summaries,
// CudaPath::quadratic or, in the forward pass, CudaPath::resident or CudaPath::persistent.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/kernel_cost.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// The memory that a call takes.
struct CallMemory {
  Index workspace_bytes = 0;
  Index items_at_once = 0;  ///< of the batch, in each part but the last
};

namespace fused {

/// What the passes below take: exact.
template <class V, class T, class Dims>
CallMemory memory_of(CudaPath path, const V& attention, const Problem& problem,
                     Direction direction);

/// y of every query; masked ones are left to the caller. Summaries are left in `state` if it has
/// memory, on CudaPath::summaries only.
template <class V, class T, class Dims>
void run_forward(CudaPath path, const CudaDevice& device, const V& attention,
                 const Problem& problem, const OperandViews<T>& operands, const TensorView<T, 4>& y,
                 WorkspaceView workspace, Span<float> state);

/// The wanted gradients; likewise, with summaries from `state`.
template <class V, class T, class Dims>
void run_backward(CudaPath path, const CudaDevice& device, const V& attention,
                  const Problem& problem, const OperandViews<T>& operands,
                  const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                  Update update, WorkspaceView workspace, Span<float> state);

}  // namespace fused

}  // namespace cuda

MHLA_NAMESPACE_END
