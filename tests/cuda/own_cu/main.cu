// SPDX-License-Identifier: MIT
// EXPECT: "mhla needs C++20: compile with -std=c++20"
// FLAGS: -std=c++17
// LINES: 12
#include <cstdio>
#include <mhla/cuda/instantiate.cuh>
#include <mhla/version.hpp>

using Vision = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
MHLA_INSTANTIATE_CUDA(Vision, float);

// That it links, cuBLAS included, is all that can be seen without a GPU.
int main() {
  std::printf("mhla %d.%d.%d\n", MHLA_VERSION_MAJOR, MHLA_VERSION_MINOR, MHLA_VERSION_PATCH);
}
