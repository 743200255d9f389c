// SPDX-License-Identifier: MIT
#include "tests/fuzz/variants.hpp"

void fuzz::add_bfloat16(std::vector<Entry>& entries) {
  add_entries<mhla::BFloat16, Scalar::bfloat16>(entries);
}
