// SPDX-License-Identifier: MIT
// How the CPU computes a call: by summaries of blocks, or by scores of all pairs.
#pragma once

#include <mhla/core/config.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup variant
/// \{

/// How the CPU computes a call. Both paths compute the same function with different rounding
/// errors. `automatic` decides by the variant and the shape alone, never by the number of threads.
enum class Path {
  automatic,  ///< the path with the lower estimated cost
  /// By summaries of blocks: time grows with the tokens, and with the square of the blocks.
  linear,
  /// By scores of all pairs of tokens, each times the mixing weight of its blocks: time grows with
  /// the square of the tokens and hardly depends on the blocks. Requires DenseMixing and a
  /// normalizer other than MixedProduct. Stages, SequenceParallel and decoders ignore it and are
  /// linear. Precision::fast computes as `exact`, and a ForwardState stays empty.
  quadratic,
};

/// \}

MHLA_NAMESPACE_END
