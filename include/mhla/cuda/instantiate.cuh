// SPDX-License-Identifier: MIT
// The kernels of one variant, for a .cu file of the program:
//
//   #include <mhla/cuda/instantiate.cuh>
//   using Attention = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
//   MHLA_INSTANTIATE_CUDA(Attention, float);
#pragma once

#include <mhla/cuda/pipeline.cuh>
#include <type_traits>

// The types of the functions come first and as one: behind the name of a function of mhla, the
// caller's `Attention` would be looked up in there.

/// Compiles forward and backward pass of `Variant`, an Attention<...> or a batch layout of one, on
/// tensors of `Scalar`: float, double, mhla::BFloat16 or mhla::Half. `Variant` holds no comma: give
/// it a name.
#define MHLA_INSTANTIATE_CUDA(Variant, Scalar)                                                    \
  template std::type_identity_t<void(const mhla::CudaDevice&, const Variant&,                     \
                                     const mhla::Problem&, const mhla::OperandViews<Scalar>&,     \
                                     const mhla::TensorView<Scalar, 4>&, mhla::WorkspaceView,     \
                                     mhla::Span<mhla::Accumulator<Scalar>>)>                      \
      mhla::cuda::run_forward<Variant, Scalar>;                                                   \
  template std::type_identity_t<void(const mhla::CudaDevice&, const Variant&,                     \
                                     const mhla::Problem&, const mhla::OperandViews<Scalar>&,     \
                                     const mhla::TensorView<const Scalar, 4>&,                    \
                                     const mhla::GradientViews<Scalar>&, mhla::Update,            \
                                     mhla::WorkspaceView, mhla::Span<mhla::Accumulator<Scalar>>)> \
      mhla::cuda::run_backward<Variant, Scalar>
