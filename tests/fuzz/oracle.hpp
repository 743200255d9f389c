// SPDX-License-Identifier: MIT
// What attention is, in plain loops over pairs of tokens, and how far a correct result may be from
// it. Written from the formulas alone (include/mhla/README.md, "The mathematics"; arXiv
// 2601.07832, eq. 3 to 5): no header of the library is included, so no mistake can be in both.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "tests/variants/description.hpp"

namespace fuzz {

using namespace variants;

/// Length of phi's output.
Size feature_dim(Map map, const Numbers& numbers, Size key_dim);

/// Elements in row-major order.
template <class T>
struct Dense {
  Extents extent{};
  std::vector<T> elements;

  Dense() = default;
  explicit Dense(const Extents& e)
      : extent(e), elements(static_cast<std::size_t>(e[0] * e[1] * e[2] * e[3])) {}
  T& operator()(Size a, Size b, Size c, Size d) { return elements[place(a, b, c, d)]; }
  const T& operator()(Size a, Size b, Size c, Size d) const { return elements[place(a, b, c, d)]; }

 private:
  std::size_t place(Size a, Size b, Size c, Size d) const {
    return static_cast<std::size_t>(((a * extent[1] + b) * extent[2] + c) * extent[3] + d);
  }
};

/// Tokens [first, first + grid.tokens()) of a batch item that attend to each other.
struct Sequence {
  Size item;
  Size first;
  Grid queries;
  Grid keys;
};

/// One call. mix is [1, 1 | heads, query blocks, key blocks], of which sequences use the corner, or
/// the parameters of a structured mixing, mix_extents at least, of which a recurrence uses the
/// leading rows, or a single one for all blocks. A mask, where there is one, has an element for
/// every token of a batch item, false where it takes no part.
struct Problem {
  Policies policies;
  Numbers numbers;
  std::vector<Sequence> sequences;
  Dense<double> q, k, v, mix, dy;
  std::vector<bool> query_mask, key_mask;
};

/// Rows and columns of mix.
std::array<Size, 2> mix_extents(const Policies& policies, const Numbers& numbers,
                                const Grid& queries, const Grid& keys);

/// The arithmetic that the results are judged by.
struct Precision {
  double roundoff;  ///< u of what sums are formed in
  double smallest;  ///< its smallest normal number
  double largest;   ///< and its largest
  /// By how much a term may change where its factors are rounded to fewer digits, relative to it.
  double of_factors = 0;
};

/// A result, and by how much rounding may change it: see `Number` in oracle.cpp. Where a
/// denominator is all rounding, or so small that quotients leave the range, the bound is infinite
/// or NaN.
struct Estimate {
  long double value = 0;
  double bound = 0;
  /// Under Precision::fast: the sum of the squares of its terms, of gradients those of v - y. Its
  /// root is the size of a sum whose terms have random signs.
  double squares = 0;
  /// As bound, but the likely error of sums alone.
  double of_sums = 0;
};
struct Results {
  Dense<Estimate> y, dq, dk, dv, dmix;
};

Results attend(const Problem& problem, const Precision& precision, bool gradients);

}  // namespace fuzz
