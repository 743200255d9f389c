// SPDX-License-Identifier: MIT
// The variants of mhla::Dpfp.
#include "tests/laws/harness/variants/of_map.hpp"

void laws::add_dpfp(Variants& variants) { add_all_of<mhla::Dpfp>(variants); }
