// SPDX-License-Identifier: MIT
// LINES: 12
// FLAGS: -std=c++17
// EXPECT: "mhla needs C++20: compile with -std=c++20"
#include <cstdio>
#include <exception>
#include <mhla/cuda.hpp>
#include <mhla/cuda/instantiate.cuh>
#include <mhla/mhla.hpp>

using Vision =
    mhla::Attention<mhla::Identity, mhla::Blocks2D, mhla::Bidirectional, mhla::Unnormalized>;
MHLA_INSTANTIATE_CUDA(Vision, float);

// The variant's kernels, and both backends' calls, in one file. Whole numbers have one sum on every
// CPU; that the call on a GPU asks for a workspace is all that can be seen without one.
int main() {
  const Vision attention{.blocks = {.grid = {2, 2}, .block = {1, 2}}};
  Eigen::Tensor<float, 4, Eigen::RowMajor> q(1, 1, 4, 2), k(1, 1, 4, 2), v(1, 1, 4, 1),
      y(1, 1, 4, 1);
  Eigen::Tensor<float, 3, Eigen::RowMajor> mix(1, 2, 2);
  q.setValues({{{{1, 2}, {3, -4}, {5, 6}, {-7, 8}}}});
  k.setValues({{{{2, -1}, {1, 3}, {-2, 4}, {5, 1}}}});
  v.setValues({{{{3}, {-2}, {1}, {4}}}});
  mix.setValues({{{1, 2}, {3, 5}}});
  y = attention(q, k, v, mix);
  std::printf("%g %g %g %g\n", y(0), y(1), y(2), y(3));

  const mhla::CudaDevice cuda(nullptr, nullptr, {});
  try {
    y.device(cuda) = attention(q, k, v, mix);
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 0;
  }
  return 1;
}
