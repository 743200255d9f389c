// SPDX-License-Identifier: MIT
// Devices that do not evaluate attention, here because Eigen was included without threads, because
// it has no executor, or because it is Eigen's own for GPUs.
// LINES: 25
// FLAGS: -DFORWARD
// EXPECT: mhla: to evaluate on a ThreadPoolDevice, define EIGEN_USE_THREADS before any Eigen header
// EXPECT: mhla: attention is evaluated on an Eigen::DefaultDevice, an Eigen::ThreadPoolDevice or an
// EXPECT: mhla: Eigen::GpuDevice has neither cuBLAS nor workspace: to evaluate on a GPU use an
// FLAGS: -DBACKWARD
// EXPECT: mhla: to evaluate on a ThreadPoolDevice, define EIGEN_USE_THREADS before any Eigen header
// EXPECT: mhla: attention is evaluated on an Eigen::DefaultDevice, an Eigen::ThreadPoolDevice or an
// EXPECT: mhla: Eigen::GpuDevice has neither cuBLAS nor workspace: to evaluate on a GPU use an
#ifdef MHLA_CONTROL
#define EIGEN_USE_THREADS
#endif
#include <mhla/attention.hpp>
#include <mhla/cuda.hpp>

using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;
struct NoExecutor {};

struct Call {
  mhla::Attention<mhla::Relu, mhla::Blocks1D> attention;
  Eigen::TensorMap<Tensor4> q, y;
  Eigen::TensorMap<Tensor3> mix;

  template <class Device>
  void use(const Device& device) {
#ifndef BACKWARD
    y.device(device) = attention(q, q, q, mix);
#endif
#ifndef FORWARD
    mhla::gradients(y, mhla::skip, mhla::skip, mhla::skip).device(device) =
        attention.backward(q, q, q, mix, q);
#endif
  }
};

void use(Call& call, const Eigen::ThreadPoolDevice& pool, const Eigen::GpuDevice& gpu,
         const mhla::CudaDevice& cuda) {
  call.use(pool);
#ifdef MHLA_CONTROL
  call.use(cuda);
  static_cast<void>(gpu);
#else
  call.use(NoExecutor{});
  call.use(gpu);
  static_cast<void>(cuda);
#endif
}
