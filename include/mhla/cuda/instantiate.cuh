// SPDX-License-Identifier: MIT
// The kernels of one variant, for a .cu file of the program: MHLA_INSTANTIATE_CUDA.
#pragma once

#include <mhla/cuda/pipeline.cuh>

// The list of head dimensions gets a name in the caller's namespace, a new one each time: inside
// mhla the caller's names would be looked up there.

/// \addtogroup cuda
/// \{

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

/// \}

// In two steps, so that __COUNTER__ is expanded before it is pasted.
#define MHLA_NAME_HEAD_DIMS(number, Variant, Scalar, ...) \
  MHLA_NAME_HEAD_DIMS_NUMBERED(number, Variant, Scalar, __VA_ARGS__)
#define MHLA_NAME_HEAD_DIMS_NUMBERED(number, Variant, Scalar, ...)     \
  using mhla_head_dims_##number = mhla::cuda::HeadDimsOf<__VA_ARGS__>; \
  template <>                                                          \
  struct mhla::cuda::FusedHeadDims<Variant, Scalar> {                  \
    using List = mhla_head_dims_##number;                              \
  };
