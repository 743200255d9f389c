// SPDX-License-Identifier: MIT
// Head dimensions that fused kernels are not written for.
// EXPECT: mhla: fused CUDA kernels exist for HeadDims<d, d> with d = 32, 64, 72, 96, 128 or 256
#include <mhla/cuda/head_dims.hpp>

#ifdef MHLA_CONTROL
using Dims = mhla::HeadDims<128, 256>;
#else
using Dims = mhla::HeadDims<80, 80>;
#endif

mhla::cuda::HeadDimsList use() { return mhla::cuda::HeadDimsOf<Dims>::list(); }
