// SPDX-License-Identifier: MIT
// The variants of mhla::EluPlusOne.
#include "tests/laws/harness/variants/of_map.hpp"

void laws::add_elu_plus_one(Variants& variants) { add_all_of<mhla::EluPlusOne>(variants); }
