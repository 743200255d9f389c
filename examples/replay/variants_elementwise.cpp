// SPDX-License-Identifier: MIT
// The variants with another element-wise feature map.
#include "variant_run.hpp"

namespace replay {

REPLAY_INSTANTIATE(mhla::EluPlusOne, mhla::EluPlusOne);
REPLAY_INSTANTIATE(mhla::Exp, mhla::Exp);
REPLAY_INSTANTIATE(mhla::Identity, mhla::Identity);

}  // namespace replay
