// SPDX-License-Identifier: MIT
// A gradient of the result that would have to be evaluated first, on a CudaDevice.
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
    mhla::gradients(y, mhla::skip, mhla::skip, mhla::skip).device(cuda) =
        attention.backward(q, q, q, mix, q);
#else
    mhla::gradients(y, mhla::skip, mhla::skip, mhla::skip).device(cuda) =
        attention.backward(q, q, q, mix, q - q);
#endif
  }
};
