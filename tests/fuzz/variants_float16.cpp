// SPDX-License-Identifier: MIT
#include "tests/fuzz/variants.hpp"

void fuzz::add_float16(std::vector<Entry>& entries) {
  add_entries<mhla::Half, Scalar::float16>(entries);
}
