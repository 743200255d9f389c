// SPDX-License-Identifier: MIT
// The units of work that the tests of packed and padded batches run, compiled once for all of them,
// in units.cpp.
#pragma once

#include <mhla/cpu/pipeline.hpp>

// `declaration` is extern in the header, nothing where the units are compiled.
#define MHLA_TEST_UNITS(declaration, Map, Causality, Normalizer)                                  \
  declaration template void mhla::cpu::run_forward(                                               \
      const mhla::cpu::Operands<mhla::cpu::Lowered<mhla::Map, mhla::Causality, mhla::Normalizer>, \
                                double>&,                                                         \
      const mhla::TensorView<double, 4>&, mhla::Span<double>, const mhla::ExecutorRef&);          \
  declaration template void mhla::cpu::run_backward(                                              \
      const mhla::cpu::Operands<mhla::cpu::Lowered<mhla::Map, mhla::Causality, mhla::Normalizer>, \
                                double>&,                                                         \
      const mhla::cpu::BackwardRequest<                                                           \
          mhla::cpu::Lowered<mhla::Map, mhla::Causality, mhla::Normalizer>, double>&,             \
      mhla::Span<const double>, const mhla::ExecutorRef&);

#define MHLA_TEST_ALL_UNITS(declaration)                               \
  MHLA_TEST_UNITS(declaration, EluPlusOne, Bidirectional, MixedKeySum) \
  MHLA_TEST_UNITS(declaration, EluPlusOne, Causal, MixedKeySum)        \
  MHLA_TEST_UNITS(declaration, EluPlusOne, BlockCausal, MixedKeySum)   \
  MHLA_TEST_UNITS(declaration, Softmax, Causal, Unnormalized)

#if !defined(MHLA_TEST_CUDA)
MHLA_TEST_ALL_UNITS(extern)
#endif
