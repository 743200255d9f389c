// SPDX-License-Identifier: MIT
// The variants of mhla::Softmax.
#include "tests/laws/harness/variants/of_map.hpp"

void laws::add_softmax(Variants& variants) { add_all_of<mhla::Softmax>(variants); }
