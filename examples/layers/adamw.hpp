// SPDX-License-Identifier: MIT
// The update of the parameters: Adam (arXiv 1412.6980) with weights that decay apart from the
// gradient (arXiv 1711.05101), a schedule of its rate, and clipping.
#pragma once

#include <algorithm>
#include <cmath>
#include <mhla/core/index.hpp>

#include "parameters.hpp"

namespace layers {

template <class T>
class AdamW {
 public:
  static constexpr double beta1 = 0.9;
  static constexpr double beta2 = 0.98;
  static constexpr double epsilon = 1e-8;

  /// `decay` is what an update with rate 1 takes from every value.
  explicit AdamW(Index size, double decay = 0)
      : mean_(Values<T>::Zero(size)), square_(Values<T>::Zero(size)), decay_(decay) {}

  void update(Values<T>& values, const Values<T>& gradient, double rate) {
    ++steps_;
    mean_ = T(beta1) * mean_ + T(1 - beta1) * gradient;
    square_ = T(beta2) * square_ + T(1 - beta2) * gradient.square();
    const T mean_share = static_cast<T>(1 - std::pow(beta1, steps_));  // that is not yet 0
    const T square_share = static_cast<T>(1 - std::pow(beta2, steps_));
    if (decay_ != 0) values *= static_cast<T>(1 - rate * decay_);
    values -= static_cast<T>(rate) * (mean_ / mean_share) /
              ((square_ / square_share).sqrt() + T(epsilon));
  }

 private:
  Values<T> mean_;
  Values<T> square_;
  double decay_;
  int steps_ = 0;
};

/// Up to `largest` within the first twentieth of the steps, then down to a fiftieth of it along a
/// cosine.
inline double scheduled_rate(double largest, Index step, Index steps) {
  const double done = (static_cast<double>(step) + 1) / static_cast<double>(steps);
  constexpr double rise = 0.05;
  if (done < rise) return largest * done / rise;
  const double fall = (1 + std::cos((done - rise) / (1 - rise) * std::acos(-1.0))) / 2;
  return largest * std::max(fall, 0.02);
}

/// Shortens a gradient that is longer than `longest`. Returns the length it had.
template <class T>
double clip(Values<T>& gradient, double longest) {
  const double length = static_cast<double>(gradient.matrix().norm());
  if (length > longest) gradient *= static_cast<T>(longest / length);
  return length;
}

}  // namespace layers
