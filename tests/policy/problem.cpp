// SPDX-License-Identifier: MIT
// Attention as a type, and the check that it fits the extents of a call.
#include <cstdint>
#include <limits>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/variant.hpp>
#include <string>
#include <type_traits>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

using namespace mhla;

namespace {

using Sequence = Attention<Relu, Blocks1D>;
using Image = Attention<EluPlusOne, Blocks2D>;
using ImageProduct = Attention<Relu, Blocks2D, Bidirectional, MixedProduct>;
using CausalSequence = Attention<Relu, Blocks1D, Causal>;
using FrameSequence = Attention<Relu, Blocks1D, BlockCausal, Unnormalized>;
using Rotated = Attention<Identity, Blocks1D, Bidirectional, Unnormalized, HalfSplitRotary>;

// A user's own geometry: a sequence in a given number of blocks.
struct EqualParts {
  static constexpr int rank = 1;
  Index parts = 0;
  bool unset() const { return parts == 0; }
  Grid grid_of(Index tokens) const { return {{1, 1, tokens}, {1, 1, ceil_div(tokens, parts)}}; }
};
// One whose leading axis is not 1.
struct Stacked {
  static constexpr int rank = 1;
  Index extent = 1, block = 1;
  bool unset() const { return block < 0; }
  Grid grid_of(Index tokens) const { return {{extent, 1, tokens}, {block, 1, 9}}; }
};
struct Clamped {
  template <class T>
  T value(T x) const {
    return x < T(0) ? T(0) : x > T(1) ? T(1) : x;
  }
  template <class T>
  T derivative(T x) const {
    return x > T(0) && x < T(1) ? T(1) : T(0);
  }
};

struct Steep : Clamped {
  int slope = 1;
  void require_valid() const {
    if (slope == 0) throw ShapeError("no slope");
  }
};

constexpr Shape shape_1d{.batch = 2,
                         .heads = 6,
                         .kv_heads = 3,
                         .query_tokens = 35,
                         .key_tokens = 35,
                         .key_dim = 5,
                         .value_dim = 7,
                         .mix_heads = 6,
                         .mix_query_blocks = 4,
                         .mix_key_blocks = 4};

template <class V>
std::string message(const V& attention, const Shape& shape) {
  return error_message<ShapeError>([&] { checked_problem(attention, shape); });
}

Shape with(Shape shape, Index Shape::*extent, Index value) {
  shape.*extent = value;
  return shape;
}

}  // namespace

static_assert(std::is_aggregate_v<Sequence> && std::is_trivially_copyable_v<Sequence>);
static_assert(std::is_aggregate_v<Rotated> && std::is_trivially_copyable_v<Rotated>);
static_assert(std::is_trivially_copyable_v<Attention<Favor<float>, Blocks3D>>);
static_assert(AttentionVariant<Sequence> && AttentionVariant<const Sequence>);
static_assert(!AttentionVariant<Relu>);
static_assert(
    std::is_same_v<Sequence, Attention<Relu, Blocks1D, Bidirectional, MixedKeySum, NoRotation>>,
    "the defaults");
static_assert(Sequence{}.scale == 1 && Sequence{}.normalizer.epsilon == 1e-6);
static_assert(Sequence{}.blocks.unset() && Sequence{}.key_blocks.unset());

TEST_CASE("problem: members are named in the order of the template's arguments", "[policy]") {
  const Rotated attention{.feature_map = {},
                          .blocks = {.block = 8},
                          .key_blocks = {.block = 4},
                          .causality = {},
                          .normalizer = {},
                          .rotation = {.theta = 500},
                          .scale = 0.5};
  CHECK(attention.blocks.block == 8);
  CHECK(attention.key_blocks.block == 4);
  CHECK(attention.rotation.theta == 500);
  CHECK(attention.scale == 0.5);
}

TEST_CASE("problem: causal, packed and leading_corner calls take a larger mix", "[policy]") {
  const auto takes_larger = [](const auto& attention, Shape shape) {
    CHECK_NOTHROW(checked_problem(attention, with(shape, &Shape::mix_query_blocks, 32)));
    CHECK_NOTHROW(checked_problem(attention, with(shape, &Shape::mix_key_blocks, 32)));
    CHECK(says(message(attention, with(shape, &Shape::mix_query_blocks, 3)),
               "mix: axis query blocks is 3 but must be 4", "leading corner"));
    CHECK(says(message(attention, with(shape, &Shape::mix_key_blocks, 3)),
               "mix: axis key blocks is 3 but must be 4"));
    CHECK(says(message(attention, with(shape, &Shape::mix_query_blocks, -1)), "mix"));
  };
  const Sequence sequence{.blocks = {.block = 9}};
  const std::int32_t offsets[] = {0, 35};
  takes_larger(CausalSequence{.blocks = {.block = 9}}, shape_1d);
  takes_larger(FrameSequence{.blocks = {.block = 9}}, shape_1d);
  takes_larger(Sequence{.blocks = {.block = 9}, .mixing = {.leading_corner = true}}, shape_1d);
  Shape packed = shape_1d;
  packed.batch = 1;
  takes_larger(Packed<Sequence, std::int32_t>(sequence, {offsets, 2}), packed);
  // Elsewhere it may be that of another block size.
  const auto refuses_larger = [](const auto& attention) {
    for (const Index extent : {3, 5, 32}) {
      const std::string is = " is " + std::to_string(extent) + " but must be 4";
      CHECK(says(message(attention, with(shape_1d, &Shape::mix_query_blocks, extent)),
                 "mix: axis query blocks" + is, "check the block size", "mixing.leading_corner"));
      CHECK(says(message(attention, with(shape_1d, &Shape::mix_key_blocks, extent)),
                 "mix: axis key blocks" + is, "check the block size", "mixing.leading_corner"));
    }
  };
  refuses_larger(sequence);
  refuses_larger(Sequence{.blocks = {.block = 9}, .key_blocks = {.block = 10}});
  refuses_larger(Padded<Sequence>(sequence, {}));
}

TEST_CASE("problem: a 2-D mix must fit the layout exactly", "[policy]") {
  const Image attention{.blocks = {.grid = {5, 7}, .block = {3, 4}},
                        .mixing = {.leading_corner = true}};  // a grid's mix has no such corner
  CHECK_NOTHROW(checked_problem(attention, shape_1d));
  for (const Index blocks : {3, 5}) {
    CHECK(says(message(attention, with(shape_1d, &Shape::mix_query_blocks, blocks)),
               "mix: axis query blocks is " + std::to_string(blocks) + " but must be 4",
               "exactly"));
    CHECK(says(message(attention, with(shape_1d, &Shape::mix_key_blocks, blocks)),
               "mix: axis key blocks is " + std::to_string(blocks) + " but must be 4"));
  }
  CHECK(says(message(attention, with(shape_1d, &Shape::query_tokens, 36)), "q: axis tokens is 36",
             "blocks.grid holds 35"));
  CHECK(says(message(attention, with(shape_1d, &Shape::key_tokens, 34)), "k: axis tokens is 34",
             "blocks.grid holds 35"));
  const Image cross{.blocks = {.grid = {5, 7}, .block = {3, 4}},
                    .key_blocks = {.grid = {3, 4}, .block = {3, 1}}};
  CHECK_NOTHROW(checked_problem(cross, with(shape_1d, &Shape::key_tokens, 12)));
  CHECK(says(message(cross, shape_1d), "k: axis tokens is 35", "key_blocks.grid holds 12"));
}

TEST_CASE("problem: extents that no variant accepts", "[policy]") {
  const Sequence attention{.blocks = {.block = 9}};
  CHECK(says(message(attention, with(shape_1d, &Shape::kv_heads, 4)), "k: axis heads is 4"));
  CHECK(says(message(attention, with(shape_1d, &Shape::mix_heads, 2)), "mix: axis heads is 2"));
  CHECK(says(message(attention, with(shape_1d, &Shape::query_tokens, -1)), "negative"));
  CHECK(says(message(Sequence{}, shape_1d), "blocks.block is 0"));
  CHECK(says(message(Sequence{.blocks = {.block = 9}, .key_blocks = {.block = -1}}, shape_1d),
             "key_blocks.block is -1"));
  for (const Index nu : {Index{1} << 60, Index{1} << 61, Index{1} << 62})
    CHECK(says(message(Attention<Dpfp, Blocks1D>{.feature_map = {.nu = nu}, .blocks = {.block = 9}},
                       shape_1d),
               "feature_map(q): axis feature_dim", "too large"));
  CHECK(says(message(Attention<Hedgehog, Blocks1D>{.blocks = {.block = 9}},
                     with(shape_1d, &Shape::key_dim, Index{1} << 62)),
             "q: axis key_dim", "too large"));
}

TEST_CASE("problem: settings that make no sense are refused by name", "[policy]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Shape shape = shape_1d;
  shape.key_dim = 6;
  // `set` changes the number; 0 or more, or positive, are right.
  const auto check = [&](const std::string& member, auto attention, auto set, bool positive) {
    attention.blocks.block = 9;
    for (const double wrong : {nan, -nan, infinity, -infinity, -1.0, -1e-9, -1e300, 1e39}) {
      set(attention, wrong);
      CHECK(says(message(attention, shape), "mhla: " + member + " is ", "but must be"));
    }
    set(attention, 0);
    CHECK(says(message(attention, shape), "must be") == positive);
    for (const double right : {1e-30, 0.5, 1e30}) {
      set(attention, right);
      CHECK_NOTHROW(checked_problem(attention, shape));
    }
  };
  const auto feature_epsilon = [](auto& a, double x) { a.feature_map.epsilon = x; };
  const auto epsilon = [](auto& a, double x) { a.normalizer.epsilon = x; };
  const auto theta = [](auto& a, double x) { a.rotation.theta = x; };
  check(
      "scale", Sequence{}, [](auto& a, double x) { a.scale = x; }, false);
  check("feature_map.epsilon", Sequence{}, feature_epsilon, false);
  check("feature_map.epsilon", Attention<SquaredRelu, Blocks1D>{}, feature_epsilon, false);
  check("normalizer.epsilon", Sequence{}, epsilon, false);
  check("rotation.theta", Rotated{}, theta, true);
  check("rotation.theta", Attention<Relu, Blocks1D, Causal, Unnormalized, AxialRotary>{}, theta,
        true);
  using Random = Attention<Dpfp, Blocks1D>;
  for (const Index nu : {0, -1})
    CHECK(says(message(Random{.feature_map = {.nu = nu}, .blocks = {.block = 9}}, shape),
               "mhla: feature_map.nu is ", "but must be at least 1"));
  for (const int precision : {-1, 2, 7})
    CHECK(says(
        message(Sequence{.blocks = {.block = 9}, .precision = static_cast<Precision>(precision)},
                shape),
        "mhla: precision is " + std::to_string(precision)));
  CHECK(says(message(Sequence{.blocks = {.block = 9}, .path = static_cast<Path>(3)}, shape),
             "mhla: path is 3"));
  using Product = Attention<Relu, Blocks1D, Bidirectional, MixedProduct>;
  CHECK(says(message(Product{.blocks = {.block = 9}, .path = Path::quadratic}, shape),
             "mhla: path: Path::quadratic needs DenseMixing without MixedProduct"));
}

TEST_CASE("problem: a user's own map says which of its numbers make sense", "[policy]") {
  const Attention<Steep, Blocks1D> right{.blocks = {.block = 9}};
  CHECK_NOTHROW(checked_problem(right, shape_1d));
  CHECK(says(
      message(Attention<Steep, Blocks1D>{.feature_map = {{}, 0}, .blocks = {.block = 9}}, shape_1d),
      "no slope"));
}

TEST_CASE("problem: zero extents are legal", "[policy]") {
  const Sequence attention{.blocks = {.block = 9}};
  for (Index Shape::*extent : {&Shape::batch, &Shape::query_tokens, &Shape::key_tokens,
                               &Shape::key_dim, &Shape::value_dim})
    CHECK_NOTHROW(checked_problem(attention, with(shape_1d, extent, 0)));
}

TEST_CASE("problem: a rotation turns pairs of features", "[policy]") {
  const Rotated attention{.blocks = {.block = 9}};
  CHECK(says(message(attention, shape_1d), "rotation", "5 features", "even"));
  CHECK_NOTHROW(checked_problem(attention, with(shape_1d, &Shape::key_dim, 6)));
}

TEST_CASE("problem: favor's projection has the key_dim of q", "[policy]") {
  const float one = 1;
  Attention<Favor<float>, Blocks1D> attention{.feature_map = {make_view(&one, 12, 5)},
                                              .blocks = {.block = 9}};
  CHECK(checked_problem(attention, shape_1d).feature_dim == 12);
  CHECK(says(message(attention, with(shape_1d, &Shape::key_dim, 6)),
             "feature_map.projection: axis key_dim is 5 but must be 6"));
}

TEST_CASE("problem: causal variants and MixedProduct need equal sides", "[policy]") {
  const Shape longer = with(shape_1d, &Shape::key_tokens, 36);
  CHECK_NOTHROW(checked_problem(CausalSequence{.blocks = {.block = 9}}, shape_1d));
  CHECK(says(message(CausalSequence{.blocks = {.block = 9}}, longer), "Causal", "same"));
  CHECK(says(message(CausalSequence{.blocks = {.block = 9}, .key_blocks = {.block = 10}}, shape_1d),
             "key_blocks"));
  CHECK(says(message(FrameSequence{.blocks = {.block = 9}}, longer), "BlockCausal", "same"));
  const Attention<Relu, Blocks1D, Bidirectional, MixedProduct> product{.blocks = {.block = 7},
                                                                       .key_blocks = {.block = 5}};
  Shape wide = shape_1d;
  wide.mix_query_blocks = 5;
  wide.mix_key_blocks = 7;
  CHECK(says(message(product, wide), "MixedProduct", "same"));
}

TEST_CASE("problem: MixedProduct needs blocks of one size", "[policy]") {
  CHECK(says(message(ImageProduct{.blocks = {.grid = {5, 7}, .block = {3, 4}}}, shape_1d),
             "MixedProduct", "one size", "MixedKeySum"));
  Shape even = shape_1d;
  even.mix_query_blocks = even.mix_key_blocks = 7;
  CHECK_NOTHROW(checked_problem(ImageProduct{.blocks = {.grid = {5, 7}, .block = {5, 1}}}, even));
}

TEST_CASE("problem: sizes beyond 64 bits throw", "[policy]") {
  const Index half = Index{1} << 32;
  CHECK(
      says(message(Image{.blocks = {.grid = {half, half}, .block = {1, 1}}}, shape_1d), "64 bits"));
}

TEST_CASE("problem: a user's own geometry and feature map make a variant", "[policy]") {
  using Own = Attention<Clamped, EqualParts>;
  static_assert(AttentionVariant<Own> && std::is_trivially_copyable_v<Own>);
  const Problem problem = checked_problem(Own{.blocks = {.parts = 4}}, shape_1d);
  CHECK(problem.query_blocks == 4);
  CHECK(problem.query_grid.block[2] == 9);
}

TEST_CASE("problem: a geometry of the user's own has leading axes of 1", "[policy]") {
  using Own = Attention<Relu, Stacked>;
  CHECK(checked_problem(Own{}, shape_1d).query_blocks == 4);
  for (const Stacked& blocks : {Stacked{1, 0}, Stacked{1, 5}, Stacked{0, 1}, Stacked{2, 1}})
    CHECK(says(error_message<ShapeError>([&] { checked_problem(Own{.blocks = blocks}, shape_1d); }),
               "mhla: blocks: leading axis 0 of the grid has"));
}
