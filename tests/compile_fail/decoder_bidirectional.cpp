// SPDX-License-Identifier: MIT
// What sees later tokens cannot go token by token.
// EXPECT: mhla: a Decoder generates token by token: its attention must be Causal
#include <mhla/attention.hpp>
#include <mhla/decoding.hpp>

template <class Causality>
using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D, Causality>;

void use(const mhla::TensorView<const float, 3>& mix) {
  const mhla::Decoder<Attention<mhla::Causal>, float> right({}, mix, {});
#ifndef MHLA_CONTROL
  const mhla::Decoder<Attention<mhla::BlockCausal>, float> wrong({}, mix, {});
#endif
}
