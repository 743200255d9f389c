// SPDX-License-Identifier: MIT
// Random numbers that are the same everywhere: SplitMix64.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "tests/fuzz/oracle.hpp"

namespace fuzz {

class Draw {
 public:
  explicit Draw(std::uint64_t seed, Size limit = 1000) : state_(seed), limit_(limit) {}

  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// In [0, count).
  Size below(Size count) { return static_cast<Size>(bits() % static_cast<std::uint64_t>(count)); }
  /// In [low, high]: how many, or how long. Where a failing case is made smaller, no more than the
  /// limit.
  Size between(Size low, Size high) {
    high = std::max(low, std::min(high, limit_));
    return low + below(high - low + 1);
  }
  bool once_in(Size times) { return below(times) == 0; }
  /// In [low, high).
  double real(double low, double high) {
    return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53;
  }
  template <class Container>
  auto& any_of(Container& container) {
    return container[static_cast<std::size_t>(below(std::ssize(container)))];
  }
  template <class T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[below(static_cast<Size>(choices.size()))];
  }

 private:
  std::uint64_t state_;
  Size limit_;
};

}  // namespace fuzz
