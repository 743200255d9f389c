// SPDX-License-Identifier: MIT
// What the products of a call with 16-bit tensors are computed from.
#pragma once

#include <mhla/core/config.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup variant
/// \{

/// The factors of matrix products on the CPU, whose sums are in the accumulator type either way.
enum class Precision {
  exact,  ///< in the accumulator type
  /// bfloat16 tensors: rounded to bfloat16, where the machine multiplies those at a higher rate
  /// (VDPBF16PS of AMD's Zen 4 and later, AMX, Arm's BFMMLA) and gradients stay accurate;
  /// elsewhere, for other tensors, with fewer than 32 features or values, with a structured mixing
  /// and by Stages and SequenceParallel, as `exact`: instructions for half sum in half, or are no
  /// faster than float. RMS errors are at most 3e-3 of y (5e-3 with a rotation or features of
  /// either sign) and 5e-3 of gradients, but where few terms make up a result.
  fast,
};

/// \}

MHLA_NAMESPACE_END
