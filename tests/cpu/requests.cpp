// SPDX-License-Identifier: MIT
// What a backward pass is asked for: any of the gradients, to replace or to add to what is there,
// from summaries saved or computed again. What is written does not depend on what else is.
#include <cstdint>
#include <mhla/cpu/pipeline.hpp>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace call;
using namespace mhla;

template <class Normalizer>
using Variant = Attention<Relu, Blocks1D, Bidirectional, Normalizer>;

// Fails unless `after` holds `before` and `gradient` as `update` says, element by element and bit
// by bit.
template <class T, int Rank>
void check_update(const call::HostTensor<T, Rank>& after, const call::HostTensor<T, Rank>& before,
                  const call::HostTensor<T, Rank>& gradient, bool wanted, Update update) {
  call::HostTensor<T, Rank> expected = before;
  if (wanted)
    mhla::testing::for_each_element(
        [&](T& to, const T& from) { to = update == Update::overwrite ? from : to + from; },
        expected.view(), gradient.view());
  CHECK(bitwise_equal(after.view(), expected.view()));
}

// Sizes at which summaries of different units begin at different alignments.
constexpr Shape shape{3, 6, 2, 12, 12, 5, 3};
constexpr Shape shape_with_matrices{3, 6, 2, 12, 12, 5, 3, 6};

}  // namespace

TEMPLATE_TEST_CASE("requests: every subset of the gradients, replaced and added to", "[cpu]",
                   MixedKeySum, MixedProduct, Unnormalized) {
  const auto attention = call::by_each_path(Variant<TestType>{.blocks = {.block = 3}});
  const Operands<double> x = operands<double>(attention, GENERATE(shape, shape_with_matrices));
  const Update update = GENERATE(Update::overwrite, Update::accumulate);
  const bool from_saved = GENERATE(false, true);
  ForwardState<double> state;
  call::forward(attention, x, SerialExecutor{}, &state);
  const Gradients<double> all = call::backward(attention, x);
  for (int subset = 0; subset < 16; ++subset) {
    CAPTURE(subset);
    const bool wanted[] = {(subset & 1) != 0, (subset & 2) != 0, (subset & 4) != 0,
                           (subset & 8) != 0};
    const Gradients<double> before(x);
    Gradients<double> after(x);
    GradientViews<double> views = after.views();
    if (!wanted[0]) views.query = skip;
    if (!wanted[1]) views.key = skip;
    if (!wanted[2]) views.value = skip;
    if (!wanted[3]) views.mix = skip;
    backward_to(views, update, attention, x, SerialExecutor{}, from_saved ? &state : nullptr);
    check_update(after.query, before.query, all.query, wanted[0], update);
    check_update(after.key, before.key, all.key, wanted[1], update);
    check_update(after.value, before.value, all.value, wanted[2], update);
    check_update(after.mix, before.mix, all.mix, wanted[3], update);
  }
}

TEMPLATE_TEST_CASE("requests: a saved state changes no bit of either pass", "[cpu]", float,
                   double) {
  for (const Index key_dim : {1, 3, 5, 9})
    for (const Index value_dim : {1, 3, 7}) {
      CAPTURE(key_dim, value_dim);
      const Variant<MixedKeySum> attention{.blocks = {.block = 3}};
      const auto x = operands<TestType>(attention, Shape{3, 4, 2, 14, 14, key_dim, value_dim});
      ForwardState<TestType> state;
      auto plain = call::forward(attention, x);
      auto saving = call::forward(attention, x, SerialExecutor{}, &state);
      CHECK(bitwise_equal(plain.view(), saving.view()));
      auto recomputed = call::backward(attention, x);
      auto from_saved = call::backward(attention, x, SerialExecutor{}, &state);
      check_same_bits(recomputed, from_saved);
      auto again = call::backward(attention, x, SerialExecutor{}, &state);  // it is only read
      check_same_bits(recomputed, again);
    }
}

TEST_CASE("requests: a saved state is used, not computed again", "[cpu]") {
  const Variant<MixedKeySum> attention{.blocks = {.block = 3}, .path = mhla::Path::linear};
  const Operands<double> x = operands<double>(attention, shape);
  Operands<double> other = x;
  for (double& element : other.v.elements()) element += 1;
  ForwardState<double> state;
  call::forward(attention, other, SerialExecutor{}, &state);
  auto recomputed = call::backward(attention, x);
  auto from_saved = call::backward(attention, x, SerialExecutor{}, &state);
  CHECK_FALSE(bitwise_equal(recomputed.query.view(), from_saved.query.view()));
}

TEST_CASE("requests: a state of another call is refused before anything is written", "[cpu]") {
  const Variant<MixedKeySum> attention{.blocks = {.block = 3}, .mixing = {.leading_corner = true}};
  const Operands<double> x = operands<double>(attention, shape);
  ForwardState<double> state;
  const auto check_refused = [&](const auto& variant, const Operands<double>& call_operands,
                                 const char* part) {
    const Gradients<double> before(call_operands);
    Gradients<double> gradients(call_operands);
    const std::string message = error_message<StateError>([&] {
      backward_to(gradients.views(), Update::accumulate, variant, call_operands, SerialExecutor{},
                  &state);
    });
    INFO(message);
    CHECK(says(message, "saved", part));
    CHECK(bitwise_equal(gradients.query.view(), before.query.view()));
    CHECK(bitwise_equal(gradients.key.view(), before.key.view()));
    CHECK(bitwise_equal(gradients.value.view(), before.value.view()));
    CHECK(bitwise_equal(gradients.mix.view(), before.mix.view()));
  };
  check_refused(attention, x, "nothing has been saved");

  call::forward(attention, x, SerialExecutor{}, &state);
  for (Shape other :
       {Shape{2, 6, 2, 12, 12, 5, 3}, Shape{3, 4, 2, 12, 12, 5, 3}, Shape{3, 6, 3, 12, 12, 5, 3},
        Shape{3, 6, 2, 11, 12, 5, 3}, Shape{3, 6, 2, 12, 11, 5, 3}, Shape{3, 6, 2, 12, 12, 4, 3},
        Shape{3, 6, 2, 12, 12, 5, 4}, shape_with_matrices})
    check_refused(attention, operands<double>(attention, other), "another shape or variant");
  // The same shape in other blocks (mix is larger than the layout), and without key sums.
  Operands<double> larger_blocks = x;
  check_refused(Variant<MixedKeySum>{.blocks = {.block = 4}, .mixing = {.leading_corner = true}},
                larger_blocks, "another shape or variant");
  check_refused(Variant<Unnormalized>{.blocks = {.block = 3}}, x, "another shape or variant");
}

// Another of the values that a variant holds: refused. The same ones elsewhere in memory: taken.
TEST_CASE("requests: a saved state knows the variant that saved it", "[cpu]") {
  const auto refuses = [](const auto& saving, const auto& taking, const auto& x) {
    using A = std::remove_const_t<std::remove_reference_t<decltype(x.mix.view()(0, 0, 0))>>;
    ForwardState<A> state;
    call::forward(saving, x, SerialExecutor{}, &state);
    const std::string message =
        error_message<StateError>([&] { call::backward(taking, x, SerialExecutor{}, &state); });
    INFO(message);
    CHECK((says(message, "another shape or variant") || says(message, "nothing was thrown")));
    return !says(message, "nothing was thrown");
  };
  using Base = Attention<Relu, Blocks1D>;
  const Base base{.blocks = {.block = 4}};
  const Operands<double> x = operands<double>(base, {2, 4, 2, 12, 12, 6, 3});
  SECTION("numbers") {
    const auto changed = [&](const auto& change) {
      Base other = base;
      change(other);
      return refuses(base, other, x);
    };
    CHECK_FALSE(changed([](Base&) {}));
    CHECK_FALSE(changed([](Base& a) { a.key_blocks.block = 4; }));
    CHECK(changed([](Base& a) { a.feature_map.epsilon = 1e-5; }));
    CHECK(changed([](Base& a) { a.normalizer.epsilon = 1e-5; }));
    CHECK(changed([](Base& a) { a.scale = 0.5; }));
    CHECK(changed([](Base& a) { a.blocks.block = 5; }));
    CHECK(changed([](Base& a) { a.key_blocks.block = 5; }));
    CHECK(changed([](Base& a) { a.precision = mhla::Precision::fast; }));
  }
  SECTION("types") {
    const auto as = [&]<class... P>(const Attention<P...>& other) {
      return refuses(base, other, x);
    };
    CHECK(as(Attention<mhla::EluPlusOne, Blocks1D>{.blocks = {4}}));
    CHECK(as(Attention<mhla::SquaredRelu, Blocks1D>{.blocks = {4}}));
    CHECK(as(Attention<Relu, mhla::Blocks2D>{.blocks = {{1, 12}, {1, 4}}}));
    CHECK(as(Attention<Relu, Blocks1D, mhla::Causal>{.blocks = {4}}));
    CHECK(as(Attention<Relu, Blocks1D, mhla::BlockCausal>{.blocks = {4}}));
    CHECK(as(Attention<Relu, Blocks1D, Bidirectional, MixedProduct>{.blocks = {4}}));
    CHECK(as(Variant<Unnormalized>{.blocks = {4}}));
    CHECK(as(Attention<Relu, Blocks1D, Bidirectional, MixedKeySum, mhla::HalfSplitRotary>{
        .blocks = {4}}));
  }
  SECTION("scalars of one accumulator") {
    const auto rounded = call::converted<mhla::BFloat16>(x);
    ForwardState<float> state;
    call::forward(base, rounded, SerialExecutor{}, &state);
    CHECK_NOTHROW(call::backward(base, rounded, SerialExecutor{}, &state));
    CHECK_THROWS_AS(call::backward(base, call::converted<float>(x), SerialExecutor{}, &state),
                    StateError);
    CHECK_THROWS_AS(call::backward(base, call::converted<mhla::Half>(x), SerialExecutor{}, &state),
                    StateError);
  }
  SECTION("rotations") {
    using Rotated = Attention<Relu, Blocks1D, Bidirectional, MixedKeySum, mhla::HalfSplitRotary>;
    const Rotated rotated{.blocks = {4}};
    Rotated faster = rotated;
    faster.rotation.theta = 500;
    CHECK_FALSE(refuses(rotated, Rotated{.blocks = {4}}, x));
    CHECK(refuses(rotated, faster, x));
    CHECK(refuses(
        rotated,
        Attention<Relu, Blocks1D, Bidirectional, MixedKeySum, mhla::AxialRotary>{.blocks = {4}},
        x));
  }
  SECTION("a projection") {
    const mhla::testing::HostTensor<double, 2> projection =
        mhla::testing::random_tensor<double>(mhla::testing::Normal{}, 7, 5, 6);
    auto same = projection;
    auto other = projection;
    other.view()(4, 5) += 1;
    const auto random = [](const auto& matrix) {
      return Attention<mhla::Favor<double>, Blocks1D>{.feature_map = {matrix.view()},
                                                      .blocks = {4}};
    };
    CHECK_FALSE(refuses(random(projection), random(same), x));
    CHECK(refuses(random(projection), random(other), x));
  }
  SECTION("offsets") {
    const Operands<double> joined = operands<double>(base, {1, 4, 2, 24, 24, 6, 3});
    const std::vector<std::int32_t> offsets{0, 10, 15, 24};
    const std::vector<std::int32_t> same = offsets;
    const std::vector<std::int32_t> other{0, 10, 16, 24};
    const auto packed = [&](const std::vector<std::int32_t>& at) {
      return mhla::Packed{base, Span<const std::int32_t>{at.data(), 4}};
    };
    CHECK_FALSE(refuses(packed(offsets), packed(same), joined));
    CHECK(refuses(packed(offsets), packed(other), joined));
    CHECK(refuses(base, packed(offsets), joined));
  }
  SECTION("masks") {
    call::HostTensor<std::uint8_t, 2> mask(2, 12);
    for (std::uint8_t& byte : mask.elements()) byte = 1;
    mask.view()(1, 11) = 0;
    auto same = mask;
    same.view()(0, 0) = 2;  // present all the same
    auto other = mask;
    other.view()(0, 3) = 0;
    const auto padded = [&](const auto& queries, const auto& keys) {
      return mhla::Padded{base, mhla::TokenMasks{queries.view(), keys.view()}};
    };
    CHECK_FALSE(refuses(padded(mask, mask), padded(same, same), x));
    CHECK(refuses(padded(mask, mask), padded(other, mask), x));
    CHECK(refuses(padded(mask, mask), padded(mask, other), x));
    CHECK(refuses(base, padded(mask, mask), x));
  }
}
