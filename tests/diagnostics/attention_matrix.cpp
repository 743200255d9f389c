// SPDX-License-Identifier: MIT
// The attention matrix against its formula, written out for features that are the tensors'
// elements themselves, and against the attention it stands for.
#include <array>
#include <cmath>
#include <cstddef>
#include <mhla/diagnostics/attention_matrix.hpp>
#include <random>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using namespace mhla;

std::vector<double> uniform(std::size_t count, unsigned seed) {
  std::mt19937_64 bits(seed);
  std::vector<double> values(count);
  for (double& x : values) x = 0.1 + static_cast<double>(bits() >> 11) * 0x1p-53;
  return values;
}

// Two batch items, four query heads on two kv heads, five features, one mix per head.
struct Call {
  Index query_tokens, key_tokens, rows, columns;
  std::vector<double> q = uniform(at(2 * 4 * query_tokens * 5), 1);
  std::vector<double> k = uniform(at(2 * 2 * key_tokens * 5), 2);
  std::vector<double> mix = uniform(at(4 * rows * columns), 3);

  static std::size_t at(Index n) { return static_cast<std::size_t>(n); }
  TensorView<const double, 4> query() const { return make_view(q.data(), 2, 4, query_tokens, 5); }
  TensorView<const double, 4> key() const { return make_view(k.data(), 2, 2, key_tokens, 5); }
  TensorView<const double, 3> mixing() const { return make_view(mix.data(), 4, rows, columns); }

  template <class V>
  std::vector<double> matrix(const V& attention, Index batch, Index head) const {
    std::vector<double> weights(at(query_tokens * key_tokens), -7.0);
    mhla::diagnostics::attention_matrix(attention, query(), key(), mixing(), batch, head,
                                        make_view(weights.data(), query_tokens, key_tokens));
    return weights;
  }
  double inner(Index batch, Index head, Index t, Index j) const {
    double sum = 0;
    for (Index c = 0; c < 5; ++c) sum += query()(batch, head, t, c) * key()(batch, head / 2, j, c);
    return sum;
  }
};

}  // namespace

TEST_CASE("attention matrix: mixing coefficient of the blocks times the features' product",
          "[diagnostics]") {
  SECTION("a ragged image") {
    using Attention = mhla::Attention<mhla::Identity, mhla::Blocks2D>;
    const Attention attention{.blocks = {.grid = {3, 5}, .block = {2, 2}}, .scale = 0.5};
    const Call call{15, 15, 6, 6};
    const std::array<Index, 15> block = {0, 0, 1, 1, 2, 0, 0, 1, 1, 2, 3, 3, 4, 4, 5};
    for (Index batch = 0; batch < 2; ++batch)
      for (Index head = 0; head < 4; ++head) {
        const std::vector<double> weights = call.matrix(attention, batch, head);
        for (Index t = 0; t < 15; ++t)
          for (Index j = 0; j < 15; ++j) {
            const double coefficient = call.mixing()(head, block[call.at(t)], block[call.at(j)]);
            const double expected = 0.5 * coefficient * call.inner(batch, head, t, j);
            CHECK(std::abs(weights[call.at(t * 15 + j)] - expected) <= 1e-15);
          }
      }
  }
  SECTION("causal: nothing after the query; the normalizer plays no part") {
    using Attention = mhla::Attention<mhla::Identity, mhla::Blocks1D, mhla::Causal>;
    const Attention attention{.blocks = {.block = 4}, .normalizer = {.epsilon = 100}};
    const Call call{10, 10, 3, 3};
    const std::vector<double> weights = call.matrix(attention, 1, 2);
    for (Index t = 0; t < 10; ++t)
      for (Index j = 0; j < 10; ++j) {
        const double expected =
            j <= t ? call.mixing()(2, t / 4, j / 4) * call.inner(1, 2, t, j) : 0;
        CHECK(std::abs(weights[call.at(t * 10 + j)] - expected) <= 1e-15);
      }
  }
}

TEST_CASE("attention matrix: normalized rows sum to one and give MHLA's output", "[diagnostics]") {
  using Attention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D>;
  const Attention attention{
      .blocks = {.block = 4}, .key_blocks = {.block = 3}, .normalizer = {.epsilon = 0}};
  const Call call{10, 8, 3, 3};
  const std::vector<double> v = uniform(2 * 2 * 8 * 3, 4);
  std::vector<double> y(2 * 4 * 10 * 3);
  const TensorView<const double, 4> value = make_view(v.data(), 2, 2, 8, 3);
  const auto output = make_view(y.data(), 2, 4, 10, 3);
  mhla::reference::mhla_forward(attention, call.query(), call.key(), value, call.mixing(), output);

  std::vector<double> weights = call.matrix(attention, 1, 3);
  const auto p = make_view(weights.data(), 10, 8);
  mhla::diagnostics::normalize_rows(p);
  for (Index t = 0; t < 10; ++t) {
    double sum = 0;
    for (Index j = 0; j < 8; ++j) sum += p(t, j);
    CHECK(std::abs(sum - 1) <= 1e-15);
    for (Index c = 0; c < 3; ++c) {
      double weighted = 0;
      for (Index j = 0; j < 8; ++j) weighted += p(t, j) * value(1, 1, j, c);
      CHECK(std::abs(weighted - output(1, 3, t, c)) <= 1e-14);
    }
  }
}

TEST_CASE("attention matrix: a row that sums to zero becomes zero", "[diagnostics]") {
  float weights[8] = {1, 3, 0, 0, 1, -1, 0, 8};
  mhla::diagnostics::normalize_rows(make_view(weights, 4, 2));
  const float expected[8] = {0.25F, 0.75F, 0, 0, 0, 0, 0, 1};
  for (int n = 0; n < 8; ++n) CHECK(weights[n] == expected[n]);
}
