// SPDX-License-Identifier: MIT
// What a query sees is one of three.
// EXPECT: mhla: the 3rd argument of Attention must be Bidirectional, Causal or BlockCausal
#include <mhla/policy/variant.hpp>

void use() {
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::BlockCausal> right;
  (void)right;
#ifndef MHLA_CONTROL
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::MixedKeySum> wrong;
  (void)wrong;
#endif
}
