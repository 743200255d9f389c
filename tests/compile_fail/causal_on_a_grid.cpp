// SPDX-License-Identifier: MIT
// An image has no order for Causal to follow.
// EXPECT: mhla: causal attention needs a sequence: use Blocks1D with Causal or BlockCausal
#include <mhla/policy/variant.hpp>

void use() {
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal> right;
  (void)right;
#ifndef MHLA_CONTROL
  const mhla::Attention<mhla::Relu, mhla::Blocks2D, mhla::Causal> wrong;
  (void)wrong;
#endif
}
