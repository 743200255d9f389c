// SPDX-License-Identifier: MIT
// The variants of mhla::Identity.
#include "tests/laws/harness/variants/of_map.hpp"

void laws::add_identity(Variants& variants) { add_all_of<mhla::Identity>(variants); }
