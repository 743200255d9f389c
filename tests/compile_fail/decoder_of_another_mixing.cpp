// SPDX-License-Identifier: MIT
// Of a mixing of one's own a decoder does not know the state.
// EXPECT: mhla: a Decoder keeps all summaries or the states of a recurrence
#include <mhla/decoding.hpp>

struct Own : mhla::RecurrentMixing {};

template <class M>
using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
                                 mhla::NoRotation, M>;

void use(mhla::TensorView<const float, 3> mix) {
  const mhla::Decoder<Sequence<mhla::RecurrentMixing>, float> right({}, mix, {});
#ifndef MHLA_CONTROL
  const mhla::Decoder<Sequence<Own>, float> wrong({}, mix, {});
#endif
}
