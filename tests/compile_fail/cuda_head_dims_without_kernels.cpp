// SPDX-License-Identifier: MIT
// Head dimensions that fused kernels are not written for.
// EXPECT: mhla: fused CUDA kernels exist for head dimensions
// EXPECT: 128/256, and no others: leave those out, they run on cuBLAS
#include <mhla/cuda/head_dims.hpp>

#ifdef MHLA_CONTROL
using Dims = mhla::HeadDims<128, 256>;
#else
using Dims = mhla::HeadDims<80, 80>;
#endif

mhla::cuda::HeadDimsList use() { return mhla::cuda::HeadDimsOf<Dims>::list(); }
