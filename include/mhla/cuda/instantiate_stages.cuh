// SPDX-License-Identifier: MIT
// The stages of one variant, for a .cu file of the program: MHLA_INSTANTIATE_CUDA_STAGES. Runs
// checked stages: those of the cuBLAS path (paths/cublas.cuh) on some blocks, in parts of the
// batch. Mixing reads and writes the caller's rows; what panels make is copied from or to them.
#pragma once

#include <mhla/cuda/paths/cublas.cuh>
#include <mhla/cuda/stages.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// The rows of a stage's blocks, of a part of the batch.
template <class V, class T>
struct StageRows {
  using A = Accumulator<T>;
  using Rows = TensorView<const A, 2>;
  const CublasPass<V, T>& pass;
  const CudaDevice& device = pass.device;
  const Extents<V>& e = pass.e;

  /// S and z of each unit and, if there are several, matrix.
  BlockSums<A> sums(const Rows& rows, Index matrices) const {
    if (rows.extent[0] == 0) return {};
    const Index size = e.summary_size() + (normalizes<V> ? e.feature_dim : 0);
    const BlockRows<A> all = of_part(rows, matrices, size);
    return {{all.data, e.summary_size(), size, all.of_block, all.of_unit},
            {all.data + e.summary_size(), e.feature_dim, size, all.of_block, all.of_unit},
            rows.extent[0]};
  }
  void copy_sums(Index matrices, const BlockSums<A>& from, const BlockSums<A>& to) const {
    copy(device, e.units(), to.blocks, matrices, from.summaries, to.summaries);
    if constexpr (normalizes<V>)
      copy(device, e.units(), to.blocks, matrices, from.key_sums, to.key_sums);
  }
  /// Copies den and its gradient to rows or, if these are const, from them.
  template <class B>
  void copy_denominators(const TensorView<B, 2>& rows) const {
    if (rows.extent[0] == 0) return;
    const PanelRows& of = e.queries;
    const Index tokens = of.table.block_tokens;
    BlockRows<A> row = of_part(rows, of.group_size, 2 * tokens);
    row.size = tokens;
    const Span<A> both[] = {pass.plan.denominators, pass.plan.grad_denominators};
    for (const Span<A>& numbers : both) {
      const BlockRows<A> there = block_rows(numbers, of.table.blocks, of.group_size, tokens);
      constexpr bool reads = std::is_const_v<B>;
      copy(device, e.units(), of.table.blocks, of.group_size, reads ? row : there,
           reads ? there : row);
      row.data += tokens;
    }
  }

 private:
  /// Those that one stage writes and others read.
  BlockRows<A> of_part(const Rows& rows, Index heads, Index size) const {
    const Index of_unit = heads * size;
    const Index stride = rows.extent[0] > 1 ? rows.stride[0] : rows.extent[1];
    return {const_cast<A*>(rows.data) + pass.of.first * e.keys.kv_heads * of_unit, size, size,
            stride, of_unit};
  }
};

template <class V, class T>
void StageKernels<V, T>::require_memory(const Footprint& memory) {
  require_device_memory(memory);
}

template <class V, class T>
void StageKernels<V, T>::run(const stages::Summarize<T>& call, WorkspaceView workspace) const {
  run_in_parts(in(workspace, call.x), [&](const auto& pass, const auto&) {
    const StageRows<V, T> rows{pass};
    pass.pack_keys();
    pass.summarize_blocks();
    rows.copy_sums(1, pass.summaries(), rows.sums(call.summaries, 1));
  });
}

template <class V, class T>
void StageKernels<V, T>::run(const stages::ReadOut<T>& call, WorkspaceView workspace) const {
  run_in_parts(in(workspace, call.x), [&](const auto& pass, const auto& cut) {
    if constexpr (is_causal_within_block<V>) pass.pack_keys();
    pass.read_out(StageRows<V, T>{pass}.sums(call.sums.summaries, 1), cut(call.y));
  });
}

template <class V, class T>
void StageKernels<V, T>::run(const stages::ReadOutGradient<T>& call,
                             WorkspaceView workspace) const {
  const auto part =
      in(workspace, call.x, call.dy, {call.dq, skip, skip, call.dmix}, call.mix_update);
  run_in_parts(part, [&](const auto& pass, const auto& dy, const GradientViews<T>& to) {
    const StageRows<V, T> rows{pass};
    const BlockSums<A> from = rows.sums(call.sums.summaries, 1);
    if constexpr (is_causal_within_block<V>) pass.pack_keys();
    pass.read_out_gradient(from, dy, to.query, call.update);
    if (to.mix.wanted) pass.mixing_gradient(from);
    const Index matrices = pass.e.matrices;
    rows.copy_sums(matrices, pass.mixed_gradients(), rows.sums(call.left.mixtures, matrices));
    if constexpr (is_causal_within_block<V> && normalizes<V>)
      rows.copy_denominators(call.left.denominators);
  });
}

template <class V, class T>
void StageKernels<V, T>::run(const stages::MixGradient<T>& call, WorkspaceView workspace) const {
  run_in_parts(in(workspace, call.x), [&](const auto& pass, const auto&) {
    const StageRows<V, T> rows{pass};
    pass.mix_blocks_gradient(rows.sums(call.mixtures, pass.e.matrices),
                             rows.sums(call.summary_gradients, 1));
  });
}

template <class V, class T>
void StageKernels<V, T>::run(const stages::SummarizeGradient<T>& call,
                             WorkspaceView workspace) const {
  // Only the diagonal of dmix comes from here; what it is added to stays.
  const auto part =
      in(workspace, call.x, call.dy, {skip, call.dk, call.dv, call.dmix}, Update::accumulate);
  run_in_parts(part, [&](const auto& pass, const auto& dy, const GradientViews<T>& to) {
    const StageRows<V, T> rows{pass};
    pass.pack_keys();
    if constexpr (is_causal_within_block<V>) {
      pass.pack_queries();
      if constexpr (normalizes<V>) rows.copy_denominators(call.denominators);
      pass.divide(dy);
      pass.own_blocks_gradient();
      if constexpr (mixes_key_sums<V>) {
        pass.sum_own_keys();
        pass.own_key_sums_gradient();
      }
      if (to.mix.wanted) add_own_mixing_gradient(pass.of);
    }
    rows.copy_sums(1, rows.sums(call.summary_gradients, 1), pass.summary_gradients());
    pass.summarize_blocks_gradient(to, call.update);
  });
}

template <class V, class T>
void StageKernels<V, T>::copy_tensor(const CudaDevice& device, const TensorView<const T, 4>& from,
                                     const TensorView<T, 4>& to) {
  copy(device, from, to);
}
template <class V, class T>
void StageKernels<V, T>::copy_tensor(const CudaDevice& device, const TensorView<const A, 3>& from,
                                     const TensorView<A, 3>& to) {
  copy(device, from, to);
}
template <class V, class T>
void StageKernels<V, T>::clear_tensor(const CudaDevice& device, const TensorView<T, 4>& tensor) {
  set_zero(device, tensor);
}
template <class V, class T>
void StageKernels<V, T>::clear_masked(const CudaDevice& device,
                                      const TensorView<const std::uint8_t, 2>& mask,
                                      const TensorView<T, 4>& tensor) {
  cuda::clear_masked(device, mask, tensor);
}
template <class V, class T>
void StageKernels<V, T>::clear_tensor(const CudaDevice& device, const TensorView<A, 3>& tensor) {
  set_zero(device, tensor);
}

template <class V, class T>
void StageKernels<V, T>::round_rows(const CudaDevice& device, const SumsLayout& of,
                                    const Rows& rows, std::byte* to) {
  round_sums(device, of, rows, to);
}
template <class V, class T>
void StageKernels<V, T>::widen_rows(const CudaDevice& device, const SumsLayout& of,
                                    const std::byte* from, const TensorView<A, 2>& rows) {
  round_sums(device, of, rows, from);
}

}  // namespace cuda

MHLA_NAMESPACE_END

/// \ingroup cuda
/// Compiles mhla::CudaStages, and cuda_sequence_parallel, of `Variant`, packed or not, on tensors
/// of `Scalar`, in the global namespace of a .cu file of the program. `Variant` contains no comma:
/// give it a name.
#define MHLA_INSTANTIATE_CUDA_STAGES(Variant, Scalar) \
  template class mhla::cuda::StageKernels<Variant, Scalar>
