// SPDX-License-Identifier: MIT
// The products of MixedProduct are mixed by the dense matrix.
// EXPECT: mhla: MixedProduct mixes products by the matrix itself: use DenseMixing with it
#include <mhla/policy/variant.hpp>

template <class N>
using Separable = mhla::Attention<mhla::Relu, mhla::Blocks2D, mhla::Bidirectional, N,
                                  mhla::NoRotation, mhla::SeparableMixing>;

void use() {
  const Separable<mhla::MixedKeySum> right;
  (void)right;
#ifndef MHLA_CONTROL
  const Separable<mhla::MixedProduct> wrong;
  (void)wrong;
#endif
}
