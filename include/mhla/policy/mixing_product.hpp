// SPDX-License-Identifier: MIT
// What a structured mixing is to a backend: blocks, and small products on their summaries.
#pragma once

#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/causality.hpp>

MHLA_NAMESPACE_BEGIN

/// The blocks that a mixing maps from and to, along the axes of the geometry.
/// \ingroup mixings
struct MixingLayout {
  int rank = 1;                  ///< axes of the geometry: the last ones of three
  Index queries[3] = {1, 1, 1};  ///< query blocks along each axis
  Index keys[3] = {1, 1, 1};     ///< key blocks along each axis
  Sight sight = Sight::all;      ///< past_tokens: S~ lacks the own block, which is read apart
  bool before = false;           ///< of a part of a recurrence: blocks before it leave states
  bool after = false;            ///< and later blocks take its states

  /// Between the blocks of two grids.
  static constexpr MixingLayout of(int rank, const Grid& query, const Grid& key, Sight sight) {
    return {rank,
            {query.layout(0), query.layout(1), query.layout(2)},
            {key.layout(0), key.layout(1), key.layout(2)},
            sight};
  }
  /// All query blocks.
  MHLA_HOST_DEVICE constexpr Index query_blocks() const {
    return queries[0] * queries[1] * queries[2];
  }
  /// All key blocks.
  MHLA_HOST_DEVICE constexpr Index key_blocks() const { return keys[0] * keys[1] * keys[2]; }
};

/// One step of a structured mixing: out (+)= (1_outer x C x 1_inner) in, x the Kronecker product,
/// on consecutive rows of a work array. Row r of it is S_r of a key block, then come S~ of the
/// query blocks, then whatever the steps need in between. C [rows, columns] is
/// coefficients[coefficient + r * stride + c].
///
/// A step reads no row of S~, and rows that earlier ones have written; the first to write a row
/// overwrites it; no two share a coefficient. What a step reads, or writes, are rows of one of the
/// three kinds.
/// \ingroup mixings
struct MixingProduct {
  Index coefficient;        ///< of row 0, column 0
  Index stride;             ///< from row to row of C
  Index out;                ///< first row that is written, of outer * rows * inner
  Index in;                 ///< first row that is read, of outer * columns * inner
  Index rows;               ///< of C
  Index columns;            ///< of C
  bool add = false;         ///< to what out holds
  bool triangular = false;  ///< row r lacks the last rows - 1 - r columns
  Index outer = 1;          ///< copies of all that
  Index inner = 1;          ///< neighbouring rows that C treats alike

  /// Entries of C that count.
  constexpr Index terms() const {
    const Index missing = triangular ? rows * (rows - 1) / 2 : 0;
    return (rows * columns - missing) * outer * inner;
  }
};

MHLA_NAMESPACE_END
