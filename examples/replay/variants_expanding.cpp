// SPDX-License-Identifier: MIT
// The variants with more, or other, features than key_dim.
#include "variant_run.hpp"

namespace replay {

REPLAY_INSTANTIATE(mhla::Dpfp, mhla::Dpfp);
REPLAY_INSTANTIATE(mhla::Favor<float>, mhla::Favor<double>);

}  // namespace replay
