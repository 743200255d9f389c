// SPDX-License-Identifier: MIT
#include "tests/fuzz/library.hpp"

const std::vector<fuzz::Entry>& fuzz::library() {
  static const std::vector<Entry> entries = [] {
    std::vector<Entry> all;
    add_float64(all);
    add_float32(all);
    add_bfloat16(all);
    add_float16(all);
    return all;
  }();
  return entries;
}
