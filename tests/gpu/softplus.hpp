// SPDX-License-Identifier: MIT
// A feature map that is not the library's, on both sides of the tests.
#pragma once

#include <cmath>
#include <mhla/core/config.hpp>

namespace gpu {

// phi(x) = log(1 + exp(x))
struct Softplus {
  template <class T>
  MHLA_HOST_DEVICE T value(T x) const {
    using std::exp, std::log1p;
    return x > T(0) ? x + log1p(exp(-x)) : log1p(exp(x));
  }
  template <class T>
  MHLA_HOST_DEVICE T derivative(T x) const {
    using std::exp;
    return T(1) / (T(1) + exp(-x));
  }
};

}  // namespace gpu
