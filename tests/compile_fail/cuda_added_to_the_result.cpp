// SPDX-License-Identifier: MIT
// An attention added to what a tensor holds, on a CudaDevice.
// EXPECT: mhla: a CudaDevice evaluates y.device(cuda) = attention(q, k, v, mix) and nothing around
// it
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

  void use() {
#ifdef MHLA_CONTROL
    y.device(cuda) = attention(q, q, q, mix);
#else
    y.device(cuda) += attention(q, q, q, mix);
#endif
  }
};
