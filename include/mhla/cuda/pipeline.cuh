// SPDX-License-Identifier: MIT
// Runs a checked call on its path, with the kernels that the program compiles.
#pragma once

#include <mhla/cuda/paths/cublas.cuh>
#include <mhla/cuda/paths/quadratic.cuh>
#include <mhla/cuda/paths/resident.cuh>
#include <mhla/cuda/paths/summaries.cuh>
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
HeadDimsList CompiledKernels<V, T>::head_dims() {
  using List = typename FusedHeadDims<V, T>::List;
  static_assert(
      List::size == 0 || has_fused_passes<V, T>,
      "mhla: fused CUDA kernels are for mhla::BFloat16 and mhla::Half, element-wise "
      "feature maps, MixedKeySum and Unnormalized, DenseMixing, and not for Causal with "
      "MixedKeySum and a rotation: leave out the head dimensions in MHLA_INSTANTIATE_CUDA");
  return List::list();
}

template <class V, class T>
Index CompiledKernels<V, T>::shared_bytes() {
  return shared_bytes_of_device(NominalGpu().shared_bytes);
}

/// Runs a call on a path that can, with the head dimensions that it is compiled for.
template <class V, class T, class F>
void run_on_path(CudaPath path, const Shape& shape, const F& f) {
  using List = typename FusedHeadDims<V, T>::List;
  Paths::visit(path, [&]<class Path>(Path) {
    if constexpr (!Path::is_fused) {
      f.template operator()<Path, void>();
    } else if (!List::visit(shape.key_dim, shape.value_dim,
                            [&]<class Dims>(Dims) { f.template operator()<Path, Dims>(); })) {
      throw CudaError({"mhla: no fused pass was compiled for head dimensions ",
                       to_string(HeadDimsPair{shape.key_dim, shape.value_dim})});
    }
  });
}

template <class V, class T>
void CompiledKernels<V, T>::forward(CudaPath path, const ForwardCall<V, T>& call,
                                    const Footprint& memory) {
  require_device_memory(memory);
  if (call.problem.shape.empty()) return;
  run_on_path<V, T>(path, call.problem.shape,
                    [&]<class Path, class Dims>() { Path::template forward<Dims>(call); });
  if constexpr (requires { call.attention.masks; })
    clear_masked(call.device, call.attention.masks.query, call.y);
}

template <class V, class T>
void CompiledKernels<V, T>::backward(CudaPath path, const BackwardCall<V, T>& call,
                                     const Footprint& memory) {
  const GradientViews<T>& gradients = call.gradients;
  require_device_memory(memory);
  if (call.problem.shape.empty()) {
    if (call.update == Update::overwrite)
      gradients.for_each(
          [&](const auto& gradient, const char*) { set_zero(call.device, gradient); });
    return;
  }
  run_on_path<V, T>(path, call.problem.shape, [&]<class Path, class Dims>() {
    if constexpr (Path::has_backward) Path::template backward<Dims>(call);
  });
  if constexpr (requires { call.attention.masks; }) {
    if (call.update == Update::accumulate) return;
    const auto& masks = call.attention.masks;
    if (gradients.query.wanted) clear_masked(call.device, masks.query, gradients.query.view);
    if (gradients.key.wanted) clear_masked(call.device, masks.key, gradients.key.view);
    if (gradients.value.wanted) clear_masked(call.device, masks.key, gradients.value.view);
  }
}

}  // namespace cuda

MHLA_NAMESPACE_END
