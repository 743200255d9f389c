// SPDX-License-Identifier: MIT
// The attention of main.cpp once more, in a translation unit that has Eigen's threads and the
// library's own, against the header that main.cpp sees without them.
#define EIGEN_USE_THREADS
#include <algorithm>
#include <mhla.hpp>

double error_on_threads() {
  const mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D> attention{.blocks = {.block = 4}};
  Eigen::Tensor<double, 4, Eigen::RowMajor> q(1, 1, 10, 3), k(1, 1, 10, 3), v(1, 1, 10, 2);
  Eigen::Tensor<double, 4, Eigen::RowMajor> y(1, 1, 10, 2);
  Eigen::Tensor<double, 3, Eigen::RowMajor> mix(1, 3, 3);
  q.setRandom(), k.setRandom(), v.setConstant(2.0);
  mhla::initialize(mix, attention);

  Eigen::ThreadPool threads(2);
  Eigen::ThreadPoolDevice pool(&threads, 2);
  y.device(pool) = attention(q, k, v, mix);
  const Eigen::Tensor<double, 0, Eigen::RowMajor> pool_error = (y - 2.0).abs().maximum();

  const mhla::ForkJoin team(2);
  const mhla::ForkJoinDevice device(team);
  y.device(device) = attention(q, k, v, mix);
  const Eigen::Tensor<double, 0, Eigen::RowMajor> team_error = (y - 2.0).abs().maximum();
  return std::max(pool_error(), team_error());
}
