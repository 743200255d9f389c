// SPDX-License-Identifier: MIT
// Uses a variant whose kernels nobody has compiled: the linker must say which.
#include <mhla/cuda.hpp>

#include "variants.hpp"

int main() {
  const program::Missing attention{.blocks = {.block = 8}};
  Eigen::TensorMap<Eigen::Tensor<Eigen::bfloat16, 4, Eigen::RowMajor>> q(nullptr, 1, 1, 16, 8);
  Eigen::TensorMap<Eigen::Tensor<float, 3, Eigen::RowMajor>> mix(nullptr, 1, 2, 2);
  q.device(mhla::CudaDevice(nullptr, nullptr)) = attention(q, q, q, mix);
}
