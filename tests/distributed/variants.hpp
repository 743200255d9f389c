// SPDX-License-Identifier: MIT
// The calls that are shared out in tests both by sequence and by heads.
#pragma once

#include <mhla/attention.hpp>

namespace distributed_calls {

/// Calls visit(name, T{}, attention, shape): few of each kind, of odd sizes.
template <class Visit>
void for_each_call(const Visit& visit) {
  using namespace mhla;
  using Sequence = Attention<Relu, Blocks1D, Bidirectional, MixedKeySum, HalfSplitRotary>;
  using Plain = Attention<EluPlusOne, Blocks1D, Bidirectional, Unnormalized>;
  using CausalSequence = Attention<Relu, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>;
  using PlainCausal = Attention<Relu, Blocks1D, Causal, Unnormalized>;
  using ByBlocks = Attention<Relu, Blocks1D, BlockCausal>;
  using Image = Attention<Relu, Blocks2D, Bidirectional, MixedKeySum, AxialRotary>;
  using Video = Attention<Softmax, Blocks3D, Bidirectional, MixedKeySum, AxialRotary>;
  using Crossed = Attention<Relu, Blocks3D>;
  const Shape grouped{2, 4, 2, 58, 58, 6, 7};
  visit("a ragged sequence", float{}, Sequence{.blocks = {.block = 5}}, grouped);
  visit("in double, without a normalizer", double{}, Plain{.blocks = {.block = 5}}, grouped);
  visit("in bfloat16", BFloat16{}, Sequence{.blocks = {.block = 5}}, grouped);
  visit("a matrix per head", float{}, Sequence{.blocks = {.block = 7}},
        Shape{2, 4, 4, 60, 60, 16, 8, 4});
  visit("a matrix for every item", float{}, Sequence{.blocks = {.block = 7}},
        Shape{2, 4, 4, 60, 60, 16, 8, 8});
  visit("causal", float{}, CausalSequence{.blocks = {.block = 5}}, grouped);
  visit("causal, a matrix per head, without a normalizer", float{},
        PlainCausal{.blocks = {.block = 5}}, Shape{2, 4, 2, 58, 58, 6, 7, 4});
  visit("causal by blocks", float{}, ByBlocks{.blocks = {.block = 5}}, grouped);
  visit("a ragged image", float{}, Image{.blocks = {.grid = {11, 13}, .block = {3, 4}}},
        Shape{2, 4, 2, 143, 143, 16, 9});
  visit("a ragged video", float{}, Video{.blocks = {.grid = {5, 7, 11}, .block = {2, 3, 4}}},
        Shape{1, 2, 2, 385, 385, 16, 8, 2});
  visit("cross-attention", float{},
        Crossed{.blocks = {.grid = {4, 6, 5}, .block = {2, 2, 2}},
                .key_blocks = {.grid = {3, 3, 10}, .block = {1, 2, 3}}},
        Shape{1, 4, 2, 120, 90, 16, 8});
  visit("fewer blocks than ranks", float{}, Sequence{.blocks = {.block = 32}}, grouped);
  visit("no values", float{}, Sequence{.blocks = {.block = 5}}, Shape{2, 4, 2, 58, 58, 6, 0});
  visit("no heads", float{}, Sequence{.blocks = {.block = 5}}, Shape{2, 0, 0, 58, 58, 6, 7});
}

}  // namespace distributed_calls
