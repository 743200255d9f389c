// SPDX-License-Identifier: MIT
// Where labels go that would cover each other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace drawing {

/// Positions in the order of `wanted`, `gap` or more apart and, where there is room, within [low,
/// high]: as near to the wanted ones as can be (least squares, by pooling neighbours).
inline std::vector<double> kept_apart(const std::vector<double>& wanted, double gap, double low,
                                      double high) {
  struct Pool {
    double sum;
    std::size_t count;
    double mean() const { return sum / static_cast<double>(count); }
  };
  std::vector<std::size_t> order(wanted.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return wanted[a] < wanted[b]; });
  std::vector<Pool> pools;  // of positions less their rank's share of gaps, which may not fall
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    pools.push_back({wanted[order[rank]] - gap * static_cast<double>(rank), 1});
    while (pools.size() > 1 && pools[pools.size() - 2].mean() > pools.back().mean()) {
      const Pool last = pools.back();
      pools.pop_back();
      pools.back() = {pools.back().sum + last.sum, pools.back().count + last.count};
    }
  }
  const double most = high - gap * static_cast<double>(wanted.size()) + gap;
  std::vector<double> positions(wanted.size());
  std::size_t rank = 0;
  for (const Pool& pool : pools)
    for (std::size_t i = 0; i < pool.count; ++i, ++rank)
      positions[order[rank]] =
          std::max(low, std::min(pool.mean(), most)) + gap * static_cast<double>(rank);
  return positions;
}

}  // namespace drawing
