// SPDX-License-Identifier: MIT
// Which features make a pair, which axis a pair follows, and by what angle it turns: against the
// definitions, pair by pair.
#include <cmath>
#include <mhla/policy/rotation.hpp>
#include <numeric>
#include <type_traits>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/tolerances.hpp"

using namespace mhla;

static_assert(mhla::Rotation<mhla::NoRotation>);
static_assert(mhla::RotaryEmbedding<HalfSplitRotary> && mhla::RotaryEmbedding<AxialRotary>);
static_assert(!mhla::Rotation<int>);
static_assert(HalfSplitRotary{}.theta == 10000 && AxialRotary{}.theta == 10000);
static_assert(std::is_empty_v<mhla::NoRotation>);

namespace {

template <class R>
std::vector<Index> shares(const R& rotation, int rank, Index pairs) {
  std::vector<Index> result;
  for (int axis = 0; axis < rank; ++axis) result.push_back(rotation.axis_pairs(axis, rank, pairs));
  return result;
}

template <class R>
void check_frequencies(const R& rotation) {
  for (const Index pairs : {1, 2, 3, 8, 64})
    for (Index j = 0; j < pairs; ++j) {
      const long double axis_dim = 2.0L * static_cast<long double>(pairs);
      const long double expected = std::pow(static_cast<long double>(rotation.theta),
                                            -2.0L * static_cast<long double>(j) / axis_dim);
      CHECK(std::abs(static_cast<double>(rotation.frequency(j, pairs) - expected)) <=
            tolerance::policy_value<double> * static_cast<double>(expected));
    }
  CHECK(rotation.frequency(0, 5) == 1);
}

}  // namespace

TEST_CASE("rotation: half-split pairs feature c with c + D/2 on one axis", "[policy]") {
  for (const Index feature_dim : {2, 4, 10, 128}) {
    const auto pairs = HalfSplitRotary{}.pairs(feature_dim);
    for (Index c = 0; c < feature_dim / 2; ++c) {
      CHECK(c * pairs.step == c);
      CHECK(c * pairs.step + pairs.gap == c + feature_dim / 2);
    }
    CHECK(shares(HalfSplitRotary{}, 1, feature_dim / 2) == std::vector<Index>{feature_dim / 2});
  }
}

TEST_CASE("rotation: axial pairs feature 2c with 2c + 1", "[policy]") {
  for (const Index feature_dim : {2, 4, 10, 128}) {
    const auto pairs = AxialRotary{}.pairs(feature_dim);
    for (Index c = 0; c < feature_dim / 2; ++c) {
      CHECK(c * pairs.step == 2 * c);
      CHECK(c * pairs.step + pairs.gap == 2 * c + 1);
    }
  }
}

TEST_CASE("rotation: axial pairs are shared out over the axes, the first takes the rest",
          "[policy]") {
  for (Index pairs = 0; pairs < 70; ++pairs) {
    CHECK(shares(AxialRotary{}, 1, pairs) == std::vector<Index>{pairs});
    CHECK(shares(AxialRotary{}, 2, pairs) == std::vector<Index>{pairs - pairs / 2, pairs / 2});
    CHECK(shares(AxialRotary{}, 3, pairs) ==
          std::vector<Index>{pairs - 2 * (pairs / 3), pairs / 3, pairs / 3});
  }
  // Wan's head of 128: 64 pairs as 22 + 21 + 21.
  CHECK(shares(AxialRotary{}, 3, 64) == std::vector<Index>{22, 21, 21});
}

TEST_CASE("rotation: frequencies are theta^(-2j / axis dim)", "[policy]") {
  check_frequencies(HalfSplitRotary{});
  check_frequencies(HalfSplitRotary{.theta = 500});
  check_frequencies(AxialRotary{});
  check_frequencies(AxialRotary{.theta = 1000000});
}
