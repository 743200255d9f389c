// SPDX-License-Identifier: MIT
// The kernels of one variant, for a .cu file of the program: MHLA_INSTANTIATE_CUDA. They run a
// checked call on its path.
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
    if constexpr (!Path::traits.is_fused) {
      f.template operator()<Path, void>();
    } else if (!List::visit(shape.key_dim, shape.value_dim,
                            [&]<class Dims>(Dims) { f.template operator()<Path, Dims>(); })) {
      throw CudaError({"mhla: no fused pass was compiled for head dimensions ", shape.key_dim, "/",
                       shape.value_dim});
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
    if constexpr (Path::traits.has_backward) Path::template backward<Dims>(call);
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

// The list of head dimensions gets a name in the caller's namespace, a new one each time: inside
// mhla the caller's names would be looked up there.

/// \ingroup cuda
/// Compiles the forward and backward pass of `Variant`, an Attention or a batch layout of one, on
/// tensors of `Scalar`: float, double, mhla::BFloat16 or mhla::Half, in a .cu file of the program:
///
///     using Vision = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
///     MHLA_INSTANTIATE_CUDA(Vision, float);
///     MHLA_INSTANTIATE_CUDA(Vision, mhla::Half, mhla::HeadDims<64, 64>);
///
/// `Variant` contains no comma: give it a name. After the scalar, any number of
/// mhla::HeadDims<key_dim, value_dim>: 16-bit tensors with these run on fused kernels where the
/// cost model finds them faster; all others run on cuBLAS. A program instantiates a variant and
/// scalar once, in the global namespace, before anything calls the variant.
#define MHLA_INSTANTIATE_CUDA(Variant, Scalar, ...)                          \
  __VA_OPT__(MHLA_NAME_HEAD_DIMS(__COUNTER__, Variant, Scalar, __VA_ARGS__)) \
  template struct mhla::cuda::CompiledKernels<Variant, Scalar>

// In two steps, so that __COUNTER__ is expanded before it is pasted.
#define MHLA_NAME_HEAD_DIMS(number, Variant, Scalar, ...) \
  MHLA_NAME_HEAD_DIMS_NUMBERED(number, Variant, Scalar, __VA_ARGS__)
#define MHLA_NAME_HEAD_DIMS_NUMBERED(number, Variant, Scalar, ...)     \
  using mhla_head_dims_##number = mhla::cuda::HeadDimsOf<__VA_ARGS__>; \
  template <>                                                          \
  struct mhla::cuda::FusedHeadDims<Variant, Scalar> {                  \
    using List = mhla_head_dims_##number;                              \
  };
