// SPDX-License-Identifier: MIT
// A thread pool where Eigen was included without threads.
// EXPECT: mhla: to evaluate on a ThreadPoolDevice, define EIGEN_USE_THREADS before any Eigen header
// and include <mhla/mhla.hpp> after
#ifdef MHLA_CONTROL
#define EIGEN_USE_THREADS
#endif
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

void use(const Attention& attention, const Tensor4& q, const Tensor3& mix, Tensor4& y,
         const Eigen::ThreadPoolDevice& pool) {
  y.device(pool) = attention(q, q, q, mix);
}
