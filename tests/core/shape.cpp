// SPDX-License-Identifier: MIT
#include <mhla/core/error.hpp>
#include <mhla/core/shape.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

using namespace mhla;

static_assert(std::is_base_of_v<std::runtime_error, mhla::Error>);
static_assert(std::is_base_of_v<mhla::Error, ShapeError>);
static_assert(std::is_base_of_v<mhla::Error, mhla::WorkspaceError>);
static_assert(std::is_base_of_v<mhla::Error, mhla::StateError>);
static_assert(std::is_base_of_v<mhla::Error, mhla::CudaError>);

namespace {

// Operands of one call, without memory: only extents are read.
struct Operands {
  TensorView<float, 4> q = mhla::make_view(static_cast<float*>(nullptr), 2, 6, 35, 5);
  TensorView<float, 4> k = mhla::make_view(static_cast<float*>(nullptr), 2, 3, 21, 5);
  TensorView<float, 4> v = mhla::make_view(static_cast<float*>(nullptr), 2, 3, 21, 7);
  TensorView<float, 3> mix = mhla::make_view(static_cast<float*>(nullptr), 6, 4, 8);

  Shape shape() const { return mhla::shape_of(q, k, v, mix); }
  std::string message() const {
    return error_message<ShapeError>([&] { static_cast<void>(shape()); });
  }
};

std::string inconsistency(Shape shape) {
  return error_message<ShapeError>([&] { mhla::require_consistent(shape); });
}

}  // namespace

TEST_CASE("shape: four operands make the shape of a call", "[core]") {
  const Shape shape = Operands{}.shape();
  CHECK(shape.batch == 2);
  CHECK(shape.heads == 6);
  CHECK(shape.kv_heads == 3);
  CHECK(shape.query_tokens == 35);
  CHECK(shape.key_tokens == 21);
  CHECK(shape.key_dim == 5);
  CHECK(shape.value_dim == 7);
  CHECK(shape.mix_heads == 6);
  CHECK(shape.mix_query_blocks == 4);
  CHECK(shape.mix_key_blocks == 8);
  CHECK(shape.group_size() == 2);
  CHECK(Shape{}.group_size() == 0);
  CHECK_NOTHROW(mhla::require_consistent(shape));
}

TEST_CASE("shape: an operand that does not fit is named with its axis and both extents", "[core]") {
  Operands operands;
  SECTION("k, batch") {
    operands.k.extent[0] = 9;
    CHECK(says(operands.message(), "k: axis batch is 9 but must be 2"));
  }
  SECTION("k, key_dim") {
    operands.k.extent[3] = 9;
    CHECK(says(operands.message(), "k: axis key_dim is 9 but must be 5"));
  }
  SECTION("v, batch") {
    operands.v.extent[0] = 9;
    CHECK(says(operands.message(), "v: axis batch is 9 but must be 2"));
  }
  SECTION("v, heads") {
    operands.v.extent[1] = 9;
    CHECK(says(operands.message(), "v: axis heads is 9 but must be 3"));
  }
  SECTION("v, tokens") {
    operands.v.extent[2] = 9;
    CHECK(says(operands.message(), "v: axis tokens is 9 but must be 21"));
  }
}

TEST_CASE("shape: heads must be a multiple of kv heads, and mix shared or one a head", "[core]") {
  Shape shape = Operands{}.shape();
  SECTION("kv heads") {
    shape.kv_heads = 4;
    CHECK(says(inconsistency(shape), "k: axis heads is 4", "q has 6 heads", "multiple"));
    shape.kv_heads = 12;
    CHECK(says(inconsistency(shape), "k: axis heads is 12"));
    shape.kv_heads = 0;
    CHECK(says(inconsistency(shape), "k: axis heads is 0"));
    shape.kv_heads = 6;
    CHECK_NOTHROW(mhla::require_consistent(shape));
    shape.kv_heads = 1;
    CHECK_NOTHROW(mhla::require_consistent(shape));
  }
  SECTION("mix") {
    for (const Index heads : {0, 2, 3, 7}) {
      shape.mix_heads = heads;
      CHECK(says(inconsistency(shape), "mix: axis heads is " + std::to_string(heads),
                 "1 (shared), 6 (one matrix per head of q) or " + std::to_string(6 * shape.batch)));
    }
    for (const Index heads : {Index{1}, Index{6}, 6 * shape.batch}) {
      shape.mix_heads = heads;
      CHECK_NOTHROW(mhla::require_consistent(shape));
      for (Index n = 0; n < shape.batch; ++n)
        for (Index h = 0; h < 6; ++h)
          CHECK(shape.mix_of(n, h) == (heads == 1 ? 0 : heads == 6 ? h : 6 * n + h));
    }
  }
  SECTION("negative extents") {
    for (Index Shape::*extent :
         {&Shape::batch, &Shape::heads, &Shape::kv_heads, &Shape::query_tokens, &Shape::key_tokens,
          &Shape::key_dim, &Shape::value_dim, &Shape::mix_heads}) {
      Shape negative = shape;
      negative.*extent = -3;
      CHECK(says(inconsistency(negative), "negative", "-3"));
    }
    Operands negative;  // named before the other operands disagree with it
    negative.q.extent[2] = -3;
    CHECK(says(negative.message(), "q: axis tokens is -3, which is negative"));
    negative = {};
    negative.k.extent[2] = -7;
    CHECK(says(negative.message(), "k: axis tokens is -7, which is negative"));
    negative = {};
    negative.v.extent[3] = -1;
    CHECK(says(negative.message(), "v: axis value_dim is -1, which is negative"));
    negative = {};
    negative.mix.extent[1] = -2;
    CHECK(says(negative.message(), "mix: axis query blocks is -2, which is negative"));
  }
  SECTION("extents that no tensor has, whatever their order and however empty") {
    constexpr Index huge = Index{1} << 62;
    for (Index Shape::*extent :
         {&Shape::batch, &Shape::query_tokens, &Shape::key_tokens, &Shape::key_dim,
          &Shape::value_dim, &Shape::mix_query_blocks, &Shape::mix_key_blocks}) {
      Shape large = shape;
      large.*extent = huge;
      CHECK(says(inconsistency(large), std::to_string(huge), "too large"));
      large.heads = large.kv_heads = large.mix_heads = 0;
      CHECK(says(inconsistency(large), std::to_string(huge), "too large"));
    }
    // As many elements as there may be, and one more.
    const auto check = [](Index elements) {
      mhla::require_tensor("x", {{"a", 0}, {"b", Index{1} << 28}, {"c", elements}});
    };
    CHECK_NOTHROW(check(mhla::max_elements >> 28));
    CHECK(says(error_message<ShapeError>([&] { check((mhla::max_elements >> 28) + 1); }),
               "mhla: x: axis c is 268435457", "2^56"));
  }
  SECTION("zero extents are legal") {
    for (Index Shape::*extent : {&Shape::batch, &Shape::query_tokens, &Shape::key_tokens,
                                 &Shape::key_dim, &Shape::value_dim}) {
      Shape empty = shape;
      empty.*extent = 0;
      CHECK_NOTHROW(mhla::require_consistent(empty));
    }
    Shape headless = shape;
    headless.heads = headless.kv_heads = headless.mix_heads = 0;
    CHECK_NOTHROW(mhla::require_consistent(headless));
  }
}

TEST_CASE("shape: require_extents names the axis that differs", "[core]") {
  const auto view = mhla::make_view(static_cast<float*>(nullptr), 2, 3, 5, 7);
  mhla::require_extents(view, "y", 2, 3, 5, 7, "rule");
  const auto message = [&](Index batch, Index heads, Index tokens, Index dim) {
    return error_message<ShapeError>(
        [&] { mhla::require_extents(view, "y", batch, heads, tokens, dim, "because of it"); });
  };
  CHECK(says(message(9, 3, 5, 7), "y: axis batch is 2 but must be 9; because of it"));
  CHECK(says(message(2, 9, 5, 7), "y: axis heads is 3 but must be 9"));
  CHECK(says(message(2, 3, 9, 7), "y: axis tokens is 5 but must be 9"));
  CHECK(says(message(2, 3, 5, 9), "y: axis dim is 7 but must be 9"));
}
