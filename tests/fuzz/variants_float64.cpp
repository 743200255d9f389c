// SPDX-License-Identifier: MIT
#include "tests/fuzz/variants.hpp"

void fuzz::add_float64(std::vector<Entry>& entries) {
  add_entries<double, Scalar::float64>(entries);
}
