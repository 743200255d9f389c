// SPDX-License-Identifier: MIT
// A mixing matrix that would have to be evaluated first, on a CudaDevice.
// EXPECT: mhla: on a CudaDevice q, k, v, mix and dy are TensorMaps of device memory,
// mhla::tokens_first of them, or views
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
    y.device(cuda) = attention(q, q, q, mix.abs());
#endif
  }
};
