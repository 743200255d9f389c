// SPDX-License-Identifier: MIT
// Division of 32-bit numbers by one that is known before a kernel runs: a product and a shift,
// where the chip would take some twenty instructions.
#pragma once

#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Divides numbers below 2^31 by one of [1, 2^31), or by a larger one, which leaves 0: n / d =
/// floor(n ceil(2^(31 + s) / d) / 2^(31 + s)) if 2^s >= d, since the factor is too large by less
/// than d / 2^s <= 1 in 2^31.
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(Index divisor) : divisor_(static_cast<std::uint32_t>(divisor)) {
    while (shift_ < 31 && Index{1} << shift_ < divisor) ++shift_;
    factor_ = static_cast<std::uint32_t>(
        ceil_div(Index{1} << (31 + shift_), divisor < 1 ? Index{1} : divisor));
  }

  MHLA_HOST_DEVICE std::uint32_t divisor() const { return divisor_; }
  MHLA_HOST_DEVICE std::uint32_t quotient(std::uint32_t n) const {
    return static_cast<std::uint32_t>(std::uint64_t{2 * n} * factor_ >> 32) >> shift_;
  }
  /// Replaces `n` by its quotient and returns its remainder.
  MHLA_HOST_DEVICE std::uint32_t divide(std::uint32_t& n) const {
    const std::uint32_t before = n;
    n = quotient(n);
    return before - n * divisor_;
  }

 private:
  std::uint32_t divisor_ = 1;
  std::uint32_t factor_ = std::uint32_t{1} << 31;
  std::uint32_t shift_ = 0;
};

}  // namespace cuda

MHLA_NAMESPACE_END
