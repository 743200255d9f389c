// SPDX-License-Identifier: MIT
// Of 16-bit tensors only the stored results are rounded: they have the bits of the float run on the
// same values, rounded once, and are as close to the oracle as that rounding.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mhla/cpu/pipeline.hpp>

#include "tests/cpu/call.hpp"

namespace {

using namespace call;
using call::Gradients;
using namespace mhla;
using mhla::testing::HostTensor;

const Attention<EluPlusOne, Blocks2D> image{.blocks = {.grid = {5, 7}, .block = {2, 3}}};
const Shape image_shape{2, 6, 2, 35, 35, 5, 7};

template <class Causality>
using Sequence = Attention<EluPlusOne, Blocks1D, Causality>;

// Operands that fill every bit of T, where call::operands has the 8 of bfloat16. mix is of float.
template <class T>
Operands<T> rounded_operands(const Shape& s, std::uint64_t seed) {
  using mhla::testing::AwayFromKink;
  using mhla::testing::Normal;
  using mhla::testing::random_tensor;
  return {random_tensor<T>(AwayFromKink{}, seed, s.batch, s.heads, s.query_tokens, s.key_dim),
          random_tensor<T>(AwayFromKink{}, seed + 1, s.batch, s.kv_heads, s.key_tokens, s.key_dim),
          random_tensor<T>(Normal{}, seed + 2, s.batch, s.kv_heads, s.key_tokens, s.value_dim),
          random_tensor<float>(mhla::testing::Uniform{0.1f, 1.0f}, seed + 3, s.mix_heads,
                               s.mix_query_blocks, s.mix_key_blocks),
          random_tensor<T>(Normal{}, seed + 4, s.batch, s.heads, s.query_tokens, s.value_dim)};
}

// A shape of two blocks and more, whose gradients are not zero by nature.
Shape random_shape(std::uint64_t seed, Index block) {
  std::uint64_t draw = 0;
  const auto between = [&](Index low, Index high) {
    return low + mhla::testing::random_index(seed, draw++, high - low + 1);
  };
  Shape s;
  s.batch = between(1, 2);
  s.kv_heads = between(1, 2);
  s.heads = s.kv_heads * between(1, 3);
  s.query_tokens = s.key_tokens = between(2 * block, 120);
  s.key_dim = between(3, 72);
  s.value_dim = between(1, 72);
  s.mix_heads = between(0, 1) == 0 ? 1 : s.heads;
  s.mix_query_blocks = s.mix_key_blocks = (s.query_tokens + block - 1) / block;
  return s;
}

// Of one rounding to the nearest the largest error says no more than the largest element.
template <class T, int Rank>
void check_rms(const char* name, const HostTensor<T, Rank>& actual,
               const HostTensor<double, Rank>& expected, double rms) {
  const auto result = mhla::testing::compare(actual.view(), expected.view());
  INFO(name << " " << result.report());
  CHECK(result.rms_ratio <= rms);
}

template <class T, class Causality>
void check_random_shapes() {
  for (std::uint64_t seed = 100; seed < 900; seed += 100) {
    const Index block = 3 + mhla::testing::random_index(seed, 99, 30);
    const Sequence<Causality> attention{.blocks = {.block = block}};
    const Shape shape = random_shape(seed, block);
    CAPTURE(seed, block, shape.query_tokens, shape.heads, shape.kv_heads, shape.key_dim,
            shape.value_dim);
    const Operands<T> x = rounded_operands<T>(shape, seed);
    const Operands<double> exact = call::converted<double>(x);
    check_rms("y", call::forward(attention, x), call::oracle_forward(attention, exact),
              tolerance::forward_rms<T>);
    const Gradients<T> gradients = call::backward(attention, x);
    const Gradients<double> expected = call::oracle_backward(attention, exact);
    check_rms("dq", gradients.query, expected.query, tolerance::gradient_rms<T>);
    check_rms("dk", gradients.key, expected.key, tolerance::gradient_rms<T>);
    check_rms("dv", gradients.value, expected.value, tolerance::gradient_rms<T>);
    // Is not stored in 16 bits, and nothing on its way is.
    check_rms("dmix", gradients.mix, expected.mix, tolerance::gradient_rms<float>);
  }
}

template <class T, class V>
void check_rounded(const V& attention, const Operands<T>& x) {
  const Operands<float> wide = call::converted<float>(x);
  const auto require = [](const auto& narrow, const auto& full) {
    CHECK(bitwise_equal(narrow.view(), mhla::testing::converted<T>(full).view()));
  };
  require(call::forward(attention, x), call::forward(attention, wide));
  Gradients<T> gradients = call::backward(attention, x);
  Gradients<float> full = call::backward(attention, wide);
  require(gradients.query, full.query);
  require(gradients.key, full.key);
  require(gradients.value, full.value);
  CHECK(bitwise_equal(gradients.mix.view(), full.mix.view()));  // is not stored in 16 bits

  // Added in float, rounded once.
  Gradients<float> sums(wide);
  call::backward_to(sums.views(), Update::accumulate, attention, wide);
  Gradients<T> rounded_sums(x);
  call::backward_to(rounded_sums.views(), Update::accumulate, attention, x);
  require(rounded_sums.query, sums.query);
  require(rounded_sums.key, sums.key);
  require(rounded_sums.value, sums.value);
  CHECK(bitwise_equal(rounded_sums.mix.view(), sums.mix.view()));

  // From a saved state, whose summaries are float.
  if (!backend::saves_states) return;
  mhla::ForwardState<float> state;
  call::forward(attention, x, backend::device(), &state);
  Gradients<T> from_state = call::backward(attention, x, backend::device(), &state);
  call::check_same_bits(from_state, gradients);
}

// Bits after the first of a number.
template <class T>
constexpr int fraction_bits = std::is_same_v<T, BFloat16> ? 7 : 10;

constexpr Index patterns = 0x10000;

// Every pattern, as the values of one token.
template <class T>
HostTensor<T, 4> every_pattern() {
  HostTensor<T, 4> tensor(1, 1, 1, patterns);
  for (Index i = 0; i < patterns; ++i)
    tensor(0, 0, 0, i) = T::from_bits(static_cast<std::uint16_t>(i));
  return tensor;
}

// One token whose only weight is 1 to the last bit: y = v and dv = dy.
const Sequence<Bidirectional> one_token{.blocks = {.block = 1}, .normalizer = {.epsilon = 0}};
template <class T>
Operands<T> weight_of_one() {
  Operands<T> x = operands<T>(one_token, {1, 1, 1, 1, 1, 1, patterns});
  mhla::store(x.q(0, 0, 0, 0), 0.0f);  // whose feature is 1
  mhla::store(x.k(0, 0, 0, 0), 0.0f);
  x.mix(0, 0, 0) = 1;
  return x;
}

}  // namespace

TEMPLATE_TEST_CASE("16-bit tensors have the rounded results of float", "[cpu]", BFloat16, Half) {
  check_rounded(image, operands<TestType>(image, image_shape));
  const Sequence<Causal> causal{.blocks = {.block = 9}};
  check_rounded(causal, rounded_operands<TestType>({2, 4, 2, 40, 40, 6, 5, 4, 5, 5}, 7));
}

TEMPLATE_TEST_CASE("16-bit tensors are as close to the oracle as their rounding", "[cpu]", BFloat16,
                   Half) {
  SECTION("bidirectional") { check_random_shapes<TestType, Bidirectional>(); }
  SECTION("causal") { check_random_shapes<TestType, Causal>(); }
}

TEMPLATE_TEST_CASE("16-bit tensors: every pattern passes as it is, and is added to in float",
                   "[cpu]", BFloat16, Half) {
  using T = TestType;
  Operands<T> x = weight_of_one<T>();
  x.v = every_pattern<T>();
  const HostTensor<T, 4> y = call::forward(one_token, x);
  for (Index i = 0; i < patterns; ++i) {
    const T v = x.v(0, 0, 0, i);
    const T got = y(0, 0, 0, i);
    if (std::isnan(mhla::load(v))) {
      REQUIRE(std::isnan(mhla::load(got)));
    } else if (mhla::load(v) == 0) {  // a sum of zeros is positive
      REQUIRE(mhla::load(got) == 0);
    } else {  // subnormals and infinities among them
      REQUIRE(got.bits == v.bits);
    }
  }

  // To every dv half of its last bit is added: it ties, and goes to the even neighbour, which is
  // infinity for the largest number. Nothing is added where T has no such half.
  x.v = weight_of_one<T>().v;
  Gradients<T> gradients(x);
  gradients.value = every_pattern<T>();
  for (Index i = 0; i < patterns; ++i) {
    const float start = mhla::load(gradients.value(0, 0, 0, i));
    T& half_step = x.dy(0, 0, 0, i);
    mhla::store(half_step, 0.0f);
    if (start == 0 || !std::isfinite(start)) continue;
    const float exact =
        std::ldexp(std::copysign(1.0f, start), std::ilogb(start) - fraction_bits<T> - 1);
    mhla::store(half_step, exact);
    if (mhla::load(half_step) != exact || (i & 0x7fff) >> fraction_bits<T> == 0)
      mhla::store(half_step, 0.0f);
  }
  call::backward_to({skip, skip, gradients.value.view(), skip}, Update::accumulate, one_token, x);
  Index ties = 0;
  for (Index i = 0; i < patterns; ++i) {
    const T start = T::from_bits(static_cast<std::uint16_t>(i));
    const T got = gradients.value(0, 0, 0, i);
    const float added = mhla::load(x.dy(0, 0, 0, i));
    if (std::isnan(mhla::load(start))) {
      REQUIRE(std::isnan(mhla::load(got)));
    } else if (mhla::load(start) == 0) {
      REQUIRE(mhla::load(got) == 0);
    } else {
      const bool up = added != 0 && start.bits % 2 == 1;
      REQUIRE(got.bits == start.bits + (up ? 1 : 0));
      ties += added != 0 ? 1 : 0;
    }
  }
  CHECK(ties > 40000);
}
