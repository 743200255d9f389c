// SPDX-License-Identifier: MIT
// A separable mixing has no rows of which a stage could be given some.
// EXPECT: mhla: Stages have rows of the mixing matrix, or of RecurrentMixing's parameters: for
// another structured mixing use DenseMixing
#include <mhla/attention.hpp>
#include <mhla/stages.hpp>

template <class Mixing>
using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional,
                                 mhla::Unnormalized, mhla::NoRotation, Mixing>;

void use() {
  const mhla::Stages<Sequence<mhla::DenseMixing>, float> right({}, mhla::Shape{});
#ifndef MHLA_CONTROL
  const mhla::Stages<Sequence<mhla::SeparableMixing>, float> wrong({}, mhla::Shape{});
#endif
}
