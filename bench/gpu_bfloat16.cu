// SPDX-License-Identifier: MIT
// What is measured on tensors of BFloat16.
#include "gpu_kernels.cuh"

namespace bench {

MHLA_BENCH_GPU_KERNELS(mhla::BFloat16);

}  // namespace bench
