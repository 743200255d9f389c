// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstdio>
#include <layers.hpp>

int main() {
  const layers::Attention attention{.blocks = {.grid = {4, 4}, .block = {2, 2}}};
  float column = 0;
  const std::vector<float> mix = layers::initial_mix(attention, 4);
  for (int row = 0; row < 4; ++row) column += mix[static_cast<std::size_t>(4 * row)];
  std::printf("The first column sums to %g\n", static_cast<double>(column));
  return std::abs(column - 1) < 1e-6f ? 0 : 1;
}
