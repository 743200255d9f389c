// SPDX-License-Identifier: MIT
#define EIGEN_USE_THREADS  // before any Eigen header, to evaluate on a thread pool
#include <cstdio>
#include <mhla/mhla.hpp>

int main() {
  Eigen::ThreadPool threads(2);
  Eigen::ThreadPoolDevice pool(&threads, 2);
  const mhla::Attention<mhla::Relu, mhla::Blocks2D> attention{
      .blocks = {.grid = {32, 32}, .block = {8, 8}}};  // 16 blocks

  const Eigen::array<Eigen::Index, 4> shape{1, 4, 32 * 32, 64};  // [batch, heads, tokens, dim]
  Eigen::Tensor<float, 4, Eigen::RowMajor> q(shape), k(shape), v(shape), y(shape), dy(shape);
  Eigen::Tensor<float, 4, Eigen::RowMajor> dq(shape), dk(shape), dv(shape);
  Eigen::Tensor<float, 3, Eigen::RowMajor> mix(1, 16, 16), dmix(1, 16, 16), local(1, 16, 16);
  q.setRandom(), k.setRandom(), v.setRandom();
  mhla::initialize(mix, attention);

  // A teacher whose blocks see only their neighbours: mix learns to do the same.
  mhla::initialize(local, attention, {.transform = mhla::Transform::local});
  const Eigen::Tensor<float, 4, Eigen::RowMajor> target = attention(q, k, v, local);
  for (int step = 0; step < 6; ++step) {
    y.device(pool) = attention(q, k, v, mix);
    dy.device(pool) = y - target;
    const Eigen::Tensor<float, 0, Eigen::RowMajor> loss = dy.square().mean();
    std::printf("step %d: loss %.1e, block 0 weighs blocks 0 to 3 by", step, double(loss()));
    for (int b = 0; b < 4; ++b) std::printf("%5.2f", double(mix(0, 0, b)));
    std::printf("\n");
    mhla::gradients(dq, dk, dv, dmix).device(pool) = attention.backward(q, k, v, mix, dy);
    mix = mix - dmix * 1e-2f;
    mhla::project(mix);  // onto [0, 1]
  }
}
