// SPDX-License-Identifier: MIT
// Fused passes in files of their own: nvcc takes a minute for those of one variant and one pair of
// head dimensions, so that they are compiled side by side.
//
// MHLA_GPU_PASSES(extern, Variant, Scalar, Dims), before MHLA_INSTANTIATE_CUDA, says that they are
// in another file; MHLA_GPU_PASSES(, Variant, Scalar, Dims) is that file, which CMakeLists.txt
// writes.
#pragma once

#include <mhla/cuda/fused/passes.cuh>
#include <type_traits>

#define MHLA_GPU_PASSES(where, Variant, Scalar, ...)                                              \
  where template std::type_identity_t<void(                                                       \
      mhla::CudaPath, const mhla::CudaDevice&, const Variant&, const mhla::Problem&,              \
      const mhla::OperandViews<Scalar>&, const mhla::TensorView<Scalar, 4>&, mhla::WorkspaceView, \
      mhla::Span<float>)>                                                                         \
      mhla::cuda::fused::run_forward<Variant, Scalar, __VA_ARGS__>;                               \
  where template std::type_identity_t<void(                                                       \
      mhla::CudaPath, const mhla::CudaDevice&, const Variant&, const mhla::Problem&,              \
      const mhla::OperandViews<Scalar>&, const mhla::TensorView<const Scalar, 4>&,                \
      const mhla::GradientViews<Scalar>&, mhla::Update, mhla::WorkspaceView, mhla::Span<float>)>  \
      mhla::cuda::fused::run_backward<Variant, Scalar, __VA_ARGS__>
