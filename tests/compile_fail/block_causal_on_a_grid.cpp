// SPDX-License-Identifier: MIT
// Nor has a video for BlockCausal.
// EXPECT: mhla: causal attention needs a sequence: use Blocks1D with Causal or BlockCausal
#include <mhla/policy/variant.hpp>

void use() {
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::BlockCausal> right;
  (void)right;
#ifndef MHLA_CONTROL
  const mhla::Attention<mhla::Relu, mhla::Blocks3D, mhla::BlockCausal> wrong;
  (void)wrong;
#endif
}
