// SPDX-License-Identifier: MIT
// One attention in two translation units that are compiled with different flags. Whatever is inline
// in the library is in both, and the linker keeps one of them.
#pragma once

#include <mhla/cpu/gemm.hpp>
#include <mhla/policy/variant.hpp>

#include "tests/cpu/call.hpp"

namespace mixed_flags {

using mhla::Index;

// Exponentials and rotations, which the compiler may contract or not, beside the products.
using Attention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Bidirectional,
                                  mhla::MixedKeySum, mhla::HalfSplitRotary>;

template <class T>
struct Results {
  call::HostTensor<T, 4> y;
  call::Gradients<T> gradients;
};

/// What the compiler was told of the machine.
struct Flags {
  bool optimizes, has_avx2;
};

#if defined(__OPTIMIZE__)
#define MHLA_TEST_OPTIMIZES true
#else
#define MHLA_TEST_OPTIMIZES false
#endif
#if defined(__AVX2__) && defined(__FMA__)
#define MHLA_TEST_AVX2 true
#else
#define MHLA_TEST_AVX2 false
#endif

/// The feature map of n elements, as every call computes it.
inline void map(Index n, const float* x, float* y) {
  mhla::cpu::map_rows<mhla::EluPlusOne, float>(mhla::EluPlusOne{}, 1.0f, {x, n}, {y, 1, n, n});
}

/// -O0, for the oldest machine of its kind.
namespace plain {
Flags flags();
void map_elements(Index n, const float* x, float* y);
Results<float> run(const Attention& attention, const call::Operands<float>& x);
Results<double> run(const Attention& attention, const call::Operands<double>& x);
}  // namespace plain

/// -O3 and, on x86-64, for a machine with AVX2 and FMA.
namespace vectorized {
Flags flags();
void map_elements(Index n, const float* x, float* y);
Results<float> run(const Attention& attention, const call::Operands<float>& x);
Results<double> run(const Attention& attention, const call::Operands<double>& x);
}  // namespace vectorized

}  // namespace mixed_flags
