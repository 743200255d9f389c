// SPDX-License-Identifier: MIT
// A CpuPlan's calls have the bits of calls that are laid out anew, whatever was called before; it
// refuses every call but the planned one.
#include <mhla/cpu/cpu_plan.hpp>
#include <mhla/cpu/explain.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/packed.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cpu/executors.hpp"
#include "tests/support/error_message.hpp"

namespace {

using call::bitwise_equal;
using call::operands;
using executors::ShuffledExecutor;
using namespace mhla;

using Sequence = Attention<Relu, Blocks1D>;

template <class T, class X>
OperandViews<T> views_of(const X& x) {
  return {x.q.view(), x.k.view(), x.v.view(), x.mix.view()};
}

// Two plans take turns; one is moved in between.
template <class T, class V>
void check_bits(const V& attention, const Shape& shape) {
  const ShuffledExecutor executor{3};
  auto first = mhla::plan<T>(attention, operands<T>(attention, shape).shape(), executor);
  auto second = mhla::plan<T>(attention, operands<T>(attention, shape).shape(), executor);
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    CAPTURE(seed);
    const auto x = operands<T>(attention, shape, seed);
    auto y = x.dy;
    call::Gradients<T> gradients(x), expected(x);
    ForwardState<Accumulator<T>> state;
    auto* const used = seed == 2 ? nullptr : &state;
    const Update update = seed == 3 ? Update::accumulate : Update::overwrite;
    first.forward(executor, views_of<T>(x), y.view(), used);
    first.backward(executor, views_of<T>(x), x.dy, gradients.views(), update, used);
    CHECK(bitwise_equal(y.view(), call::forward(attention, x).view()));
    call::backward_to(expected.views(), update, attention, x);
    call::check_same_bits(gradients, expected);
    auto moved = std::move(first);
    first = std::move(second);
    second = std::move(moved);
  }
}

}  // namespace

TEST_CASE("plan: calls have the bits of those that are laid out anew", "[cpu]") {
  SECTION("dense") { check_bits<float>(Sequence{.blocks = {.block = 7}}, {2, 4, 2, 60, 60, 8, 5}); }
  SECTION("rotated, causal, a matrix per head") {
    check_bits<double>(
        Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>{
            .blocks = {.block = 150}},
        {1, 4, 2, 331, 331, 16, 8, 4});
  }
  SECTION("a recurrence") {
    Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, NoRotation, RecurrentMixing> attention{
        .blocks = {.block = 4}};
    attention.mixing.states = 2;
    check_bits<float>(attention, {2, 2, 2, 61, 61, 8, 5});
  }
  SECTION("fast") {
    check_bits<BFloat16>(Sequence{.blocks = {.block = 16}, .precision = Precision::fast},
                         {1, 2, 1, 160, 160, 32, 40});
  }
  SECTION("packed") {
    const std::vector<std::int32_t> offsets{0, 10, 15, 15, 24};
    check_bits<float>(
        mhla::packed(Sequence{.blocks = {.block = 4}}, Span<const std::int32_t>{offsets.data(), 5}),
        {1, 2, 2, 24, 24, 6, 3});
  }
  SECTION("padded") {
    call::HostTensor<std::uint8_t, 2> mask(2, 12);
    for (Index t = 0; t < 7; ++t) mask(0, t) = mask(1, t + 3) = 1;
    check_bits<float>(mhla::padded(Sequence{.blocks = {.block = 4}}, mask.view()),
                      {2, 2, 2, 12, 12, 6, 3});
  }
  SECTION("no keys, no output") {
    check_bits<float>(Sequence{.blocks = {.block = 4}}, {2, 2, 2, 12, 0, 6, 3});
    check_bits<float>(Sequence{.blocks = {.block = 4}}, {0, 2, 2, 12, 12, 6, 3});
  }
}

TEST_CASE("path: the one of fewer multiply-adds, by the shape alone", "[cpu]") {
  const auto check = [](Sequence attention, const Shape& shape, Path expected) {
    const auto x = operands<float>(attention, shape);
    CAPTURE(attention.blocks.block, shape.query_tokens);
    const bool quadratic = expected == Path::quadratic;
    const std::string text = mhla::explain<float>(attention, x.shape(), SerialExecutor{});
    INFO(text);
    CHECK(says(text,
               quadratic ? "forward: path quadratic, the cheaper" : "forward: path linear, the",
               quadratic ? "backward: path quadratic, the" : "backward: path linear, the"));
    ForwardState<float> state;
    const auto y = call::forward(attention, x, ShuffledExecutor{3}, &state);
    auto gradients = call::backward(attention, x, ShuffledExecutor{3}, &state);
    attention.path = expected;
    CHECK(bitwise_equal(y.view(), call::forward(attention, x).view()));
    auto asked = call::backward(attention, x);
    call::check_same_bits(gradients, asked);
    CHECK(says(mhla::explain<float>(attention, x.shape(), SerialExecutor{}), "as asked for"));
    // The other one is the same function.
    attention.path = quadratic ? Path::linear : Path::quadratic;
    call::check_close("y", call::forward(attention, x), y, tolerance::forward_rms<float>,
                      tolerance::forward_max<float>);
  };
  check({.blocks = {.block = 1}}, {1, 2, 1, 20, 20, 32, 32}, Path::quadratic);
  check({.blocks = {.block = 4}}, {1, 2, 2, 300, 300, 32, 32}, Path::quadratic);
  check({.blocks = {.block = 64}}, {1, 2, 2, 300, 300, 32, 32}, Path::linear);
  using Product = Attention<Relu, Blocks1D, Bidirectional, MixedProduct>;
  const Product product{.blocks = {.block = 4}};
  const auto x = operands<float>(product, {1, 1, 1, 8, 8, 6, 3});
  CHECK(says(mhla::explain<float>(product, x.shape(), SerialExecutor{}),
             "linear, the one that can run it"));
}

TEST_CASE("plan: any other call is refused before anything is written", "[cpu]") {
  const Sequence attention{.blocks = {.block = 4}};
  const SerialExecutor serial;
  const auto x = operands<float>(attention, {1, 2, 1, 12, 12, 6, 3});
  auto other = operands<float>(attention, {1, 2, 1, 11, 11, 6, 3});
  auto plan = mhla::plan<float>(attention, x.shape(), serial, PlannedPasses::forward);
  auto y = x.dy;
  call::Gradients<float> gradients(x);
  const auto refuse = [&](const auto& call, const char* why) {
    const std::string message = error_message<ShapeError>(call);
    INFO(message);
    CHECK(says(message, "mhla: ", why));
    CHECK(bitwise_equal(y.view(), x.dy.view()));
  };
  refuse([&] { plan.forward(serial, views_of<float>(other), y.view()); },
         "do not have the planned shape");
  refuse([&] { plan.forward(ShuffledExecutor{2}, views_of<float>(x), y.view()); },
         "the executor has 2 slots but the plan is for 1");
  refuse([&] { plan.backward(serial, views_of<float>(x), x.dy, gradients.views()); },
         "PlannedPasses::forward");
  refuse([&] { plan.forward(serial, views_of<float>(x), other.dy.view()); }, "y: axis");
  refuse(
      [&] { mhla::plan<float>(Sequence{.blocks = {.block = 4}, .scale = -1}, x.shape(), serial); },
      "scale");
  const auto taken = std::move(plan);
  refuse([&] { plan.forward(serial, views_of<float>(x), y.view()); }, "moved from");  // NOLINT
  const Index least = mhla::forward_workspace_size<float>(attention, x.shape(), serial);
  CHECK(taken.memory_size() >= least);
}
