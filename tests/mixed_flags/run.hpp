// SPDX-License-Identifier: MIT
// One attention in two translation units that are compiled with different flags. Whatever is inline
// in the library is in both, and the linker keeps one of them.
#pragma once

#include <mhla/policy/variant.hpp>

#include "tests/cpu/call.hpp"

namespace mixed_flags {

// Exponentials and rotations, which the compiler may contract or not, beside the products.
using Attention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Bidirectional,
                                  mhla::MixedKeySum, mhla::HalfSplitRotary>;

template <class T>
struct Results {
  call::HostTensor<T, 4> y;
  call::Gradients<T> gradients;
};
template <class T>
using Run = Results<T> (*)(const Attention& attention, const call::Operands<T>& x);

/// A translation unit: what its compiler was told, and what it compiled.
struct Part {
  bool optimizes, has_avx2;
  void (*map)(mhla::Index n, const float* x, float* y);  ///< the feature map
  Run<float> in_float;
  Run<double> in_double;
};

extern const Part plain;       ///< -O0, for the oldest machine of its kind
extern const Part vectorized;  ///< -O3 and, on x86-64, for a machine with AVX2 and FMA

}  // namespace mixed_flags
