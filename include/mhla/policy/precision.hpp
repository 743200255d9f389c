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
  /// Rounded to bfloat16 for bfloat16 tensors, on machines that multiply bfloat16 at a higher rate
  /// (VDPBF16PS of AMD's Zen 4 and later, AMX, Arm's BFMMLA), where gradients stay accurate. As
  /// `exact` on other machines, for other tensors (instructions for half sum in half, or are no
  /// faster than float), with fewer than 32 features or values, and by Path::quadratic. A
  /// structured mixing, Stages and SequenceParallel mix in the accumulator type; the last two have
  /// exact gradients. RMS errors are at most 3e-3 for y (5e-3 with a rotation or features of either
  /// sign) and 5e-3 for gradients, unless few terms make up a result.
  fast,
};

/// \}

MHLA_NAMESPACE_END
