// SPDX-License-Identifier: MIT
// The variants of mhla::Relu.
#include "tests/laws/harness/variants/of_map.hpp"

void laws::add_relu(Variants& variants) { add_all_of<mhla::Relu>(variants); }
