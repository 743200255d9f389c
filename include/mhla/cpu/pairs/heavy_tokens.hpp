// SPDX-License-Identifier: MIT
// Tokens that outweigh all others: the rounding of such a token's score, up to 2^-8 of it, does not
// average out with that of others, and is taken back (pairs/forward.hpp, pairs/decode_step.hpp).
#pragma once

#include <mhla/cpu/gemm.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::pairs {

/// |v|^2 of tokens without NaN and infinities of v, which must not show in other columns.
/// value(token, c) is an element of v.
template <class Value>
void leave_out_non_finite(Span<float> squares, Index cols, const Value& value) {
  for (Index t = 0; t < squares.size; ++t) {
    if ((std::isfinite)(squares[t])) continue;
    squares[t] = 0;
    for (Index c = 0; c < cols; ++c)
      if ((std::isfinite)(value(t, c))) squares[t] += value(t, c) * value(t, c);
  }
}

/// Calls visit(r, token) for every query r that sees one token with most of |v|^2, square_of(token)
/// of each, among the first `seen` + r tokens.
template <class SquareOf, class Visit>
void for_each_heavy_token(Index queries, Index seen, const SquareOf& square_of,
                          const Visit& visit) {
  float sum = 0;
  float most = 0;
  Index heavy = 0;
  for (Index t = 0; t < seen + queries - 1; ++t) {
    const float square = square_of(t);
    sum += square;
    if (square > most) {
      most = square;
      heavy = t;
    }
    if (t + 1 >= seen && 2 * most > sum) visit(t + 1 - seen, heavy);
  }
}

/// Adds what the score of a token has lost times its v, value(c), to a query's numerators, except
/// where v is not finite: neither are they then.
template <class Value>
void take_back(float lost, const Span<float>& numerators, const Value& value) {
  if (!(std::isfinite)(lost)) return;
  for (Index c = 0; c < numerators.size; ++c)
    if ((std::isfinite)(value(c))) numerators[c] += lost * value(c);
}

}  // namespace cpu::pairs

MHLA_NAMESPACE_END
