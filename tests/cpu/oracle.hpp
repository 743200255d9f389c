// SPDX-License-Identifier: MIT
// What oracle_float.cpp and oracle_double.cpp run: the CPU backend against the token-level oracle,
// forward and backward: cross-attention with a rectangular mixing matrix, grouped query heads, a
// matrix per head, rotations, scale, all three normalizers. Extents are pairwise distinct, so that
// no swapped axis fits.
#pragma once

#include <mhla/cpu/pipeline.hpp>

#include "tests/cpu/call.hpp"

namespace oracle {

using call::check_against_oracle;
using call::operands;
using namespace mhla;

template <class Geometry, class Normalizer, class Rotation>
using Variant = Attention<EluPlusOne, Geometry, Bidirectional, Normalizer, Rotation>;

template <class T, class V>
void check(const V& attention, const Shape& shape) {
  CAPTURE(shape.heads, shape.kv_heads, shape.mix_heads);
  check_against_oracle(attention, operands<T>(attention, shape));
}

// 6 query heads on 6, 3, 2 and 1 kv heads, with one matrix and with six.
template <class T, class V>
void check_heads(const V& attention, Index query_tokens, Index key_tokens, Index key_dim) {
  for (const Index kv_heads : {6, 3, 2, 1})
    for (const Index mix_heads : {1, 6})
      check<T>(attention, {2, 6, kv_heads, query_tokens, key_tokens, key_dim, 7, mix_heads});
}

template <class T, class Normalizer, class Rotation>
void check_cross_attention(Index key_dim) {
  check_heads<T>(
      Variant<Blocks1D, Normalizer, Rotation>{
          .blocks = {.block = 4}, .key_blocks = {.block = 3}, .scale = 0.375},
      17, 11, key_dim);
}

template <class T, class Normalizer>
void check_grids() {
  check<T>(
      Variant<Blocks2D, Normalizer, AxialRotary>{.blocks = {.grid = {5, 3}, .block = {2, 2}},
                                                 .key_blocks = {.grid = {4, 7}, .block = {3, 2}},
                                                 .scale = 0.375},
      {2, 6, 2, 15, 28, 10, 7, 6});
  check<T>(
      Variant<Blocks3D, Normalizer, AxialRotary>{
          .blocks = {.grid = {3, 2, 5}, .block = {2, 1, 2}},
          .key_blocks = {.grid = {2, 4, 3}, .block = {1, 3, 2}},
          .rotation = {.theta = 50}},
      {2, 6, 2, 30, 24, 14, 5});
}

template <class T, class Normalizer>
void check_sequences() {
  check_cross_attention<T, Normalizer, NoRotation>(5);
  check_cross_attention<T, Normalizer, HalfSplitRotary>(6);
  check_cross_attention<T, Normalizer, AxialRotary>(10);
}

// MixedProduct has one geometry on both sides.
template <class T>
void check_mixed_products() {
  check_heads<T>(
      Variant<Blocks1D, MixedProduct, NoRotation>{.blocks = {.block = 4}, .scale = 0.375}, 20, 20,
      5);
  check_heads<T>(
      Variant<Blocks1D, MixedProduct, HalfSplitRotary>{.blocks = {.block = 4}, .scale = 0.375}, 20,
      20, 6);
  check<T>(
      Variant<Blocks2D, MixedProduct, AxialRotary>{
          .blocks = {.grid = {6, 10}, .block = {3, 2}},
          .key_blocks = {.grid = {6, 10}, .block = {3, 2}}},
      {2, 6, 2, 60, 60, 10, 7, 6});
  check<T>(Variant<Blocks3D, MixedProduct, AxialRotary>{.blocks = {.grid = {4, 3, 2},
                                                                   .block = {2, 1, 2}}},
           {3, 4, 2, 24, 24, 14, 5});
}

// Blocks for several groups of rows of the mixing matrix, and of its columns in the adjoint.
template <class T>
void check_many_blocks() {
  constexpr Index rows = mhla::cpu::max_mixing_rows;
  constexpr Index query_tokens = 3 * rows + 4;      // rows + 2 blocks of 3, the last one short
  constexpr Index key_tokens = 2 * (2 * rows + 5);  // 2 rows + 5 blocks of 2
  check<T>(Variant<Blocks1D, MixedKeySum, NoRotation>{.blocks = {.block = 3},
                                                      .key_blocks = {.block = 2}},
           {2, 4, 2, query_tokens, key_tokens, 5, 7, 4});
  check<T>(Variant<Blocks1D, MixedProduct, NoRotation>{.blocks = {.block = 2}},
           {2, 4, 2, key_tokens, key_tokens, 5, 7, 4});
  // So many summaries of such a size that groups have several strips.
  check<T>(Variant<Blocks1D, MixedKeySum, NoRotation>{.blocks = {.block = 2},
                                                      .key_blocks = {.block = 1}},
           {1, 2, 1, 171, 77, 62, 75, 2});
}

}  // namespace oracle
