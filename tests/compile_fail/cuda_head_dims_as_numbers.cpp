// SPDX-License-Identifier: MIT
// Something else than head dimensions in their list.
// EXPECT: mhla: MHLA_INSTANTIATE_CUDA(Variant, Scalar, ...) takes head dimensions behind the scalar
#include <mhla/core/scalar.hpp>
#include <mhla/cuda/head_dims.hpp>

#ifdef MHLA_CONTROL
using Dims = mhla::HeadDims<64, 64>;
#else
using Dims = mhla::BFloat16;
#endif

mhla::Index use() { return mhla::cuda::HeadDimsOf<Dims>::size; }
