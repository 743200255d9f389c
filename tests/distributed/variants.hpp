// SPDX-License-Identifier: MIT
// The calls that are shared out in tests.
#pragma once

#include <cstdint>
#include <mhla/attention.hpp>
#include <mhla/packed.hpp>
#include <mhla/testing/host_tensor.hpp>

namespace distributed_calls {

// Used in several calls, each packed and padded too, as every variant takes a second to compile.
using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, mhla::MixedKeySum,
                                 mhla::HalfSplitRotary>;
using Unrotated = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
using CausalSequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::MixedKeySum,
                                       mhla::HalfSplitRotary>;
using ByBlocks = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::BlockCausal>;
using Recurrent = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::MixedKeySum,
                                  mhla::HalfSplitRotary, mhla::RecurrentMixing>;

/// By sequence: calls visit(name, T{}, attention, shape), few of each kind, of odd sizes.
template <class Visit>
void for_each_call(const Visit& visit) {
  using namespace mhla;
  using Plain = Attention<EluPlusOne, Blocks1D, Bidirectional, Unnormalized>;
  using PlainCausal = Attention<Relu, Blocks1D, Causal, Unnormalized>;
  using Image = Attention<Relu, Blocks2D, Bidirectional, MixedKeySum, AxialRotary>;
  using Video = Attention<Softmax, Blocks3D, Bidirectional, MixedKeySum, AxialRotary>;
  using Crossed = Attention<Relu, Blocks3D>;
  const Shape grouped{2, 4, 2, 58, 58, 6, 7};
  visit("a ragged sequence", float{}, Sequence{.blocks = {.block = 5}}, grouped);
  visit("in double, without a normalizer", double{}, Plain{.blocks = {.block = 5}}, grouped);
  visit("in bfloat16", BFloat16{}, Unrotated{.blocks = {.block = 5}}, grouped);
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
  visit("one block of queries", float{},
        Sequence{.blocks = {.block = 5}, .key_blocks = {.block = 5}}, Shape{1, 2, 1, 5, 58, 6, 7});
  visit("fewer blocks than ranks", float{}, Sequence{.blocks = {.block = 32}}, grouped);
  visit("causal, fewer blocks than ranks", float{}, CausalSequence{.blocks = {.block = 20}},
        grouped);
  visit("no values", float{}, Sequence{.blocks = {.block = 5}}, Shape{2, 4, 2, 58, 58, 6, 0});
  using PlainRecurrent =
      Attention<Relu, Blocks1D, BlockCausal, Unnormalized, NoRotation, RecurrentMixing>;
  visit("a recurrence", float{}, Recurrent{.blocks = {.block = 1}, .mixing = {.states = 2}},
        Shape{2, 4, 2, 75, 75, 8, 6, 4});
  visit("a recurrence of a matrix for every item, causal by blocks", double{},
        PlainRecurrent{.blocks = {.block = 2}, .mixing = {.states = 3}},
        Shape{2, 4, 2, 161, 161, 6, 5, 8});
  visit("no heads", float{}, Sequence{.blocks = {.block = 5}}, Shape{2, 0, 0, 58, 58, 6, 7});
}

/// By heads: the same calls, and variants that go by heads alone.
template <class Visit>
void for_each_call_by_heads(const Visit& visit) {
  using namespace mhla;
  for_each_call(visit);
  using Products = Attention<Relu, Blocks2D, Bidirectional, MixedProduct>;
  using Separable =
      Attention<Relu, Blocks2D, Bidirectional, MixedKeySum, NoRotation, SeparableMixing>;
  visit("mixed products", float{}, Products{.blocks = {.grid = {8, 6}, .block = {2, 3}}},
        Shape{2, 4, 2, 48, 48, 8, 6});
  visit("one recurrence for all heads", float{},
        Recurrent{.blocks = {.block = 2}, .mixing = {.states = 2}}, Shape{2, 4, 2, 47, 47, 8, 6});
  visit("separable mixing", float{},
        Separable{.blocks = {.grid = {8, 6}, .block = {2, 3}}, .mixing = {.rank = 2}},
        Shape{2, 4, 2, 48, 48, 8, 6});
  visit("with Precision::fast", BFloat16{},
        Unrotated{.blocks = {.block = 5}, .precision = Precision::fast, .path = Path::linear},
        Shape{2, 4, 2, 58, 58, 34, 33});
  visit("more sequences than partial sums", float{}, CausalSequence{.blocks = {.block = 4}},
        Shape{21, 6, 6, 9, 9, 4, 4});
  static constexpr std::int32_t offsets[] = {0, 9, 9, 30, 58};
  visit("a packed batch", float{},
        packed(Sequence{.blocks = {.block = 5}}, Span<const std::int32_t>{offsets, 5}),
        Shape{1, 4, 2, 58, 58, 6, 7, 1, 6, 6});
  static const testing::HostTensor<std::uint8_t, 2> mask = [] {
    testing::HostTensor<std::uint8_t, 2> tokens(2, 58);
    for (Index i = 0; i < 2 * 58; ++i) tokens.view().element(i) = i % 7 != 3 && i < 100;
    return tokens;
  }();
  visit("a padded batch", float{}, padded(CausalSequence{.blocks = {.block = 5}}, mask.view()),
        Shape{2, 4, 2, 58, 58, 6, 7});
}

}  // namespace distributed_calls
