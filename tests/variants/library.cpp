// SPDX-License-Identifier: MIT
#include "tests/variants/library.hpp"

#include <algorithm>

namespace variants {

// What each of the other sources has.
void add_elementwise_maps(std::vector<Entry>& entries);
void add_rowwise_maps(std::vector<Entry>& entries);

const std::vector<Entry>& library() {
  static const std::vector<Entry> entries = [] {
    std::vector<Entry> all;
    add_elementwise_maps(all);
    add_rowwise_maps(all);
    return all;
  }();
  return entries;
}

const Entry* find(const Policies& policies, Batch batch, Scalar scalar) {
  const auto entry = std::find_if(library().begin(), library().end(), [&](const Entry& e) {
    return e.policies == policies && e.batch == batch && e.scalar == scalar;
  });
  return entry == library().end() ? nullptr : &*entry;
}

}  // namespace variants
