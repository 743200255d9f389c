// SPDX-License-Identifier: MIT
// The variants whose features are a softmax.
#include "variant_run.hpp"

namespace replay {

REPLAY_INSTANTIATE(mhla::Softmax, mhla::Softmax);
REPLAY_INSTANTIATE(mhla::Hedgehog, mhla::Hedgehog);

}  // namespace replay
