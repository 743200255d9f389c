// SPDX-License-Identifier: MIT
#include "tests/variants/entry_of.hpp"

namespace variants {
void add_elementwise_maps(std::vector<Entry>& entries) {
  add_maps<int(Map::identity), int(Map::softmax)>(entries);
}
}  // namespace variants
