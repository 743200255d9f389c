// SPDX-License-Identifier: MIT
// A scalar that no GPU computes with.
// EXPECT: mhla: a CudaDevice computes with float, double, Eigen::bfloat16 and Eigen::half
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
    Eigen::Tensor<long double, 4, Eigen::RowMajor> x;
    Eigen::Tensor<long double, 3, Eigen::RowMajor> m;
    x.device(cuda) = attention(x, x, x, m);
#endif
  }
};
