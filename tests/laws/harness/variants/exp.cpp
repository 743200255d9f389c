// SPDX-License-Identifier: MIT
// The variants of mhla::Exp.
#include "tests/laws/harness/variants/of_map.hpp"

void laws::add_exp(Variants& variants) { add_all_of<mhla::Exp>(variants); }
