// SPDX-License-Identifier: MIT
// Table 1 of arXiv 2601.07832: the bounds of an attention matrix' rank hold, and are attained,
// on random instances; where the table's own bound is not the least one, the sharper one is.
#include <algorithm>
#include <cstddef>
#include <mhla/diagnostics/attention_matrix.hpp>
#include <mhla/diagnostics/bounds.hpp>
#include <mhla/diagnostics/rank.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using namespace mhla;
using mhla::diagnostics::linear_attention_rank_bound;
using mhla::diagnostics::mhla_rank_bound;

class Random {
 public:
  explicit Random(unsigned seed) : bits_(seed) {}
  // in [0.1, 1.1): features stay positive under every map used here
  double uniform() { return 0.1 + static_cast<double>(bits_() >> 11) * 0x1p-53; }
  std::vector<double> uniform(Index count) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& x : values) x = uniform();
    return values;
  }
  // [rows, columns] of rank `rank`
  std::vector<double> of_rank(Index rank, Index rows, Index columns) {
    std::vector<double> matrix(static_cast<std::size_t>(rows * columns));
    for (Index r = 0; r < rank; ++r) {
      const std::vector<double> left = uniform(rows);
      const std::vector<double> right = uniform(columns);
      for (Index n = 0; n < rows * columns; ++n)
        matrix[static_cast<std::size_t>(n)] += left[static_cast<std::size_t>(n / columns)] *
                                               right[static_cast<std::size_t>(n % columns)];
    }
    return matrix;
  }

 private:
  std::mt19937_64 bits_;
};

// The numerical rank of a random instance, in double and so with a tolerance of double.
template <class V>
Index rank_of_instance(const V& attention, Index query_tokens, Index key_tokens, Index key_dim,
                       const std::vector<double>& mix, Index rows, Index columns) {
  Random random(static_cast<unsigned>(1000 * query_tokens + key_tokens + key_dim));
  const std::vector<double> q = random.uniform(query_tokens * key_dim);
  const std::vector<double> k = random.uniform(key_tokens * key_dim);
  std::vector<double> weights(static_cast<std::size_t>(query_tokens * key_tokens));
  const auto matrix = make_view(weights.data(), query_tokens, key_tokens);
  mhla::diagnostics::attention_matrix(attention, make_view(q.data(), 1, 1, query_tokens, key_dim),
                                      make_view(k.data(), 1, 1, key_tokens, key_dim),
                                      make_view(mix.data(), 1, rows, columns), 0, 0, matrix);
  const Index rank = mhla::diagnostics::Spectrum(matrix).rank(1e-11);
  mhla::diagnostics::normalize_rows(matrix);
  CHECK(mhla::diagnostics::Spectrum(matrix).rank(1e-11) == rank);  // a row's scale is no matter
  return rank;
}

using Sequence = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D>;

}  // namespace

TEST_CASE("rank bounds: linear attention has rank D", "[diagnostics]") {
  const Sequence attention{.blocks = {.block = 64}};
  CHECK(rank_of_instance(attention, 60, 50, 7, {1}, 1, 1) == 7);
  CHECK(linear_attention_rank_bound(60, 50, 7) == 7);
  CHECK(rank_of_instance(attention, 20, 5, 7, {1}, 1, 1) == 5);
  CHECK(linear_attention_rank_bound(20, 5, 7) == 5);
  CHECK(linear_attention_rank_bound(3, 5, 7) == 3);
}

TEST_CASE("rank bounds: MHLA reaches rank(mix) D until its blocks are full", "[diagnostics]") {
  const Sequence attention{.blocks = {.block = 8}};
  const Grid grid = attention.blocks.grid_of(64);
  const Index rank_of_mix = GENERATE(1, 2, 3, 5, 8);
  INFO("rank of mix " << rank_of_mix);
  const std::vector<double> mix = Random(17).of_rank(rank_of_mix, 8, 8);
  // D = 5 below the tokens of a block: rank(mix) 5 of at most 40
  CHECK(mhla_rank_bound(grid, grid, 5, rank_of_mix) == 5 * rank_of_mix);
  CHECK(rank_of_instance(attention, 64, 64, 5, mix, 8, 8) == 5 * rank_of_mix);
  // D = 12 above it: the table's sum of min(n_b, D) is the number of tokens
  CHECK(mhla_rank_bound(grid, grid, 12, rank_of_mix) == std::min<Index>(64, 12 * rank_of_mix));
  CHECK(rank_of_instance(attention, 64, 64, 12, mix, 8, 8) ==
        std::min<Index>(64, 12 * rank_of_mix));
}

TEST_CASE(
    "rank bounds: uniform mixing brings no rank over linear attention, a mix of rank three "
    "thrice its rank",
    "[diagnostics]") {
  const Sequence attention{.blocks = {.block = 16}};
  const Grid grid = attention.blocks.grid_of(128);
  const std::vector<double> uniform(64, 0.125);
  CHECK(rank_of_instance(attention, 128, 128, 16, uniform, 8, 8) == 16);
  CHECK(mhla_rank_bound(grid, grid, 16, 1) == 16);
  CHECK(rank_of_instance(attention, 128, 128, 16, Random(5).of_rank(3, 8, 8), 8, 8) == 48);
  CHECK(mhla_rank_bound(grid, grid, 16, 3) == 48);
}

TEST_CASE("rank bounds: causal attention exceeds them, block-causal attention does not",
          "[diagnostics]") {
  const std::vector<double> uniform(64, 0.125);
  const mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Causal> causal{
      .blocks = {.block = 16}};
  const Grid grid = causal.blocks.grid_of(128);
  CHECK(mhla_rank_bound(grid, grid, 8) == 64);
  CHECK(rank_of_instance(causal, 128, 128, 8, uniform, 8, 8) == 128);

  const mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::BlockCausal> block_causal{
      .blocks = {.block = 16}};
  // the triangle of a uniform mix has full rank: its eight blocks give 8 D
  CHECK(mhla_rank_bound(grid, grid, 8, 8) == 64);
  CHECK(rank_of_instance(block_causal, 128, 128, 8, uniform, 8, 8) == 64);
}
