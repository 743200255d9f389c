// SPDX-License-Identifier: MIT
// Times for charts.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

#include "../drawing/line_chart.hpp"

namespace figures {

/// A point of a chart, and what is timed for it.
struct Measurement {
  drawing::Series* series;
  double x;
  std::function<void()> run;
  std::vector<double> times{};  ///< milliseconds
};

/// Times all in turns, so that a slow second of the machine harms no point more than others, and
/// adds the medians to the series.
inline void measure(std::vector<Measurement>& measurements, int rounds,
                    double milliseconds_a_round) {
  using Clock = std::chrono::steady_clock;
  for (int round = 0; round < rounds; ++round)
    for (Measurement& measurement : measurements)
      for (double total = 0; total < milliseconds_a_round;) {
        const Clock::time_point start = Clock::now();
        measurement.run();
        measurement.times.push_back(
            std::chrono::duration<double, std::milli>(Clock::now() - start).count());
        total += measurement.times.back();
      }
  for (Measurement& measurement : measurements) {
    std::vector<double>& times = measurement.times;
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    measurement.series->x.push_back(measurement.x);
    measurement.series->y.push_back(*middle);
  }
}

}  // namespace figures
