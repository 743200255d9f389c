// SPDX-License-Identifier: MIT
#include <iostream>
#include <mhla/mhla.hpp>
int main() {
  const mhla::Attention<mhla::Relu, mhla::Blocks2D> attention{
      .blocks = {.grid = {32, 32}, .block = {8, 8}}};
  const Eigen::array<Eigen::Index, 4> shape{1, 4, 32 * 32, 64};
  Eigen::Tensor<float, 4, Eigen::RowMajor> q(shape), k(shape), v(shape), y(shape), dy(shape);
  Eigen::Tensor<float, 4, Eigen::RowMajor> dq(shape), dk(shape), dv(shape);
  Eigen::Tensor<float, 3, Eigen::RowMajor> mix(1, 16, 16), dmix(1, 16, 16);
  q.setRandom(), k.setRandom(), v.setRandom(), dy.setRandom(), mix.setRandom();
  y = attention(q, k, v, mix);
  mhla::gradients(dq, dk, dv, dmix) = attention.backward(q, k, v, mix, dy);
  std::cout << y(0, 0, 0, 0) + dq(0, 0, 0, 0) + dmix(0, 0, 0) << "\n";
}
