// SPDX-License-Identifier: MIT
// The projection of a mixing matrix after an update (arXiv 2601.07832, section 4; released code).
#include <cmath>
#include <limits>
#include <mhla/mixing_matrix.hpp>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using mhla::make_view;

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("projection: clamps to a closed interval, [0, 1] by default", "[mixing_matrix]") {
  std::vector<double> mix = {-0.5, 0.0, 0.25, 1.0, 1.5, -inf, inf, 1e-300, 1 - 1e-16};
  const std::vector<double> expected = {0, 0, 0.25, 1, 1, 0, 1, 1e-300, 1 - 1e-16};
  mhla::project(make_view(mix.data(), 3, 3));
  CHECK(mix == expected);

  std::vector<float> other = {-3.F, -2.F, -1.F, 0.F, 1.F, 2.F};
  mhla::project(make_view(other.data(), 2, 3), {.low = -2, .high = 0.5});
  CHECK(other == std::vector<float>{-2.F, -2.F, -1.F, 0.F, 0.5F, 0.5F});
  mhla::project(make_view(other.data(), 2, 3), {.low = 0.25, .high = 0.25});
  CHECK(other == std::vector<float>(6, 0.25F));
}

TEST_CASE("projection: the language model's clamps to [1e-5, 1] and clears the upper triangle",
          "[mixing_matrix]") {
  // two heads, rectangular, so that a swapped axis shows
  std::vector<double> mix = {-1, 2, 0.5,          0.1,  0,  7,   //
                             3,  4, -5,           1e-6, .5, -6,  //
                             .5, 1, not_a_number, -2,   9,  not_a_number};
  mhla::project(make_view(mix.data(), 3, 2, 3), mhla::causal_projection);
  const std::vector<double> expected = {1e-5, 0, 0, 0.1,  1e-5, 0,  //
                                        1,    0, 0, 1e-5, .5,   0,  //
                                        .5,   0, 0, 1e-5, 1,    0};
  CHECK(mix == expected);  // tril clears a NaN above the diagonal as well
}

TEST_CASE("projection: NaN stays NaN", "[mixing_matrix]") {
  double mix[4] = {not_a_number, 2, -1, not_a_number};
  mhla::project(make_view(mix, 2, 2));
  CHECK(std::isnan(mix[0]));
  CHECK(mix[1] == 1);
  CHECK(mix[2] == 0);
  CHECK(std::isnan(mix[3]));
}

TEST_CASE("projection: writes through strides and nowhere else", "[mixing_matrix]") {
  std::vector<double> data(6 * 7, 5.0);
  const mhla::TensorView<double, 3> every_other{data.data(), {1, 3, 3}, {0, 2 * 7, 2}};
  mhla::project(every_other);
  for (std::size_t n = 0; n < data.size(); ++n) {
    const bool inside = n / 7 % 2 == 0 && n % 7 % 2 == 0 && n % 7 <= 4;
    CHECK(data[n] == (inside ? 1.0 : 5.0));
  }
}

TEST_CASE("projection: an interval without a point is refused, nothing written",
          "[mixing_matrix]") {
  double mix[1] = {5};
  CHECK_THROWS_AS(mhla::project(make_view(mix, 1, 1), {.low = 1, .high = 0}), mhla::ShapeError);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double bound : {infinity, -infinity})
    CHECK_THROWS_AS(mhla::project(make_view(mix, 1, 1), {.low = bound, .high = bound}),
                    mhla::ShapeError);
  CHECK_THROWS_AS(mhla::project(make_view(mix, 1, 1), {.low = not_a_number, .high = 1}),
                  mhla::ShapeError);
  CHECK(mix[0] == 5);
}
