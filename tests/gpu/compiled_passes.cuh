// SPDX-License-Identifier: MIT
// Fused passes in files of their own: nvcc takes a minute for those of one variant and one pair of
// head dimensions, so that they are compiled side by side.
//
// MHLA_GPU_PASSES(extern, Variant, Scalar, Dims), before MHLA_INSTANTIATE_CUDA, says that they are
// in another file; MHLA_GPU_PASSES(, Variant, Scalar, Dims) is that file, which CMakeLists.txt
// writes.
#pragma once

#include <mhla/cuda/instantiate.cuh>
#include <type_traits>

#define MHLA_GPU_PASS(where, Call, Variant, Scalar, ...)                              \
  where template std::type_identity_t<void(const mhla::cuda::Call<Variant, Scalar>&)> \
      mhla::cuda::__VA_ARGS__
#define MHLA_GPU_PASSES(where, Variant, Scalar, ...)                    \
  MHLA_GPU_PASS(where, ForwardCall, Variant, Scalar,                    \
                SummariesPath::forward<__VA_ARGS__, Variant, Scalar>);  \
  MHLA_GPU_PASS(where, ForwardCall, Variant, Scalar,                    \
                QuadraticPath::forward<__VA_ARGS__, Variant, Scalar>);  \
  MHLA_GPU_PASS(where, ForwardCall, Variant, Scalar,                    \
                ResidentPath::forward<__VA_ARGS__, Variant, Scalar>);   \
  MHLA_GPU_PASS(where, BackwardCall, Variant, Scalar,                   \
                SummariesPath::backward<__VA_ARGS__, Variant, Scalar>); \
  MHLA_GPU_PASS(where, BackwardCall, Variant, Scalar,                   \
                QuadraticPath::backward<__VA_ARGS__, Variant, Scalar>)
