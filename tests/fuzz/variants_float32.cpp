// SPDX-License-Identifier: MIT
#include "tests/fuzz/variants.hpp"

void fuzz::add_float32(std::vector<Entry>& entries) {
  add_entries<float, Scalar::float32>(entries);
}
