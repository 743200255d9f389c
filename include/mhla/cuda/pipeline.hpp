// SPDX-License-Identifier: MIT
// The CUDA backend's interface: forward_into and backward_into on strided views of device memory.
// Needs no CUDA header: the kernels are in another translation unit, made by
// <mhla/cuda/instantiate.cuh>; a missing variant is a link error that names it.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/forward_state.hpp>
#include <mhla/cuda/fused/passes.hpp>
#include <mhla/cuda/path.hpp>
#include <mhla/cuda/plan.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/fingerprint.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/variant.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Runs a checked call on a path that can; defined in pipeline.cuh. An undefined reference to it
/// means that no .cu of the program has MHLA_INSTANTIATE_CUDA(V, T). Summaries are left in, or
/// taken from, `state` if it has memory.
template <class V, class T>
void run_forward(CudaPath path, const CudaDevice& device, const V& attention,
                 const Problem& problem, const OperandViews<T>& operands, const TensorView<T, 4>& y,
                 WorkspaceView workspace, Span<Accumulator<T>> state);
template <class V, class T>
void run_backward(CudaPath path, const CudaDevice& device, const V& attention,
                  const Problem& problem, const OperandViews<T>& operands,
                  const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                  Update update, WorkspaceView workspace, Span<Accumulator<T>> state);

/// The memory of a fused pass; defined in pipeline.cuh, and used only if fused kernels can run a
/// call.
template <class V, class T>
CallMemory fused_memory(CudaPath path, const V& attention, const Problem& problem,
                        Direction direction);

/// The memory that a call takes on a path.
template <class T, AttentionVariant V>
CallMemory memory_of(CudaPath path, const V& attention, const Problem& problem,
                     Direction direction) {
  using A = Accumulator<T>;
  if (problem.shape.empty()) return {0, problem.shape.batch};
  if constexpr (has_fused_passes<V, T>)
    if (path != CudaPath::cublas) return fused_memory<V, T>(path, attention, problem, direction);
  const bool backward = direction == Direction::backward;
  const Index at_once = items_at_once<V, A>(attention, problem, backward);
  return {plan_bytes<V, A>(attention, problem, at_once, backward), at_once};
}

/// Elements of the summaries of a call: what a forward state keeps.
template <class V, class A>
Index call_summary_size(const V& attention, const Problem& problem) {
  if (problem.shape.empty()) return 0;
  Arena arena;
  const Extents<V> e(arena, attention, problem, problem.shape.batch);
  return checked_mul(e.key_summaries(),
                     checked_add(e.summary_size(), normalizes<V> ? e.feature_dim : 0));
}

/// How a path keeps the summaries of tensors of T.
template <class T>
SummaryFormat summary_format(CudaPath path) {
  if (path == CudaPath::cublas) return SummaryFormat::accumulators;
  return std::is_same_v<T, Half> ? SummaryFormat::half_planes : SummaryFormat::bfloat16_planes;
}

}  // namespace cuda

/// \addtogroup cuda
/// \{

/// Bytes of device memory that forward_into takes as workspace: exact. Pass StateUse::given for a
/// call with a CudaForwardState.
/// \throws ShapeError if attention and shape do not fit, or the device requests a path that cannot
/// run the call.
template <StorageScalar T, AttentionVariant V>
Index forward_workspace_size(const V& attention, const Shape& shape, const CudaDevice& device,
                             StateUse state = StateUse::none) {
  constexpr auto forward = cuda::Direction::forward;
  const Problem problem = checked_problem(attention, shape);
  const CudaPath path = cuda::path_of<T>(attention, problem, device, forward, state);
  return cuda::memory_of<T>(path, attention, problem, forward).workspace_bytes;
}

/// Bytes of device memory that backward_into takes as workspace, whichever gradients are wanted:
/// exact. Otherwise as forward_workspace_size.
template <StorageScalar T, AttentionVariant V>
Index backward_workspace_size(const V& attention, const Shape& shape, const CudaDevice& device,
                              StateUse state = StateUse::none) {
  constexpr auto backward = cuda::Direction::backward;
  const Problem problem = checked_problem(attention, shape);
  const CudaPath path = cuda::path_of<T>(attention, problem, device, backward, state);
  return cuda::memory_of<T>(path, attention, problem, backward).workspace_bytes;
}

/// Elements of the accumulator type that a CudaForwardState needs for a shape.
/// \throws ShapeError if attention and shape do not fit.
template <AttentionVariant V>
Index forward_state_size(const V& attention, const Shape& shape, const CudaDevice&) {
  return cuda::call_summary_size<V, float>(attention, checked_problem(attention, shape));
}

/// y = attention(q, k, v, mix) in device memory, on the device's stream: shapes, aliasing and
/// errors as the CPU's forward_into. With `save`, the summaries are kept for backward_into; after a
/// CudaError there are none. Everything is checked before anything is launched; nothing is
/// allocated or waited for.
/// \throws ShapeError, also where the device requests a path that cannot run the call;
/// WorkspaceError; CudaError for memory that CUDA does not know, and where a CUDA or cuBLAS call
/// fails: see CudaDevice.
template <AttentionVariant V, StorageScalar T>
void forward_into(const V& attention, const CudaDevice& device,
                  const std::type_identity_t<TensorView<const T, 4>>& q,
                  const std::type_identity_t<TensorView<const T, 4>>& k,
                  const std::type_identity_t<TensorView<const T, 4>>& v,
                  const std::type_identity_t<TensorView<const Accumulator<T>, 3>>& mix,
                  const TensorView<T, 4>& y, WorkspaceView workspace,
                  std::type_identity_t<CudaForwardState<Accumulator<T>>*> save = nullptr) {
  const OperandViews<T> operands{q, k, v, mix};
  const Problem problem = checked_forward(attention, operands, y, workspace,
                                          save == nullptr ? WorkspaceView{} : save->memory());
  constexpr auto forward = cuda::Direction::forward;
  const CudaPath path = cuda::path_of<T>(attention, problem, device, forward,
                                         save == nullptr ? StateUse::none : StateUse::given);
  require_workspace(workspace,
                    cuda::memory_of<T>(path, attention, problem, forward).workspace_bytes,
                    "mhla::forward_into");
  Span<Accumulator<T>> state;
  if (save != nullptr)
    state = save->prepare(problem.shape, fingerprint_of<T>(attention, problem, Borrowed::address),
                          cuda::call_summary_size<V, Accumulator<T>>(attention, problem),
                          cuda::summary_format<T>(path));
  cuda::run_forward(path, device, attention, problem, operands, y, workspace, state);
  if (save != nullptr) save->mark_filled();
}

/// The gradients of sum(dy o attention(q, k, v, mix)) in device memory, on the device's stream: as
/// the CPU's backward_into. The same bits in every run. With `saved`, summaries are taken from the
/// forward pass instead of recomputed: the same bits, unless the forward pass split the batch
/// differently and cuBLAS computes larger batches of products in another way.
/// \throws StateError if `saved` is of another call, and what forward_into throws; the gradients
/// are untouched then, unless a CUDA or cuBLAS call fails midway.
template <AttentionVariant V, class Query, class T = std::remove_const_t<Query>>
requires StorageScalar<T>
void backward_into(const V& attention, const CudaDevice& device, const TensorView<Query, 4>& q,
                   const std::type_identity_t<TensorView<const T, 4>>& k,
                   const std::type_identity_t<TensorView<const T, 4>>& v,
                   const std::type_identity_t<TensorView<const Accumulator<T>, 3>>& mix,
                   const std::type_identity_t<TensorView<const T, 4>>& dy,
                   const std::type_identity_t<GradientViews<T>>& gradients, Update update,
                   WorkspaceView workspace,
                   std::type_identity_t<const CudaForwardState<Accumulator<T>>*> saved = nullptr) {
  const OperandViews<T> operands{q, k, v, mix};
  const Problem problem = checked_backward(attention, operands, dy, gradients, workspace,
                                           saved == nullptr ? WorkspaceView{} : saved->memory());
  constexpr auto backward = cuda::Direction::backward;
  const CudaPath path = cuda::path_of<T>(attention, problem, device, backward,
                                         saved == nullptr ? StateUse::none : StateUse::given);
  require_workspace(workspace,
                    cuda::memory_of<T>(path, attention, problem, backward).workspace_bytes,
                    "mhla::backward_into");
  Span<Accumulator<T>> state;
  if (saved != nullptr)
    state =
        saved->summaries(problem.shape, fingerprint_of<T>(attention, problem, Borrowed::address),
                         cuda::summary_format<T>(path));
  cuda::run_backward(path, device, attention, problem, operands, dy, gradients, update, workspace,
                     state);
}

/// \}

MHLA_NAMESPACE_END
