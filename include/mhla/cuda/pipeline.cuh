// SPDX-License-Identifier: MIT
// Runs a checked call part by part of the batch, so that its panels take bounded memory.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/backward_pass.cuh>
#include <mhla/cuda/device_memory.cuh>
#include <mhla/cuda/forward_pass.cuh>
#include <mhla/cuda/pipeline.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Items [first, first + count) of a tensor's batch.
template <class T>
TensorView<T, 4> items(TensorView<T, 4> tensor, Index first, Index count) {
  if (tensor.data != nullptr) tensor.data += first * tensor.stride[0];
  tensor.extent[0] = count;
  return tensor;
}
inline TensorView<const std::uint8_t, 2> items(TensorView<const std::uint8_t, 2> mask,
                                               Index first) {
  if (mask.data != nullptr) mask.data += first * mask.stride[0];
  return mask;
}

/// A plan for items [first, first + count) of the one for more.
template <class V, class A>
Plan<V, A> plan_of_items(Plan<V, A> plan, Index first, Index count) {
  plan.extents.queries.batch = plan.extents.keys.batch = count;
  plan.extents.queries.table.mask = items(plan.extents.queries.table.mask, first);
  plan.extents.keys.table.mask = items(plan.extents.keys.table.mask, first);
  return plan;
}

/// Where the summaries of items [first, ...) are in a state: those of the whole batch, and its key
/// sums behind them.
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

template <class V, class T>
void run_forward(const CudaDevice& device, const V& attention, const Problem& problem,
                 const OperandViews<T>& operands, const TensorView<T, 4>& y,
                 WorkspaceView workspace, Span<Accumulator<T>> state) {
  using A = Accumulator<T>;
  const Index at_once = items_at_once<V, A>(attention, problem, false);
  Arena arena(workspace);
  const Plan<V, A> whole(arena, attention, problem, at_once, false);
  require_memory_of_call(attention, operands, {workspace.data, arena.used()}, state);
  require_device_memory(y, "y");
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
  if constexpr (requires { attention.masks; }) clear_masked(device, attention.masks.query, y);
}

template <class V, class T>
void run_backward(const CudaDevice& device, const V& attention, const Problem& problem,
                  const OperandViews<T>& operands, const TensorView<const T, 4>& dy,
                  const GradientViews<T>& gradients, Update update, WorkspaceView workspace,
                  Span<Accumulator<T>> state) {
  using A = Accumulator<T>;
  const Index at_once = items_at_once<V, A>(attention, problem, true);
  Arena arena(workspace);
  const Plan<V, A> whole(arena, attention, problem, at_once, true);
  const Extents<V>& e = whole.extents;
  require_memory_of_call(attention, operands, {workspace.data, arena.used()}, state);
  require_device_memory(dy, "dy");
  if (gradients.query.wanted) require_device_memory(gradients.query.view, "dq");
  if (gradients.key.wanted) require_device_memory(gradients.key.view, "dk");
  if (gradients.value.wanted) require_device_memory(gradients.value.view, "dv");
  if (gradients.mix.wanted) require_device_memory(gradients.mix.view, "dmix");
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
    BackwardRequest<V, T> request{items(dy, first, count), gradients, update};
    request.gradients.query.view = items(gradients.query.view, first, count);
    request.gradients.key.view = items(gradients.key.view, first, count);
    request.gradients.value.view = items(gradients.value.view, first, count);
    if (first == 0) fill_tables(part);
    pack_keys(part);
    if (state.data == nullptr) summarize_blocks(part);
    mix_blocks(part);
    pack_queries(part);
    backward_pass(part, request);
  }
  if (gradients.mix.wanted)
    launch(device, gradients.mix.view.size(),
           WriteMixingGradient<A>{
               whole.grad_mixing.data, masks_own_block<V> ? whole.grad_own_mixing.data : nullptr,
               e.matrices == 0 ? 0 : e.units(), e.keys.kv_heads, e.matrices, e.mix_rows,
               e.mix_columns, sight_of<V>(), gradients.mix.view, update});
  if constexpr (requires { attention.masks; }) {
    if (update == Update::accumulate) return;
    if (gradients.query.wanted) clear_masked(device, attention.masks.query, gradients.query.view);
    if (gradients.key.wanted) clear_masked(device, attention.masks.key, gradients.key.view);
    if (gradients.value.wanted) clear_masked(device, attention.masks.key, gradients.value.view);
  }
}

}  // namespace cuda

MHLA_NAMESPACE_END
