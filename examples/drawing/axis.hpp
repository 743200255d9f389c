// SPDX-License-Identifier: MIT
// Axes: where a value lies between the ends of an axis, and which values get a tick.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "svg.hpp"

namespace drawing {

enum class Scale { linear, logarithmic };

struct Axis {
  std::string label{};
  Scale scale = Scale::linear;
  bool shows_zero = false;  ///< a linear axis contains 0, wherever the values are
};

/// The ends of an axis, low < high; of a logarithmic one both above 0.
struct Range {
  double low = 0;
  double high = 1;
};

/// NaN, infinity, numbers near it and, on a logarithmic axis, what is not above 0 have no place.
inline bool has_place(double value, Scale scale) {
  return std::abs(value) <= 1e300 && (scale == Scale::linear || value >= 1e-300);
}

/// From 0 at the low end to 1 at the high end.
inline double fraction(double value, const Range& range, Scale scale) {
  if (scale == Scale::linear) return (value - range.low) / (range.high - range.low);
  const double low = std::log(range.low);
  return (std::log(value) - low) / (std::log(range.high) - low);
}

struct Tick {
  double value;
  std::string label;
};

/// With a comma before each three digits left of the decimal point.
inline std::string grouped(std::string digits) {
  const std::size_t begin = digits.find_first_of("0123456789");
  for (std::size_t at = std::min(digits.find('.'), digits.size()); at > begin + 3;)
    digits.insert(at -= 3, ",");
  return digits;
}

/// 1, 2 or 5 times a power of ten: the distance of at most `most` + 1 ticks over `span`.
inline double round_step(double span, int most) {
  const double power = std::pow(10, std::floor(std::log10(span / most)));
  for (const double step : {1.0, 2.0, 5.0})
    if (span <= most * step * power * (1 + 1e-9)) return step * power;
  return 10 * power;
}

/// With so many decimals, or as 1.5e-20 where that would be long.
inline std::string tick_label(double value, int decimals) {
  if (decimals <= 6 && std::abs(value) < 1e7) return grouped(fixed_point(value, decimals));
  return six_digits(value);
}

/// The multiples of `round_step` in the range, their labels with the same number of decimals.
inline std::vector<Tick> linear_ticks(const Range& range, int most) {
  const double step = round_step(range.high - range.low, most);
  const int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9)));
  const double slack = step * 1e-6;
  std::vector<Tick> ticks;
  for (double i = std::ceil((range.low - slack) / step); i * step <= range.high + slack; ++i)
    ticks.push_back({i * step, tick_label(i * step + 0.0, decimals)});  // + 0.0: no -0
  return ticks;
}

/// Powers of ten, every second or third where they are too many; where there are fewer than two of
/// them, also twice and five times these.
inline std::vector<Tick> logarithmic_ticks(const Range& range, int most) {
  std::vector<Tick> powers, all;
  const int first = static_cast<int>(std::ceil(std::log10(range.low) - 1e-9));
  const int last = static_cast<int>(std::floor(std::log10(range.high) + 1e-9));
  const int step = std::max(1, (last - first + most - 1) / most);
  for (int power = first - 1; power <= last; ++power)
    for (const int digit : {1, 2, 5}) {
      const double value = digit * std::pow(10, power);
      if (value < range.low * (1 - 1e-9) || value > range.high * (1 + 1e-9)) continue;
      all.push_back({value, tick_label(value, std::max(0, -power))});
      if (digit == 1 && power % step == 0) powers.push_back(all.back());
    }
  return powers.size() < 2 ? all : powers;
}

inline std::vector<Tick> ticks(const Range& range, Scale scale, int most) {
  return scale == Scale::linear ? linear_ticks(range, most) : logarithmic_ticks(range, most);
}

/// A range with room for `low` to `high` whose ends, on a linear axis, are ticks.
inline Range widened(Range range, const Axis& axis, int most) {
  if (axis.scale == Scale::logarithmic) {
    const double room = std::clamp(std::pow(range.high / range.low, 0.05), 1.05, 2.0);
    return {range.low / room, range.high * room};
  }
  const double step = round_step(range.high - range.low, most);
  return {step * std::floor(range.low / step + 1e-9), step * std::ceil(range.high / step - 1e-9)};
}

}  // namespace drawing
