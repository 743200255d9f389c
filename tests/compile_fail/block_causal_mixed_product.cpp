// SPDX-License-Identifier: MIT
// MixedProduct looks at later queries.
// EXPECT: mhla: MixedProduct divides by products of later blocks' queries and so cannot be causal:
// use MixedKeySum or Unnormalized with Causal and BlockCausal
#include <mhla/policy/variant.hpp>

void use() {
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::BlockCausal, mhla::Unnormalized> right;
  (void)right;
#ifndef MHLA_CONTROL
  const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::BlockCausal, mhla::MixedProduct> wrong;
  (void)wrong;
#endif
}
