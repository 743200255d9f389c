// SPDX-License-Identifier: MIT
// The variants with a rectifier as feature map.
#include "variant_run.hpp"

namespace replay {

REPLAY_INSTANTIATE(mhla::Relu, mhla::Relu);
REPLAY_INSTANTIATE(mhla::SquaredRelu, mhla::SquaredRelu);

}  // namespace replay
