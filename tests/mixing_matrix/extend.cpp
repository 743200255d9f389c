// SPDX-License-Identifier: MIT
// A causal mixing matrix made larger, element by element, and what is refused.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mhla/mixing_matrix.hpp>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

// Two heads of three blocks, all entries different; above the diagonal whatever there is.
const std::vector<double> known = {1, 91, 92, 2, 3, 93, 4,  5,  6,  //
                                   7, 94, 95, 8, 9, 96, 10, 11, 12};

template <class T>
TensorView<const T, 3> matrices(const std::vector<T>& entries, Index heads, Index rows,
                                Index columns) {
  return make_view(entries.data(), heads, rows, columns);
}
template <class T>
TensorView<T, 3> matrices(std::vector<T>& entries, Index heads, Index rows, Index columns) {
  return make_view(entries.data(), heads, rows, columns);
}

std::vector<double> extended(Index blocks, Extension extension) {
  std::vector<double> larger(static_cast<std::size_t>(2 * blocks * blocks), not_a_number);
  extend(matrices(known, 2, 3, 3), matrices(larger, 2, blocks, blocks), extension);
  return larger;
}

}  // namespace

TEST_CASE("extend: causal_average gives new rows the mean over the past", "[mixing_matrix]") {
  CHECK(extended(5, Extension::causal_average) ==
        std::vector<double>{1,       91,      92,      0,       0,        //
                            2,       3,       93,      0,       0,        //
                            4,       5,       6,       0,       0,        //
                            1.0 / 4, 1.0 / 4, 1.0 / 4, 1.0 / 4, 0,        //
                            1.0 / 5, 1.0 / 5, 1.0 / 5, 1.0 / 5, 1.0 / 5,  //
                            7,       94,      95,      0,       0,        //
                            8,       9,       96,      0,       0,        //
                            10,      11,      12,      0,       0,        //
                            1.0 / 4, 1.0 / 4, 1.0 / 4, 1.0 / 4, 0,        //
                            1.0 / 5, 1.0 / 5, 1.0 / 5, 1.0 / 5, 1.0 / 5});
}

TEST_CASE("extend: last_row gives new rows the last one's weights by distance", "[mixing_matrix]") {
  CHECK(extended(5, Extension::last_row) == std::vector<double>{1,  91, 92, 0,  0,  //
                                                                2,  3,  93, 0,  0,  //
                                                                4,  5,  6,  0,  0,  //
                                                                4,  4,  5,  6,  0,  //
                                                                4,  4,  4,  5,  6,  //
                                                                7,  94, 95, 0,  0,  //
                                                                8,  9,  96, 0,  0,  //
                                                                10, 11, 12, 0,  0,  //
                                                                10, 10, 11, 12, 0,  //
                                                                10, 10, 10, 11, 12});
}

TEST_CASE("extend: a row is the same however large the matrix, and extending in two steps too",
          "[mixing_matrix]") {
  for (const Extension extension : {Extension::causal_average, Extension::last_row}) {
    const std::vector<double> largest = extended(9, extension);
    for (Index blocks = 3; blocks <= 9; ++blocks) {
      CAPTURE(blocks);
      const std::vector<double> larger = extended(blocks, extension);
      std::vector<double> again(2 * 9 * 9, not_a_number);
      extend(matrices(larger, 2, blocks, blocks), matrices(again, 2, 9, 9), extension);
      CHECK(again == largest);
      for (Index head = 0; head < 2; ++head)
        for (Index i = 0; i < blocks; ++i)
          for (Index b = 0; b < blocks; ++b)
            CHECK(matrices(larger, 2, blocks, blocks)(head, i, b) ==
                  matrices(largest, 2, 9, 9)(head, i, b));
    }
  }
  CHECK(extended(3, Extension::last_row) == known);  // no new row
}

TEST_CASE("extend: says what does not fit, and writes nothing", "[mixing_matrix]") {
  std::vector<double> larger(2 * 5 * 5, 5.0);
  const std::vector<double> before = larger;
  const auto refuse = [&](const TensorView<const double, 3>& mix,
                          const TensorView<double, 3>& target, Extension extension,
                          const std::string& part) {
    const std::string message = error_message<ShapeError>([&] { extend(mix, target, extension); });
    INFO(message);
    CHECK(says(message, "mhla: ", part));
    CHECK(larger == before);
  };
  constexpr Extension average = Extension::causal_average;
  refuse(matrices(known, 2, 3, 2), matrices(larger, 2, 5, 5), average,
         "mix: axis key blocks is 2 but must be 3");
  refuse(matrices(known, 1, 3, 3), matrices(larger, 2, 5, 5), average,
         "larger: axis heads is 2 but must be 1");
  refuse(matrices(known, 2, 3, 3), matrices(larger, 2, 5, 4), average,
         "larger: axis key blocks is 4 but must be 5");
  refuse(matrices(known, 2, 3, 3), matrices(larger, 2, 2, 2), average,
         "larger: axis query blocks is 2 but mix has 3");
  refuse(matrices(known, 2, 0, 0), matrices(larger, 2, 5, 5), Extension::last_row,
         "Extension::last_row needs a row to go by");
  refuse(matrices(larger, 2, 3, 3), matrices(larger, 2, 5, 5), average,
         "larger: shares memory with mix");
  refuse(matrices(known, 2, 3, 3), matrices(larger, 2, 5, 5), static_cast<Extension>(2),
         "extend: extension is 2");
  refuse(matrices(known, 2, 3, 3), {larger.data(), {2, 5, 5}, {0, 5, 1}}, average,
         "larger: shares memory with mix, or with itself");
}
