// SPDX-License-Identifier: MIT
// The stages of every backend refuse the same variants.
// EXPECT: mhla: the blocks of Stages are those of every batch item: give them the attention
// that was packed
#include <cstdint>
#include <mhla/cuda/stages.hpp>
#include <mhla/policy/batch_layout.hpp>

using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D>;

void use(const mhla::Packed<Sequence, std::int32_t>& packed) {
  const mhla::CudaStages<Sequence, float> right(packed, {});
#ifndef MHLA_CONTROL
  const mhla::CudaStages<mhla::Packed<Sequence, std::int32_t>, float> wrong(packed, {});
#endif
}
