// SPDX-License-Identifier: MIT
// A device without an executor.
// EXPECT: mhla: attention is evaluated on an Eigen::DefaultDevice, an Eigen::ThreadPoolDevice or an
// mhla::ForkJoinDevice, which is in <mhla/eigen/fork_join_device.hpp>
#include <mhla/attention.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct Device {};

struct Call {
  Attention attention;
  Tensor4 q;
  Tensor3 mix;
  Tensor4 y;
  Device device;

  void use() {
    y.device(Eigen::DefaultDevice()) = attention(q, q, q, mix);
#ifndef MHLA_CONTROL
    y.device(device) = attention(q, q, q, mix);
#endif
  }
};
