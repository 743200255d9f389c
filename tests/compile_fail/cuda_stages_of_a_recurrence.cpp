// SPDX-License-Identifier: MIT
// On a GPU no stage hands states on.
// EXPECT: mhla: CudaStages have rows of the mixing matrix: use DenseMixing
#include <mhla/cuda/stages.hpp>

template <class Mixing>
using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
                                 mhla::NoRotation, Mixing>;

void use() {
  const mhla::CudaStages<Sequence<mhla::DenseMixing>, float> right({}, mhla::Shape{});
#ifndef MHLA_CONTROL
  const mhla::CudaStages<Sequence<mhla::RecurrentMixing>, float> wrong({}, mhla::Shape{});
#endif
}
