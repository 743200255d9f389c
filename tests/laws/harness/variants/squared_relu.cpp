// SPDX-License-Identifier: MIT
// The variants of mhla::SquaredRelu.
#include "tests/laws/harness/variants/of_map.hpp"

void laws::add_squared_relu(Variants& variants) { add_all_of<mhla::SquaredRelu>(variants); }
