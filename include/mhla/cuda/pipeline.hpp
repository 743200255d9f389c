// SPDX-License-Identifier: MIT
// The CUDA backend's interface: forward_into and backward_into on strided views of device memory.
// Needs no CUDA header: the kernels are in another translation unit, made by
// <mhla/cuda/instantiate.cuh>; a missing variant is a link error that names it.
#pragma once

#include <mhla/cuda/choose_path.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// What the path of a call is chosen by, with the head dimensions that the program compiles.
template <class T, class V>
Call<V, T> call_of(const V& attention, const Problem& problem, const CudaDevice& device,
                   Direction direction, StateUse state) {
  HeadDimsList compiled;  // none if there is nothing to compile
  if constexpr (has_fused_passes<V, T>) compiled = CompiledKernels<V, T>::head_dims();
  return {attention, problem, direction, state, compiled, device.products()};
}
/// Bytes of workspace of one direction.
template <class T, class V>
Index workspace_size(const V& attention, const Shape& shape, const CudaDevice& device,
                     Direction direction, StateUse state) {
  const Problem problem = checked_problem(attention, shape);
  const Call<V, T> call = call_of<T>(attention, problem, device, direction, state);
  return memory_of(path_of(call, device), call).workspace_bytes;
}

/// Elements of the summaries of a call: what a forward state keeps.
template <class V>
Index call_summary_size(const V& attention, const Problem& problem) {
  if (problem.shape.empty()) return 0;
  Arena arena;
  const Extents<V> e(arena, attention, problem, problem.shape.batch);
  return checked_mul(e.key_summaries(),
                     checked_add(e.summary_size(), normalizes<V> ? e.feature_dim : 0));
}

/// How a path keeps the summaries of tensors of T.
template <class T>
SummaryFormat summary_format(CudaPath path, FloatProducts products) {
  if (path == CudaPath::cublas)
    return products == FloatProducts::tf32 && !std::is_same_v<T, double>
               ? SummaryFormat::of_tf32_products
               : SummaryFormat::accumulators;
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
  return cuda::workspace_size<T>(attention, shape, device, cuda::Direction::forward, state);
}

/// Bytes of device memory that backward_into takes as workspace, whichever gradients are wanted:
/// exact. Otherwise as forward_workspace_size.
template <StorageScalar T, AttentionVariant V>
Index backward_workspace_size(const V& attention, const Shape& shape, const CudaDevice& device,
                              StateUse state = StateUse::none) {
  return cuda::workspace_size<T>(attention, shape, device, cuda::Direction::backward, state);
}

/// Chooses what runs the calls of a shape, once; pass StateUse::given for calls with a
/// CudaForwardState. Allocates nothing and launches nothing.
/// \code
/// const mhla::CudaPlan plan = mhla::plan<float>(attention, call, cuda);
/// y.device(cuda.with(plan)) = attention(q, k, v, mix);
/// \endcode
/// \throws ShapeError if attention and shape do not fit, or the device requests a path that cannot
/// run the call.
template <StorageScalar T, AttentionVariant V>
CudaPlan plan(const V& attention, const Shape& shape, const CudaDevice& device,
              StateUse state = StateUse::none) {
  const Problem problem = checked_problem(attention, shape);
  CudaPlan plan(cuda::call_of<T>(attention, problem, device, cuda::Direction::forward, state));
  for (const auto direction : {cuda::Direction::forward, cuda::Direction::backward}) {
    if (direction == cuda::Direction::backward && !cuda::has_backward(device.path())) continue;
    const auto call = cuda::call_of<T>(attention, problem, device, direction, state);
    const CudaPath path = cuda::path_of(call, device);
    plan.set(direction, path, cuda::memory_of(path, call));
  }
  return plan;
}

/// Elements of the accumulator type that a CudaForwardState needs for a shape.
/// \throws ShapeError if attention and shape do not fit.
template <AttentionVariant V>
Index forward_state_size(const V& attention, const Shape& shape, const CudaDevice&) {
  return cuda::call_summary_size(attention, checked_problem(attention, shape));
}

/// y = attention(q, k, v, mix) in device memory, on the device's stream: shapes, aliasing and
/// errors as the CPU's forward_into. With `save`, the summaries are kept for backward_into; after a
/// CudaError there are none. Everything is checked before anything is launched; nothing is
/// allocated or waited for.
/// \throws ShapeError, also where the device requests a path that cannot run the call;
/// WorkspaceError; CudaError for memory that CUDA does not know, and where a CUDA or cuBLAS call
/// fails: see CudaDevice.
template <AttentionVariant V, StorageScalar T>
void forward_into(const V& attention, const CudaDevice& device, const InputView<T, 4>& q,
                  const InputView<T, 4>& k, const InputView<T, 4>& v,
                  const InputView<Accumulator<T>, 3>& mix, const TensorView<T, 4>& y,
                  WorkspaceView workspace,
                  std::type_identity_t<CudaForwardState<Accumulator<T>>*> save = nullptr) {
  const OperandViews<T> operands{q, k, v, mix};
  const Problem problem = checked_problem(attention, operands.shape());
  const Footprint memory = require_forward(attention, problem.shape, operands, y, workspace,
                                           save == nullptr ? WorkspaceView{} : save->memory());
  const auto call = cuda::call_of<T>(attention, problem, device, cuda::Direction::forward,
                                     save == nullptr ? StateUse::none : StateUse::given);
  const CudaPath path = cuda::path_of(call, device);
  require_workspace(workspace, cuda::memory_of(path, call).workspace_bytes, "mhla::forward_into");
  Span<Accumulator<T>> state;
  if (save != nullptr)
    state = save->prepare(problem.shape, fingerprint_of<T>(attention, problem, Borrowed::address),
                          cuda::call_summary_size(attention, problem),
                          cuda::summary_format<T>(path, device.products()));
  cuda::CompiledKernels<V, T>::forward(
      path, {device, attention, problem, operands, y, workspace, state}, memory);
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
                   const InputView<T, 4>& k, const InputView<T, 4>& v,
                   const InputView<Accumulator<T>, 3>& mix, const InputView<T, 4>& dy,
                   const std::type_identity_t<GradientViews<T>>& gradients, Update update,
                   WorkspaceView workspace,
                   std::type_identity_t<const CudaForwardState<Accumulator<T>>*> saved = nullptr) {
  require_enumerator("update", update, Update::accumulate);
  const OperandViews<T> operands{q, k, v, mix};
  const Problem problem = checked_problem(attention, operands.shape());
  const Footprint memory =
      require_backward(attention, problem.shape, operands, dy, gradients, workspace,
                       saved == nullptr ? WorkspaceView{} : saved->memory());
  const auto call = cuda::call_of<T>(attention, problem, device, cuda::Direction::backward,
                                     saved == nullptr ? StateUse::none : StateUse::given);
  const CudaPath path = cuda::path_of(call, device);
  require_workspace(workspace, cuda::memory_of(path, call).workspace_bytes, "mhla::backward_into");
  Span<Accumulator<T>> state;
  if (saved != nullptr)
    state =
        saved->summaries(problem.shape, fingerprint_of<T>(attention, problem, Borrowed::address),
                         cuda::summary_format<T>(path, device.products()));
  cuda::CompiledKernels<V, T>::backward(
      path, {device, attention, problem, operands, dy, gradients, update, workspace, state},
      memory);
}

/// \}

MHLA_NAMESPACE_END
