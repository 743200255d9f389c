// SPDX-License-Identifier: MIT
// What is measured on tensors of float, and a kernel that does nothing.
#include "gpu_kernels.cuh"

namespace bench {

namespace {
struct Nothing {
  MHLA_HOST_DEVICE void operator()(mhla::Index) const {}
};
}  // namespace

void launch_nothing(const mhla::CudaDevice& device) { mhla::cuda::launch(device, 1, Nothing{}); }

MHLA_BENCH_GPU_KERNELS(float);

}  // namespace bench
