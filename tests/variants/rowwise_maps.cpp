// SPDX-License-Identifier: MIT
#include "tests/variants/entry_of.hpp"

namespace variants {
void add_rowwise_maps(std::vector<Entry>& entries) {
  add_maps<int(Map::softmax), num_maps>(entries);
}
}  // namespace variants
