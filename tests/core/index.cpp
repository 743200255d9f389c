// SPDX-License-Identifier: MIT
#include <limits>
#include <mhla/core/index.hpp>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

using mhla::Index;

namespace {
constexpr Index largest = std::numeric_limits<Index>::max();
constexpr Index two31 = Index{1} << 31;
}  // namespace

static_assert(sizeof(Index) == 8, "indices are 64-bit");
static_assert(mhla::checked_mul(two31 - 1, 2) == 4294967294);
static_assert(mhla::checked_mul(two31, two31 - 1) == (two31 - 1) * two31);
static_assert(mhla::checked_add(two31, two31) == Index{1} << 32);

TEST_CASE("index: products and sums are exact up to 2^63 - 1 and throw beyond", "[core]") {
  CHECK(mhla::checked_mul(largest, 1) == largest);
  CHECK(mhla::checked_mul(1, largest) == largest);
  CHECK(mhla::checked_mul(largest / 7, 7) == largest / 7 * 7);  // 2^63 - 1 = 7^2 * ...
  CHECK(mhla::checked_mul(0, largest) == 0);
  CHECK(mhla::checked_mul(largest, 0) == 0);
  CHECK(mhla::checked_add(largest, 0) == largest);
  CHECK(mhla::checked_add(largest - 5, 5) == largest);

  CHECK_THROWS_AS(mhla::checked_mul(two31 << 1, two31), mhla::ShapeError);  // 2^63
  CHECK_THROWS_AS(mhla::checked_mul(largest, 2), mhla::ShapeError);
  CHECK_THROWS_AS(mhla::checked_mul(2, largest), mhla::ShapeError);
  CHECK_THROWS_AS(mhla::checked_mul(largest, largest), mhla::ShapeError);
  CHECK_THROWS_AS(mhla::checked_add(largest, 1), mhla::ShapeError);
  CHECK_THROWS_AS(mhla::checked_add(1, largest), mhla::ShapeError);
  CHECK(says(error_message<mhla::ShapeError>([] { mhla::checked_mul(largest, 3); }),
             "9223372036854775807 * 3", "64 bits"));
}

TEST_CASE("index: ceil_div rounds up, also next to the largest index", "[core]") {
  for (Index a = 0; a < 40; ++a)
    for (Index b = 1; b < 12; ++b) {
      const Index quotient = mhla::ceil_div(a, b);
      CHECK(quotient * b >= a);
      CHECK((quotient - 1) * b < a);
    }
  CHECK(mhla::ceil_div(largest, 1) == largest);
  CHECK(mhla::ceil_div(largest, 2) == Index{1} << 62);
  CHECK(mhla::ceil_div(largest, largest) == 1);
}

TEST_CASE("index: even_split covers everything in order, parts differ by one at most", "[core]") {
  for (Index count = 0; count < 30; ++count)
    for (Index parts = 1; parts < 9; ++parts) {
      CHECK(mhla::even_split(count, parts, 0) == 0);
      CHECK(mhla::even_split(count, parts, parts) == count);
      Index before = count / parts + 1;
      for (Index part = 0; part < parts; ++part) {
        const Index size =
            mhla::even_split(count, parts, part + 1) - mhla::even_split(count, parts, part);
        CHECK((size == count / parts || size == count / parts + 1));
        CHECK(size <= before);  // the larger parts come first
        before = size;
      }
    }
  CHECK(mhla::even_split(largest, 3, 3) == largest);
}
