// SPDX-License-Identifier: MIT
// A result that would have to be copied to where it belongs, on a CudaDevice.
// EXPECT: mhla: on a CudaDevice the result of attention(q, k, v, mix) is assigned to a TensorMap of
// device memory or to mhla::tokens_first of one
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
    mhla::tokens_first(y).device(cuda) = attention(q, q, q, mix);
#else
    y.slice(y.dimensions(), y.dimensions()).device(cuda) = attention(q, q, q, mix);
#endif
  }
};
