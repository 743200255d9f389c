// SPDX-License-Identifier: MIT
// The variants of mhla::Favor<double>.
#include "tests/laws/harness/variants/of_map.hpp"

void laws::add_favor(Variants& variants) { add_all_of<mhla::Favor<double>>(variants); }
