// SPDX-License-Identifier: MIT
// The program of tests/consume: an initial matrix and, unless WITHOUT_CALL, as it takes long to
// compile, one attention, whose answers are known.
#include <cmath>
#include <cstdio>

#if defined(SINGLE_HEADER)
#include <mhla.hpp>

double error_on_threads();  // threads.cpp: a second translation unit
#else
#include <mhla/mhla.hpp>

static double error_on_threads() { return 0; }
#endif

int main() {
  const mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D> attention{.blocks = {.block = 4}};
  Eigen::Tensor<double, 3, Eigen::RowMajor> mix(1, 3, 3);
  mhla::initialize(mix, attention);
  const Eigen::Tensor<double, 0, Eigen::RowMajor> sum = mix.sum();  // of three columns
  double error = std::abs(sum() - 3);
#if !defined(WITHOUT_CALL)
  Eigen::Tensor<double, 4, Eigen::RowMajor> q(1, 1, 10, 3), k(1, 1, 10, 3), v(1, 1, 10, 2);
  q.setRandom(), k.setRandom(), v.setConstant(2.0);
  // Rows of the attention matrix sum to one: a constant value is its own mean.
  const Eigen::Tensor<double, 4, Eigen::RowMajor> y = attention(q, k, v, mix);
  const Eigen::Tensor<double, 0, Eigen::RowMajor> largest = (y - 2.0).abs().maximum();
  error += largest();
#endif
  std::printf("mhla %d.%d.%d: error %.1e, on threads %.1e\n", MHLA_VERSION_MAJOR,
              MHLA_VERSION_MINOR, MHLA_VERSION_PATCH, error, error_on_threads());
  return error < 1e-5 && error_on_threads() < 1e-5 ? 0 : 1;
}
