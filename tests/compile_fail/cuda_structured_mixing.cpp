// SPDX-License-Identifier: MIT
// On a GPU mixing is dense.
// EXPECT: mhla: structured mixing on CUDA is not implemented: use DenseMixing
#include <mhla/cuda.hpp>

template <class M>
using Image = mhla::Attention<mhla::Relu, mhla::Blocks2D, mhla::Bidirectional, mhla::MixedKeySum,
                              mhla::NoRotation, M>;

void use(const mhla::CudaDevice& device, const mhla::Shape& shape) {
  (void)mhla::plan<float>(Image<mhla::DenseMixing>{}, shape, device);
#ifndef MHLA_CONTROL
  (void)mhla::plan<float>(Image<mhla::SeparableMixing>{}, shape, device);
#endif
}
