// SPDX-License-Identifier: MIT
// A mixing says which products it is made of.
// EXPECT: mhla: the 6th argument of Attention must be DenseMixing, RecurrentMixing,
#include <mhla/policy/variant.hpp>

struct Fenwick {};

template <class M>
using Mixed = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, mhla::MixedKeySum,
                              mhla::NoRotation, M>;

void use() {
  const Mixed<mhla::DenseMixing> right;
  (void)right;
#ifndef MHLA_CONTROL
  const Mixed<Fenwick> wrong;
  (void)wrong;
#endif
}
