// SPDX-License-Identifier: MIT
// Eigen's own GPU device.
// EXPECT: mhla: Eigen::GpuDevice has neither cuBLAS nor workspace: to evaluate on a GPU use an
// mhla::CudaDevice of <mhla/cuda.hpp>, on the same stream
#include <mhla/attention.hpp>
#include <mhla/cuda.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Call {
  Attention attention;
  Eigen::TensorMap<Tensor4> q;
  Eigen::TensorMap<Tensor3> mix;
  Eigen::TensorMap<Tensor4> y;
  const mhla::CudaDevice& cuda;
  const Eigen::GpuDevice& gpu;

  void use() {
#ifdef MHLA_CONTROL
    y.device(cuda) = attention(q, q, q, mix);
#else
    y.device(gpu) = attention(q, q, q, mix);
#endif
  }
};
