// SPDX-License-Identifier: MIT
// Mixing of 16-bit summaries and its adjoints, their kernels executed on the CPU, against plain
// sums: per-head matrices of one tile and of several, in two planes, causal; no infinity reaches
// the rows before it; bytes are those of the cost model.
#include <cmath>
#include <limits>
#include <mhla/cuda/fused/block_mixing.cuh>
#include <mhla/cuda/fused/mixing_gradient.cuh>
#include <mhla/testing/random_tensor.hpp>
#include <vector>

#include "killer.hpp"
#include "tests/cuda/machine.hpp"

namespace {

using killer::expect;
using mhla::BFloat16;
using mhla::Index;
namespace fused = mhla::cuda::fused;
using Rows = fused::SummaryRows<BFloat16>;

/// Summaries in two planes: [units, blocks, matrices, width].
struct Summaries {
  Index blocks, matrices, width, size;
  std::vector<BFloat16> memory;

  Summaries(const fused::MixingShape& shape, Index b, Index m)
      : blocks(b),
        matrices(m),
        width(shape.width),
        size(shape.units * b * m * shape.width),
        memory(static_cast<std::size_t>(2 * size)) {}
  BFloat16& at(int plane, Index unit, Index block, Index matrix, Index c) {
    return memory[static_cast<std::size_t>(
        plane * size + ((unit * blocks + block) * matrices + matrix) * width + c)];
  }
  double value(Index unit, Index block, Index matrix, Index c) {
    return static_cast<double>(load(at(0, unit, block, matrix, c))) +
           static_cast<double>(load(at(1, unit, block, matrix, c)));
  }
  void fill(std::uint64_t seed) {
    for (Index i = 0; i < size; ++i) {
      const double x = mhla::testing::Normal{}(seed, static_cast<std::uint64_t>(i)) + 0.5;
      BFloat16& high = memory[static_cast<std::size_t>(i)];
      store(high, static_cast<float>(x));
      store(memory[static_cast<std::size_t>(size + i)],
            static_cast<float>(x - static_cast<double>(load(high))));
    }
  }
  Rows rows() {
    return {memory.data(), 2, size, blocks * matrices * width, matrices * width, width};
  }
};

void expect_near(double actual, double expected, double magnitude, const char* what) {
  expect(std::abs(actual - expected) <= 0x1p-14 * magnitude, what);
}

void check(Index blocks, Index kv_heads, Index matrices, Index width) {
  fused::MixingShape shape;
  shape.units = 2 * kv_heads;
  shape.kv_heads = kv_heads;
  shape.matrices = matrices;
  shape.mix_heads = kv_heads * matrices;
  shape.query_blocks = shape.key_blocks = blocks;
  shape.width = width;
  shape.past_only = true;
  shape.lag = 1;
  std::vector<float> mixing(static_cast<std::size_t>(shape.mix_heads * blocks * blocks));
  for (std::size_t i = 0; i < mixing.size(); ++i)
    mixing[i] = static_cast<float>(mhla::testing::Normal{}(7, i));
  const auto m = [&](Index unit, Index g, Index i, Index b) {
    const Index head = shape.shared() ? 0 : unit % kv_heads * matrices + g;
    return static_cast<double>(mixing[static_cast<std::size_t>((head * blocks + i) * blocks + b)]);
  };
  const fused::MixingMatrices view{mixing.data(), blocks * blocks, blocks};
  const auto device = machine::device_within_a_call();
  const auto expect_bytes = [](const fused::MovedBytes& bytes) {
    expect(static_cast<Index>(machine::context().last_kernel_bytes_read) == bytes.read &&
               static_cast<Index>(machine::context().last_kernel_bytes_written) == bytes.written,
           "a kernel moves the bytes of the cost model");
  };
  Summaries summaries(shape, blocks, 1);
  Summaries mixed(shape, blocks, matrices);
  Summaries gradient(shape, blocks, 1);
  summaries.fill(1);
  fused::mix<BFloat16>(device, shape, view, summaries.rows(), mixed.rows(), 3);
  expect_bytes(fused::mix_bytes(shape, 2, 2, 3));
  for (Index unit = 0; unit < shape.units; ++unit)
    for (Index i = 0; i < blocks; ++i)
      for (Index g = 0; g < matrices; ++g)
        for (Index c = 0; c < shape.width; c += 5) {
          double sum = 0;
          double magnitude = 0;
          for (Index b = 0; b < i; ++b) {
            const double term = m(unit, g, i, b) * summaries.value(unit, b, 0, c);
            sum += term;
            magnitude += std::abs(term);
          }
          expect_near(mixed.value(unit, i, g, c), sum, magnitude, "mixed summaries are sums");
        }
  mixed.fill(2);
  fused::mix_summary_gradient<BFloat16>(device, shape, view, mixed.rows(), gradient.rows(), 3);
  expect_bytes(fused::mix_summary_gradient_bytes(shape, 2, 2, 3));
  for (Index unit = 0; unit < shape.units; ++unit)
    for (Index b = 0; b < blocks; ++b)
      for (Index c = 0; c < shape.width; c += 5) {
        double sum = 0;
        double magnitude = 0;
        for (Index g = 0; g < matrices; ++g)
          for (Index i = b + 1; i < blocks; ++i) {
            const double term = m(unit, g, i, b) * mixed.value(unit, i, g, c);
            sum += term;
            magnitude += std::abs(term);
          }
        expect_near(gradient.value(unit, b, 0, c), sum, magnitude, "their gradients are, too");
      }
  std::vector<float> partial_sums(
      static_cast<std::size_t>(fused::mix_matrix_gradient_partial_sums(shape)));
  std::vector<float> parts(static_cast<std::size_t>(shape.units * matrices * blocks * blocks));
  const fused::SummaryRows<const BFloat16> of_queries = mixed.rows();
  const fused::SummaryRows<const BFloat16> of_keys = summaries.rows();
  fused::mix_matrix_gradient<BFloat16>(
      device, shape, of_queries, of_keys, partial_sums.data(),
      {parts.data(), matrices * blocks * blocks, blocks * blocks, blocks}, mhla::Into::add);
  expect_bytes(fused::mix_matrix_gradient_bytes(shape, 2));
  for (Index unit = 0; unit < shape.units; ++unit)
    for (Index g = 0; g < matrices; ++g)
      for (Index i = 0; i < blocks; i += 3)
        for (Index b = 0; b < i; ++b) {
          double sum = 0;
          double magnitude = 0;
          for (Index c = 0; c < shape.width; ++c) {
            const double term = mixed.value(unit, i, g, c) * summaries.value(unit, b, 0, c);
            sum += term;
            magnitude += std::abs(term);
          }
          const auto at = ((unit * matrices + g) * blocks + i) * blocks + b;
          expect_near(static_cast<double>(parts[static_cast<std::size_t>(at)]), sum, magnitude,
                      "so is the matrix's gradient");
        }
  const Index bad = blocks / 2;
  store(summaries.at(0, 0, bad, 0, 3), std::numeric_limits<float>::infinity());
  fused::mix<BFloat16>(device, shape, view, summaries.rows(), mixed.rows(), 3);
  for (Index i = 0; i < blocks; ++i)
    expect(std::isfinite(mixed.value(0, i, 0, 3)) == (i <= bad),
           "infinities reach the rows that see them");
}

}  // namespace

int main() {
  killer::run([] {
    check(5, 2, 1, 520);  // in several splits
    check(20, 2, 1, 264);
    check(40, 2, 1, 136);
    check(40, 1, 2, 72);
    check(140, 1, 1, 72);
  });
}
