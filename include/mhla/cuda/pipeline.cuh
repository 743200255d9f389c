// SPDX-License-Identifier: MIT
// Runs a checked call: on cuBLAS in parts of the batch, so that its panels take bounded memory, or
// by the fused passes that the program compiles.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/backward_pass.cuh>
#include <mhla/cuda/batch_part.hpp>
#include <mhla/cuda/device_memory.cuh>
#include <mhla/cuda/forward_pass.cuh>
#include <mhla/cuda/fused/passes.cuh>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/pipeline.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Head dimensions that fused passes of a variant are compiled for: MHLA_INSTANTIATE_CUDA, if it
/// lists any, specializes this before anything else uses it.
template <class V, class T>
struct FusedHeadDims {
  using List = HeadDimsOf<>;
};

template <class V, class T>
HeadDimsList compiled_head_dims() {
  using List = typename FusedHeadDims<V, T>::List;
  static_assert(List::size == 0 || has_fused_passes<V, T>,
                "mhla: fused CUDA kernels are for mhla::BFloat16 and mhla::Half, element-wise "
                "feature maps, MixedKeySum and Unnormalized, and not for Causal with MixedKeySum "
                "and a rotation: leave out the head dimensions in MHLA_INSTANTIATE_CUDA");
  return List::list();
}

template <class V, class T>
Index shared_bytes_at_hand() {
  return shared_bytes_of_device(NominalGpu().shared_bytes);
}

/// The fused passes of a variant, for the head dimensions of a call, which are in the list.
template <class V, class T>
struct FusedPasses {
  using List = typename FusedHeadDims<V, T>::List;

  static CallMemory memory(CudaPath path, const V& attention, const Problem& problem,
                           Direction direction) {
    CallMemory memory;
    visit(problem, [&](auto dims) {
      memory = fused::memory_of<V, T, decltype(dims)>(path, attention, problem, direction);
    });
    return memory;
  }
  static void forward(CudaPath path, const CudaDevice& device, const V& attention,
                      const Problem& problem, const OperandViews<T>& operands,
                      const TensorView<T, 4>& y, WorkspaceView workspace,
                      Span<Accumulator<T>> state) {
    visit(problem, [&](auto dims) {
      fused::run_forward<V, T, decltype(dims)>(path, device, attention, problem, operands, y,
                                               workspace, state);
    });
  }
  static void backward(CudaPath path, const CudaDevice& device, const V& attention,
                       const Problem& problem, const OperandViews<T>& operands,
                       const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                       Update update, WorkspaceView workspace, Span<Accumulator<T>> state) {
    visit(problem, [&](auto dims) {
      fused::run_backward<V, T, decltype(dims)>(path, device, attention, problem, operands, dy,
                                                gradients, update, workspace, state);
    });
  }

 private:
  template <class F>
  static void visit(const Problem& problem, const F& f) {
    if (!List::visit(problem.shape.key_dim, problem.shape.value_dim, f))
      throw CudaError("mhla: no fused pass was compiled for head dimensions ",
                      to_string(HeadDimsPair{problem.shape.key_dim, problem.shape.value_dim}));
  }
};

template <class V, class T>
CallMemory fused_memory(CudaPath path, const V& attention, const Problem& problem,
                        Direction direction) {
  return FusedPasses<V, T>::memory(path, attention, problem, direction);
}

/// Where the summaries of items [first, ...) are in a state: those of the whole batch, followed by
/// its key sums.
template <class V, class A>
void keep_summaries(Plan<V, A>& plan, Index batch, Index first, Span<A> state) {
  if (state.data == nullptr) return;
  const Extents<V>& e = plan.extents;
  const Index of_item = e.keys.kv_heads * e.keys.table.blocks;
  plan.summaries.data = state.data + first * of_item * e.summary_size();
  if constexpr (normalizes<V>)
    plan.key_sums.data =
        state.data + batch * of_item * e.summary_size() + first * of_item * e.feature_dim;
}

/// y of every query.
template <class V, class T>
void run_forward_on_cublas(const CudaDevice& device, const V& attention, const Problem& problem,
                           const OperandViews<T>& operands, const TensorView<T, 4>& y,
                           WorkspaceView workspace, Span<Accumulator<T>> state) {
  using A = Accumulator<T>;
  const Index at_once = items_at_once<V, A>(attention, problem, false);
  Arena arena(workspace);
  const Plan<V, A> whole(arena, attention, problem, at_once, false);
  const BorrowedCublas cublas(device, whole.cublas);
  for (Index first = 0; first < problem.shape.batch; first += at_once) {
    const Index count = std::min(at_once, problem.shape.batch - first);
    Plan<V, A> plan = plan_of_items(whole, first, count);
    keep_summaries(plan, problem.shape.batch, first, state);
    const Operands<V, T> part{device,
                              attention,
                              plan,
                              items(operands.q, first, count),
                              items(operands.k, first, count),
                              items(operands.v, first, count),
                              operands.mix};
    if (first == 0) fill_tables(part);
    pack_keys(part);
    summarize_blocks(part);
    mix_blocks(part);
    pack_queries(part);
    read_out_blocks(part, items(y, first, count));
  }
}

template <class V, class T>
void run_forward(CudaPath path, const CudaDevice& device, const V& attention,
                 const Problem& problem, const OperandViews<T>& operands, const TensorView<T, 4>& y,
                 WorkspaceView workspace, Span<Accumulator<T>> state) {
  require_memory_of_call(attention, operands, {workspace.data, workspace.size}, state);
  require_device_memory(y, "y");
  if (problem.shape.empty()) return;
  if (path == CudaPath::cublas) {
    run_forward_on_cublas(device, attention, problem, operands, y, workspace, state);
  } else {
    FusedPasses<V, T>::forward(path, device, attention, problem, operands, y, workspace, state);
  }
  if constexpr (requires { attention.masks; }) clear_masked(device, attention.masks.query, y);
}

/// The wanted gradients.
template <class V, class T>
void run_backward_on_cublas(const CudaDevice& device, const V& attention, const Problem& problem,
                            const OperandViews<T>& operands, const TensorView<const T, 4>& dy,
                            const GradientViews<T>& gradients, Update update,
                            WorkspaceView workspace, Span<Accumulator<T>> state) {
  using A = Accumulator<T>;
  const Index at_once = items_at_once<V, A>(attention, problem, true);
  Arena arena(workspace);
  const Plan<V, A> whole(arena, attention, problem, at_once, true);
  const BorrowedCublas cublas(device, whole.cublas);
  clear(device, whole.grad_mixing);
  clear(device, whole.grad_own_mixing);
  for (Index first = 0; first < problem.shape.batch; first += at_once) {
    const Index count = std::min(at_once, problem.shape.batch - first);
    Plan<V, A> plan = plan_of_items(whole, first, count);
    keep_summaries(plan, problem.shape.batch, first, state);
    const Operands<V, T> part{device,
                              attention,
                              plan,
                              items(operands.q, first, count),
                              items(operands.k, first, count),
                              items(operands.v, first, count),
                              operands.mix};
    if (first == 0) fill_tables(part);
    pack_keys(part);
    if (state.data == nullptr) summarize_blocks(part);
    mix_blocks(part);
    pack_queries(part);
    backward_pass(part, part_of(BackwardRequest<V, T>{dy, gradients, update}, first, count));
  }
  if (gradients.mix.wanted)
    write_mixing_gradient(device, whole, sight_of<V>, gradients.mix.view, update);
}

template <class V, class T>
void run_backward(CudaPath path, const CudaDevice& device, const V& attention,
                  const Problem& problem, const OperandViews<T>& operands,
                  const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                  Update update, WorkspaceView workspace, Span<Accumulator<T>> state) {
  require_memory_of_call(attention, operands, {workspace.data, workspace.size}, state);
  require_device_memory(dy, "dy");
  if (gradients.query.wanted) require_device_memory(gradients.query.view, "dq");
  if (gradients.key.wanted) require_device_memory(gradients.key.view, "dk");
  if (gradients.value.wanted) require_device_memory(gradients.value.view, "dv");
  if (gradients.mix.wanted) require_device_memory(gradients.mix.view, "dmix");
  if (problem.shape.empty()) {
    if (update == Update::accumulate) return;
    clear(device, gradients.query);
    clear(device, gradients.key);
    clear(device, gradients.value);
    clear(device, gradients.mix);
    return;
  }
  if (path == CudaPath::cublas) {
    run_backward_on_cublas(device, attention, problem, operands, dy, gradients, update, workspace,
                           state);
  } else {
    FusedPasses<V, T>::backward(path, device, attention, problem, operands, dy, gradients, update,
                                workspace, state);
  }
  if constexpr (requires { attention.masks; }) {
    if (update == Update::accumulate) return;
    if (gradients.query.wanted) clear_masked(device, attention.masks.query, gradients.query.view);
    if (gradients.key.wanted) clear_masked(device, attention.masks.key, gradients.key.view);
    if (gradients.value.wanted) clear_masked(device, attention.masks.key, gradients.value.view);
  }
}

}  // namespace cuda

MHLA_NAMESPACE_END
