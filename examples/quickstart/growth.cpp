// SPDX-License-Identifier: MIT
// quickstart: is it fast? One forward pass against its two neighbours, as tokens become more.
#include <algorithm>
#include <cstdio>
#include <string>

#include "reports.hpp"
#include "softmax_attention.hpp"
#include "stopwatch.hpp"

namespace quickstart {

void report_growth(const TokenSource& source, const Eigen::ThreadPoolDevice& pool) {
  using Attention = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
  std::string vectors = Eigen::SimdInstructionSetsInUse();
  vectors.resize(std::min(vectors.size(), vectors.find(',')));  // the longest come first
  std::printf(
      "\nIs it fast? One forward pass, one head of 64. Softmax attention runs in cache-sized tiles "
      "of\n"
      "Eigen products (%s) on the same threads; linear attention is MHLA of one block.\n"
      "Milliseconds.\n\n"
      "         tokens   softmax    linear   MHLA, 16 blocks   softmax / MHLA\n",
      vectors.c_str());
  for (const Index side : {16, 32, 64, 96}) {
    const Attention attention{.blocks = {.grid = {side, side}, .block = {side / 4, side / 4}}};
    const Attention linear{.blocks = {.grid = {side, side}, .block = {side, side}}};
    const Index tokens = side * side;
    Tensors t(source, attention.blocks.grid_of(tokens), 1, 64, 64);
    Tensor<float, 3> one(1, 1, 1);
    one.setConstant(1);
    const double softmax_time = milliseconds([&] { softmax_attention(pool, t.q, t.k, t.v, t.y); });
    const double linear_time = milliseconds([&] { t.y.device(pool) = linear(t.q, t.k, t.v, one); });
    const double mhla_time =
        milliseconds([&] { t.y.device(pool) = attention(t.q, t.k, t.v, t.mix); });
    std::printf("%15td %9.2f %9.2f %17.2f %16.1f\n", tokens, softmax_time, linear_time, mhla_time,
                softmax_time / mhla_time);
    std::fflush(stdout);
  }
}

}  // namespace quickstart
