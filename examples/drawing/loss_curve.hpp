// SPDX-License-Identifier: MIT
// A training's losses as a line that can be read: of every step they jump from batch to batch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "line_chart.hpp"

namespace drawing {

/// Means over windows of neighbouring steps, some 45 of them, each drawn at its last step. The
/// steps after the last whole window are left out.
inline Series loss_curve(std::string name, const std::vector<double>& losses) {
  const std::size_t window = std::max<std::size_t>(1, losses.size() / 45);
  Series curve{std::move(name)};
  for (std::size_t end = window; end <= losses.size(); end += window) {
    double sum = 0;
    for (std::size_t i = end - window; i < end; ++i) sum += losses[i];
    curve.x.push_back(static_cast<double>(end));
    curve.y.push_back(sum / static_cast<double>(window));
  }
  return curve;
}

}  // namespace drawing
