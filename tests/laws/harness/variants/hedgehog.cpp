// SPDX-License-Identifier: MIT
// The variants of mhla::Hedgehog.
#include "tests/laws/harness/variants/of_map.hpp"

void laws::add_hedgehog(Variants& variants) { add_all_of<mhla::Hedgehog>(variants); }
