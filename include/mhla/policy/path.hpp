// SPDX-License-Identifier: MIT
// How the CPU computes a call: by summaries of blocks, or by scores of all pairs.
#pragma once

#include <mhla/core/config.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup variant
/// \{

/// How the CPU computes a call. Both are the same function, with different rounding errors. The
/// choice is made from the variant and the shape alone, never from the number of threads.
enum class Path {
  automatic,  ///< the one that takes less time by the shape
  /// By summaries of blocks: time grows with the tokens, and with the square of the blocks.
  linear,
  /// By scores of all pairs of tokens, each times the mixing weight of its blocks: time grows with
  /// the square of the tokens, but hardly with the blocks. A dense mixing without MixedProduct has
  /// it; Stages, SequenceParallel and decoders do not. Precision::fast is as `exact` there, and a
  /// ForwardState stays empty.
  quadratic,
};

/// \}

MHLA_NAMESPACE_END
