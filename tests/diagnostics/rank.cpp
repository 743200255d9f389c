// SPDX-License-Identifier: MIT
// Singular values and the ranks they tell, on matrices whose answers are known.
#include <cmath>
#include <cstddef>
#include <limits>
#include <mhla/diagnostics/rank.hpp>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using namespace mhla;
using mhla::diagnostics::Spectrum;

// H diag(sigma) H' with the reflections H = 1 - 2 u u^T / |u|^2, of rows x columns.
std::vector<double> with_singular_values(const std::vector<double>& sigma, int rows, int columns) {
  const auto reflection = [](int size, int i, int j) {
    double norm = 0;
    for (int n = 0; n < size; ++n) norm += (n + 1) * (n + 1);
    return (i == j ? 1.0 : 0.0) - 2.0 * (i + 1) * (j + 1) / norm;
  };
  std::vector<double> matrix;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j) {
      double sum = 0;
      for (int n = 0; n < static_cast<int>(sigma.size()); ++n)
        sum +=
            reflection(rows, i, n) * sigma[static_cast<std::size_t>(n)] * reflection(columns, n, j);
      matrix.push_back(sum);
    }
  return matrix;
}

}  // namespace

TEST_CASE("spectrum: recovers the singular values a matrix was made of", "[diagnostics]") {
  const std::vector<double> sigma = {7, 5, 2, 1e-3, 1e-9, 0};
  for (const auto& [rows, columns] : {std::pair{6, 6}, std::pair{9, 6}, std::pair{6, 31}}) {
    std::vector<double> matrix = with_singular_values(sigma, rows, columns);
    const Spectrum spectrum(make_view(matrix.data(), rows, columns));
    REQUIRE(spectrum.singular_values().size() == 6);
    // making the matrix and taking it apart each round in proportion to its norm, 7
    const double tolerance = 7 * (rows + columns) * std::numeric_limits<double>::epsilon();
    for (std::size_t n = 0; n < 6; ++n)
      CHECK(std::abs(spectrum.singular_values()[n] - sigma[n]) <= tolerance);
    CHECK(spectrum.rank() == 4);  // 1e-9 / 7 is rounding in float
    CHECK(spectrum.rank(1e-12) == 5);
    CHECK(spectrum.rank(0.2) == 3);
    CHECK(spectrum.rank(0.5) == 2);
    CHECK(spectrum.default_tolerance() == (rows > columns ? rows : columns) * 0x1p-23);
  }
}

TEST_CASE("spectrum: a singular value at the tolerance does not count", "[diagnostics]") {
  const double matrix[4] = {4, 0, 0, 1};
  const Spectrum spectrum(make_view(matrix, 2, 2));
  CHECK(spectrum.rank(0.25) == 1);
  CHECK(spectrum.rank(0.2499) == 2);
  for (const double tolerance : {-0.25, std::numeric_limits<double>::quiet_NaN()})
    CHECK_THROWS_AS(spectrum.rank(tolerance), mhla::ShapeError);
}

TEST_CASE("effective rank: k for k equal singular values, less for unequal ones", "[diagnostics]") {
  std::vector<double> matrix = with_singular_values({3, 3, 3, 3, 3}, 11, 7);
  const Spectrum equal(make_view(matrix.data(), 11, 7));
  CHECK(equal.rank() == 5);
  CHECK(std::abs(equal.effective_rank() - 5) <= 1e-12);

  const double unequal[4] = {3, 0, 0, 1};  // p = 3/4, 1/4
  const double expected = std::pow(4. / 3, 0.75) * std::pow(4., 0.25);
  CHECK(std::abs(Spectrum(make_view(unequal, 2, 2)).effective_rank() - expected) <= 1e-14);
}
