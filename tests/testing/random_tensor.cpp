// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <set>
#include <vector>

#include "tests/support/catch.hpp"

using namespace mhla;
using namespace mhla::testing;

namespace {

struct Moments {
  double mean = 0, variance = 0, smallest = 0, largest = 0, smallest_magnitude = 1e9;
};

template <class Distribution>
Moments moments(const Distribution& distribution) {
  const auto sample = random_tensor<double>(distribution, 3, 100000);
  Moments m;
  for (const double x : sample.elements()) {
    m.mean += x / 1e5;
    m.variance += x * x / 1e5;
    m.smallest = std::min(m.smallest, x);
    m.largest = std::max(m.largest, x);
    m.smallest_magnitude = std::min(m.smallest_magnitude, std::abs(x));
  }
  m.variance -= m.mean * m.mean;
  return m;
}

}  // namespace

TEST_CASE("random_tensor: the stream is fixed for all time and platforms", "[testing]") {
  // splitmix64's published outputs for the state 1234567, which is the counter without the seed.
  CHECK(mix_bits(1234567u + 0x9e3779b97f4a7c15u) == 6457827717110365317u);
  CHECK(mix_bits(1234567u + 2 * 0x9e3779b97f4a7c15u) == 3203168211198807973u);
  CHECK(random_bits(0, 0) == mix_bits(0x9e3779b97f4a7c15u));
  CHECK(random_bits(0, 1) == mix_bits(2 * 0x9e3779b97f4a7c15u));
  CHECK(random_bits(1, 0) != random_bits(0, 1));
}

TEST_CASE("random_tensor: distributions have the moments and bounds they state", "[testing]") {
  // 100,000 samples: a mean is off by 0.0032 sigma, four times that is allowed.
  const Moments normal = moments(Normal{});
  CHECK(std::abs(normal.mean) < 0.0127);
  CHECK(std::abs(normal.variance - 1) < 0.02);
  CHECK(normal.largest > 3.5);
  CHECK(normal.smallest < -3.5);
  const Moments uniform = moments(Uniform{.low = -1, .high = 3});
  CHECK(std::abs(uniform.mean - 1) < 0.0147);
  CHECK(std::abs(uniform.variance - 4.0 / 3) < 0.02);
  CHECK(uniform.smallest >= -1);
  CHECK(uniform.largest < 3);
  CHECK(moments(AwayFromKink{}).smallest_magnitude >= 0.25);
  CHECK(moments(AwayFromKink{}).smallest < 0);
  CHECK(moments(Positive{}).smallest == 0);  // started at 0: nothing lies below
  CHECK(moments(Positive{}).smallest_magnitude >= 0.25);
  CHECK(moments(ExactInBFloat16<AwayFromKink>{}).smallest_magnitude >= 0.25);
}

TEST_CASE("random_tensor: neighbours and neighbouring seeds are uncorrelated", "[testing]") {
  const auto a = random_tensor<double>(Normal{}, 3, 100000);
  const auto b = random_tensor<double>(Normal{}, 4, 100000);
  double neighbours = 0;
  double seeds = 0;
  for (Index i = 0; i + 1 < a.size(); ++i) {
    neighbours += a(i) * a(i + 1) / 1e5;
    seeds += a(i) * b(i) / 1e5;
  }
  CHECK(std::abs(neighbours) < 0.0127);  // 4 sigma of a mean of 100,000
  CHECK(std::abs(seeds) < 0.0127);
}

TEST_CASE("random_tensor: seeds give different tensors, one seed the same", "[testing]") {
  const auto a = random_tensor<float>(Normal{}, 1, 3, 50);
  CHECK(bitwise_equal(a.view(), random_tensor<float>(Normal{}, 1, 3, 50).view()));
  std::set<float> values(a.elements().begin(), a.elements().end());
  CHECK(values.size() == 150);
  for (const float x : random_tensor<float>(Normal{}, 2, 3, 50).elements()) values.insert(x);
  CHECK(values.size() > 295);
}

TEST_CASE("random_tensor: values depend on the index, not on strides or storage", "[testing]") {
  const auto expected = random_tensor<double>(Normal{}, 4, 2, 3, 5);
  HostTensor<float, 3> memory(5, 3, 2);
  const mhla::TensorView<float, 3> view{memory.view().data, {2, 3, 5}, {1, 2, 6}};
  fill_random(Normal{}, 4, view);
  CHECK(compare(view, expected.view()).max_error == 0);  // also: exact in float
}

TEST_CASE("random_tensor: values exact in bfloat16 survive 16-bit storage", "[testing]") {
  const ExactInBFloat16<Normal> distribution;
  const auto wide = random_tensor<double>(distribution, 5, 1000);
  CHECK(compare(random_tensor<BFloat16>(distribution, 5, 1000).view(), wide.view()).max_error == 0);
  CHECK(compare(random_tensor<float>(distribution, 5, 1000).view(), wide.view()).max_error == 0);
  CHECK(compare(random_tensor<Half>(distribution, 5, 1000).view(), wide.view()).rms_ratio < 1e-7);
}

TEST_CASE("random_tensor: random_index reaches every value below its bound alone", "[testing]") {
  std::vector<int> count(7);
  for (std::uint64_t i = 0; i < 7000; ++i)
    ++count.at(static_cast<std::size_t>(random_index(6, i, 7)));
  for (const int times : count) CHECK(std::abs(times - 1000) < 150);  // 5 sigma
  CHECK(random_index(6, 0, 1) == 0);
}
