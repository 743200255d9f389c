// SPDX-License-Identifier: MIT
// A recurrence runs over earlier blocks.
// EXPECT: mhla: a causal mixing, as RecurrentMixing, needs Causal or BlockCausal
#include <mhla/policy/variant.hpp>

template <class C>
using Recurrent = mhla::Attention<mhla::Relu, mhla::Blocks1D, C, mhla::MixedKeySum,
                                  mhla::NoRotation, mhla::RecurrentMixing>;

void use() {
  const Recurrent<mhla::Causal> right;
  (void)right;
#ifndef MHLA_CONTROL
  const Recurrent<mhla::Bidirectional> wrong;
  (void)wrong;
#endif
}
