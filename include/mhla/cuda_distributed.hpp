// SPDX-License-Identifier: MIT
/// \file
/// A sequence divided over GPUs, by blocks or by heads, from a plain .cpp.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/cuda/heads.hpp>
#include <mhla/cuda/pipeline.hpp>
#include <mhla/cuda/stages.hpp>
#include <mhla/distributed/head_parallel.hpp>
#include <mhla/distributed/sequence_parallel.hpp>

MHLA_NAMESPACE_BEGIN

/// SequenceParallel of tensors of T in device memory: its calls take a CudaDevice in place of an
/// executor, views and a workspace of device memory, and run in stream order on
/// CudaPath::cublas. The communicator moves device memory, and waits for the device's stream before
/// it sends: NcclCommunicator does on that stream. The kernels are those of
/// MHLA_INSTANTIATE_CUDA_STAGES(V, T).
///
/// Of what a variant borrows in device memory, masks or a projection, ranks do not compare
/// contents.
/// \ingroup distributed
template <StorageScalar T, AttentionVariant V, Communicator C>
SequenceParallel<CudaStages<V, T>, C> cuda_sequence_parallel(const V& attention, const Shape& whole,
                                                             const C& communicator, Shares queries,
                                                             Shares keys = {},
                                                             Wire wire = Wire::exact) {
  return {attention, whole, communicator, (std::move)(queries), (std::move)(keys), wire};
}

/// \cond INTERNAL
// What HeadParallel does besides talking to other ranks: see HostHeads.
template <AttentionVariant V, StorageScalar T>
struct CudaHeads {
  using Variant = V;
  using Scalar = T;
  using Tokens = GridPart;
  using Kernels = cuda::HeadKernels<T>;
  static constexpr Borrowed compared = Borrowed::nothing;
  template <class E>
  static constexpr bool runs_on = std::is_convertible_v<const E*, const CudaDevice*>;

  template <class List>
  static Tokens tokens(const List& list, const BlockRange& blocks) {
    return part_of(list, blocks);
  }
  static bool gives_dmix(const OwnHeads<V>& heads) { return heads.own.shape.heads > 0; }
  static Index backward_workspace_size(const OwnHeads<V>& heads, const CudaDevice& device) {
    const Shape& own = heads.own.shape;
    return own.kv_heads == 0 ? 0 : mhla::backward_workspace_size<T>(heads.attention, own, device);
  }

  template <class C>
  static void backward(const OwnHeads<V>& heads, const CudaDevice& device, const C&,
                       const OperandViews<T>& x, const TensorView<const T, 4>& dy,
                       const GradientViews<T>& gradients, Update update, WorkspaceView workspace) {
    if (heads.own.shape.kv_heads == 0) return;
    GradientViews<T> given = gradients;
    if (!gives_dmix(heads)) given.mix = skip;  // no head reads these keys: dk and dv are 0
    // dq, dk and dv are overwritten also where dmix is added to: -0 + x is x.
    T nothing;
    store(nothing, Accumulator<T>(-0.0f));
    const std::array of_tokens{gradients.query, gradients.key, gradients.value};
    for (const auto& gradient : of_tokens)
      if (gradient.wanted && update == Update::accumulate)
        Kernels::fill(device, gradient.view, nothing);
    backward_into(heads.attention, device, x.q, x.k, x.v, x.mix, dy, given, update, workspace);
  }
};
/// \endcond

/// HeadParallel of tensors of T in device memory: its calls take a CudaDevice as those of
/// cuda_sequence_parallel, and run a rank's heads on any path. y, dq, dk and dv have the bits of
/// one device's whole call on the same path, where a head's do not depend on how many others there
/// are. If one matrix serves all heads, dmix is what a rank's heads give of it: summed over ranks
/// it differs from one device's in rounding. The kernels are those of MHLA_INSTANTIATE_CUDA(V, T)
/// and of MHLA_INSTANTIATE_CUDA_HEADS(T).
/// \ingroup distributed
template <StorageScalar T, AttentionVariant V, Communicator C>
HeadParallel<CudaHeads<V, T>, C> cuda_head_parallel(const V& attention, const Shape& whole,
                                                    const C& communicator, Shares queries,
                                                    Shares keys = {}) {
  return {attention, whole, communicator, (std::move)(queries), (std::move)(keys)};
}

/// \cond INTERNAL
MHLA_ANY_CALL(AnyArgument cuda_sequence_parallel, { return explain_parallel<Given...>(); })
MHLA_ANY_CALL(AnyArgument cuda_head_parallel, { return explain_parallel<Given...>(); })
/// \endcond

MHLA_NAMESPACE_END
