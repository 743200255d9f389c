// SPDX-License-Identifier: MIT
// A Kronecker product has no entries that a causal query must not see.
// EXPECT: other, as SeparableMixing, Bidirectional
#include <mhla/policy/variant.hpp>

template <class C>
using Separable = mhla::Attention<mhla::Relu, mhla::Blocks1D, C, mhla::MixedKeySum,
                                  mhla::NoRotation, mhla::SeparableMixing>;

void use() {
  const Separable<mhla::Bidirectional> right;
  (void)right;
#ifndef MHLA_CONTROL
  const Separable<mhla::Causal> wrong;
  (void)wrong;
#endif
}
