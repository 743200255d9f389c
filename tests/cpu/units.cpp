// SPDX-License-Identifier: MIT
// However a call is cut into tasks, and whoever runs them in which order, the bits are the same:
// one slot that runs whole units, slots that share units, and threads.
#include <algorithm>
#include <cstddef>
#include <mhla/cpu/pipeline.hpp>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cpu/executors.hpp"

namespace {

using call::bitwise_equal;
using namespace executors;
using namespace mhla;

// Blocks of 3 tokens for more than two groups of rows of the mixing matrix.
constexpr Index many_tokens = 3 * (2 * mhla::cpu::max_mixing_rows + 5);

template <class T, class V>
void check_executors(const V& attention, const Shape& shape) {
  const auto x = call::operands<T>(attention, shape);
  auto y = call::forward(attention, x);
  auto gradients = call::backward(attention, x);
  const auto check = [&](const auto& executor) {
    auto other_y = call::forward(attention, x, executor);
    auto other_gradients = call::backward(attention, x, executor);
    CHECK(bitwise_equal(y.view(), other_y.view()));
    check_same_bits(gradients, other_gradients);
  };
  for (const Index num_slots : {1, 3, 40}) {
    INFO(num_slots << " slots in any order");
    check(ShuffledExecutor{num_slots, static_cast<std::uint64_t>(num_slots)});
  }
  for (const Index threads : {2, 8}) {
    INFO(threads << " threads");
    check(ThreadExecutor{threads});
  }
}

// Blocks of one size, which every normalizer takes.
template <class Normalizer>
void check_even_calls() {
  using Sequence = Attention<Relu, Blocks1D, Bidirectional, Normalizer, NoRotation>;
  using Image = Attention<Relu, Blocks2D, Bidirectional, Normalizer, AxialRotary>;
  SECTION("groups of query heads, one matrix, several groups of rows") {
    check_executors<float>(Sequence{.blocks = {.block = 3}},
                           {2, 6, 2, many_tokens, many_tokens, 5, 7});
  }
  SECTION("groups of query heads, a matrix each") {
    check_executors<float>(Sequence{.blocks = {.block = 3}},
                           {2, 6, 2, many_tokens, many_tokens, 5, 7, 6});
  }
  SECTION("fewer units than slots, an image, rotated, a matrix per head") {
    check_executors<float>(Image{.blocks = {.grid = {12, 15}, .block = {3, 3}}},
                           {1, 2, 1, 180, 180, 6, 9, 2});
  }
  SECTION("more kv heads than partial sums") {
    check_executors<float>(Sequence{.blocks = {.block = 4}}, {3, 70, 70, 12, 12, 3, 2});
    check_executors<float>(Sequence{.blocks = {.block = 4}}, {3, 70, 70, 12, 12, 3, 2, 70});
  }
  SECTION("more sequences than partial sums") {
    check_executors<float>(Sequence{.blocks = {.block = 4}}, {150, 2, 1, 12, 12, 3, 2});
    check_executors<float>(Sequence{.blocks = {.block = 4}}, {67, 6, 3, 12, 12, 3, 2, 6});
  }
  SECTION("by scores of all pairs, several tiles with several ranges of keys") {
    constexpr bool has = mhla::cpu::has_quadratic_path<Sequence>;
    constexpr auto path = has ? mhla::Path::quadratic : mhla::Path::linear;
    check_executors<float>(Sequence{.blocks = {.block = 4}, .path = path},
                           {2, 2, 1, 600, 600, 9, 5});
    check_executors<float>(Sequence{.blocks = {.block = 150}, .path = path},
                           {1, 3, 3, 600, 600, 16, 5, 3});
  }
  SECTION("blocks of several tiles") {
    check_executors<float>(Sequence{.blocks = {.block = 300}}, {2, 2, 1, 600, 600, 9, 5});
  }
}

// What slots get to do, one number of tasks for every loop.
struct RecordingExecutor {
  Index count;
  std::vector<Index>* loops;

  Index num_slots() const { return count; }
  template <class Task>
  void parallel_for(Index tasks, const Task& task) const {
    if (tasks > 0) loops->push_back(tasks);
    for (Index i = 0; i < tasks; ++i) task(i, i % count);
  }
};

// y and a forward state of a call whose slots share out value columns, and what the gradients make
// of that state.
template <class T, class V>
void check_value_parts(const V& attention, const Shape& shape, Index num_slots) {
  const auto x = call::operands<T>(attention, shape);
  using A = mhla::Accumulator<T>;
  mhla::ForwardState<A> whole;
  auto y = call::forward(attention, x, mhla::SerialExecutor{}, &whole);
  auto gradients = call::backward(attention, x, mhla::SerialExecutor{}, &whole);
  const auto check = [&](const auto& executor) {
    mhla::ForwardState<A> parted;
    auto other_y = call::forward(attention, x, executor, &parted);
    CHECK(bitwise_equal(y.view(), other_y.view()));
    auto other_gradients = call::backward(attention, x, mhla::SerialExecutor{}, &parted);
    check_same_bits(gradients, other_gradients);
  };
  check(ShuffledExecutor{num_slots});
  check(ApartExecutor{num_slots});
}

}  // namespace

TEST_CASE("units: MixedKeySum has the same bits on every executor", "[cpu]") {
  check_even_calls<MixedKeySum>();
}
TEST_CASE("units: MixedProduct has the same bits on every executor", "[cpu]") {
  check_even_calls<MixedProduct>();
}
TEST_CASE("units: Unnormalized has the same bits on every executor", "[cpu]") {
  check_even_calls<Unnormalized>();
}

TEST_CASE("units: value columns shared out leave the bits of y and of a forward state", "[cpu]") {
  using Causal = Attention<Relu, Blocks1D, mhla::Causal, MixedKeySum, mhla::HalfSplitRotary>;
  using Image = Attention<mhla::SquaredRelu, Blocks2D, Bidirectional, MixedProduct, AxialRotary>;
  for (const Index num_slots : {2, 3, 4}) {
    CAPTURE(num_slots);
    constexpr auto path = mhla::Path::linear;
    check_value_parts<float>(Causal{.blocks = {.block = 5}, .path = path},
                             {1, 2, 1, 83, 83, 16, 192}, num_slots);
    check_value_parts<float>(Causal{.blocks = {.block = 72}, .path = path},
                             {1, 1, 1, 200, 200, 16, 288}, num_slots);
    check_value_parts<double>(Image{.blocks = {.grid = {6, 9}, .block = {3, 3}}, .path = path},
                              {2, 1, 1, 54, 54, 32, 128}, num_slots);
    check_value_parts<mhla::Half>(Attention<Relu, Blocks1D>{.blocks = {.block = 7}, .path = path},
                                  {1, 2, 1, 100, 100, 16, 192, 2}, num_slots);
  }
}

TEST_CASE("units: every slot has something to do", "[cpu]") {
  const auto loops_of = [](auto attention, Index num_slots, Index heads, Index blocks,
                           Index key_dim = 4, Index value_dim = 3, Index block = 2) {
    attention.blocks.block = block;
    if (attention.path == mhla::Path::automatic) attention.path = mhla::Path::linear;
    const Index tokens = block * blocks;
    const auto x =
        call::operands<float>(attention, {1, heads, heads, tokens, tokens, key_dim, value_dim});
    std::vector<Index> all;
    call::forward(attention, x, RecordingExecutor{num_slots, &all});
    return all;
  };
  const auto loops = [&](auto... sizes) { return loops_of(Attention<Relu, Blocks1D>{}, sizes...); };
  using Loops = std::vector<Index>;
  // One head: its key blocks, and as many groups of query blocks for every slot.
  CHECK(loops(1, 1, 64) == Loops{1});
  CHECK(loops(2, 1, 16) == Loops{16, 2});
  CHECK(loops(2, 1, 64) == Loops{64, 4});
  CHECK(loops(8, 1, 16) == Loops{16, 8});
  CHECK(loops(8, 1, 5) == Loops{5, 5});
  CHECK(loops(2, 1, 141) == Loops{141, 9});  // are not cut otherwise
  // As many heads as slots, and what does not go round.
  CHECK(loops(2, 2, 16) == Loops{2});
  CHECK(loops(2, 3, 16) == Loops{2, 16, 2});
  CHECK(loops(4, 6, 16) == Loops{4, 16, 4, 16, 4});
  CHECK(loops(4, 7, 16) == Loops{7});
  CHECK(loops(2, 5, 16) == Loops{4, 16, 2});
  // By scores of all pairs a short head is a single task.
  const Attention<Relu, Blocks1D> scores{.path = mhla::Path::quadratic};
  CHECK(loops_of(scores, 4, 2, 16) == Loops{2});
  CHECK(loops_of(scores, 4, 2, 60) == Loops{2, 2, 2, 2});
  // Fewer heads than slots share their value columns out, where summaries are large, and columns
  // make whole vectors, enough of them for every slot.
  CHECK(loops(2, 1, 16, 16, 64) == Loops{2});
  CHECK(loops(4, 2, 16, 16, 64) == Loops{4});
  CHECK(loops(4, 1, 16, 32, 128) == Loops{4});
  CHECK(loops(4, 1, 16, 32, 64) == Loops{16, 4});
  CHECK(loops(3, 2, 16, 16, 96) == Loops{16, 3, 16, 3});
  CHECK(loops(2, 1, 16, 8, 64) == Loops{16, 2});
  CHECK(loops(2, 1, 16, 16, 72) == Loops{16, 2});
  CHECK(loops(2, 2, 16, 16, 64) == Loops{2});
  CHECK(loops(2, 1, 16, 16, 64, 16) == Loops{2});
  CHECK(loops(2, 1, 16, 16, 64, 17) == Loops{16, 2});
  CHECK(loops_of(Attention<mhla::EluPlusOne, Blocks1D>{}, 2, 1, 16, 16, 64) == Loops{16, 2});
}

TEST_CASE("units: ragged grids and two sides have the same bits on every executor", "[cpu]") {
  SECTION("ragged image") {
    check_executors<double>(
        Attention<Relu, Blocks2D>{.blocks = {.grid = {13, 11}, .block = {3, 4}}},
        {2, 6, 2, 143, 143, 5, 7});
  }
  SECTION("keys of another image, more of them") {
    check_executors<double>(
        Attention<Relu, Blocks2D>{.blocks = {.grid = {3, 11}, .block = {2, 4}},
                                  .key_blocks = {.grid = {17, 9}, .block = {2, 2}}},
        {1, 4, 2, 33, 153, 5, 7, 4});
  }
  SECTION("ragged sequence of long blocks") {
    check_executors<double>(Attention<Relu, Blocks1D>{.blocks = {.block = 150}},
                            {1, 2, 2, 500, 500, 5, 7});
  }
}
