// SPDX-License-Identifier: MIT
// The variants that run on a GPU in the tests, each with shapes that have tails: one list for the
// kernels (*.cu) and for the calls (*.cpp).
#pragma once

#include <cstdint>
#include <mhla/core/scalar.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <mhla/policy/variant.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "bench/gpu_shapes.hpp"
#include "softplus.hpp"

namespace gpu {

using namespace mhla;  // NOLINT: a list of the library's names

using Image = Attention<EluPlusOne, Blocks2D>;
using Language = bench::GpuLanguage;
using CausalKeySum = Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>;

using ImageProduct = Attention<EluPlusOne, Blocks2D, Bidirectional, MixedProduct>;
using Video = bench::GpuVideo;
using Sequence = Attention<Softplus, Blocks1D, Bidirectional, MixedKeySum, HalfSplitRotary>;
using Cross = Attention<Softmax, Blocks1D>;
using CausalHedgehog = Attention<Hedgehog, Blocks1D, Causal, Unnormalized>;
using PastBlocks = Attention<EluPlusOne, Blocks1D, BlockCausal>;
using PackedCausal = Packed<CausalKeySum, std::int32_t>;
using PaddedImage = Padded<Image>;
using Recurrent =
    Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary, RecurrentMixing>;
using SeparableVideo =
    Attention<EluPlusOne, Blocks3D, Bidirectional, MixedKeySum, NoRotation, SeparableMixing>;

/// With fused kernels: in BFloat16 those that bench/gpu.cpp measures, which are the very kernels of
/// the benchmark; in Half Image and this one.
using CausalSum = Attention<EluPlusOne, Blocks1D, Causal>;
using ReluImage = bench::GpuImage;

/// X(Variant) for the variants of every scalar, and for those of double alone.
#define MHLA_GPU_VARIANTS_OF_EVERY_SCALAR(X) X(Image) X(Language) X(CausalKeySum)
#define MHLA_GPU_VARIANTS_OF_DOUBLE(X) \
  X(ImageProduct)                      \
  X(Video)                             \
  X(Sequence)                          \
  X(Cross) X(CausalHedgehog) X(PastBlocks) X(PackedCausal) X(PaddedImage) X(SeparableVideo)

/// Whether a variant has a decoder's kernels.
template <class V>
inline constexpr bool is_decoded =
    std::is_same_v<V, Language> || std::is_same_v<V, CausalKeySum> || std::is_same_v<V, Recurrent>;

/// How many blocks a side of a call has in the longest of its sequences.
template <class V>
Index blocks_of(const V& attention, const typename V::GeometryType& blocks, Index tokens) {
  if constexpr (requires { attention.offsets; }) {
    tokens = 0;
    for (Index s = 0; s < attention.sequences(); ++s)
      if (attention.length(s) > tokens) tokens = attention.length(s);
  }
  return blocks.grid_of(tokens).num_blocks();
}

/// `shape` with the mixing matrix of an attention's blocks, or the parameters that make it.
template <class V>
Shape with_blocks(const V& attention, Shape shape) {
  const auto& keys = attention.key_blocks.unset() ? attention.blocks : attention.key_blocks;
  shape.mix_query_blocks = blocks_of(attention, attention.blocks, shape.query_tokens);
  shape.mix_key_blocks = blocks_of(attention, keys, shape.key_tokens);
  if constexpr (requires { attention.mixing.states; })
    shape.mix_key_blocks = attention.mixing.columns();
  if constexpr (requires { attention.mixing.rank; }) {
    shape.mix_query_blocks = attention.mixing.rank;
    shape.mix_key_blocks = attention.mixing.columns(
        MixingLayout::of(V::GeometryType::rank, attention.blocks.grid_of(shape.query_tokens),
                         keys.grid_of(shape.key_tokens), Sight::all));
  }
  return shape;
}

/// Self-attention.
inline Shape tokens(Index batch, Index heads, Index kv_heads, Index count, Index key_dim,
                    Index value_dim, Index mix_heads) {
  return {.batch = batch,
          .heads = heads,
          .kv_heads = kv_heads,
          .query_tokens = count,
          .key_tokens = count,
          .key_dim = key_dim,
          .value_dim = value_dim,
          .mix_heads = mix_heads};
}

/// A batch of two images of 7 x 5 pixels, the second one of which lacks its last rows.
inline TensorView<const std::uint8_t, 2> padding() {
  static const std::vector<std::uint8_t> mask = [] {
    std::vector<std::uint8_t> bytes(std::size_t{2 * 35}, 1);
    for (std::size_t token = 35 + 22; token < bytes.size(); ++token) bytes[token] = 0;
    bytes[3] = 0;
    return bytes;
  }();
  return make_view(mask.data(), 2, 35);
}
inline const std::vector<std::int32_t>& packed_offsets() {
  static const std::vector<std::int32_t> offsets{0, 5, 5, 60, 61, 100};
  return offsets;
}

/// Calls f(name, attention, shape) for every case of scalar T.
template <class T, class F>
void for_each_case(const F& f) {
  const auto call = [&](const std::string& name, const auto& attention, const Shape& shape) {
    f(name, attention, with_blocks(attention, shape));
  };
  const Image image{.blocks = {{7, 5}, {2, 3}}};
  const CausalKeySum causal{.blocks = {7}, .scale = 0.3};
  call("image, shared mix", image, tokens(2, 4, 2, 35, 8, 6, 1));
  call("image, a mix for each head", image, tokens(2, 4, 2, 35, 8, 6, 4));
  call("image of one token a block", Image{.blocks = {{3, 4}, {1, 1}}},
       tokens(1, 2, 2, 12, 72, 40, 1));
  call("language", Language{.feature_map = {.epsilon = 0}, .blocks = {16}, .scale = 0.25},
       tokens(2, 2, 2, 67, 16, 24, 1));
  call("causal, normalized", causal, tokens(2, 4, 2, 40, 8, 6, 4));
  call("causal, blocks of several slabs", CausalKeySum{.blocks = {150}, .scale = 0.3},
       tokens(1, 2, 1, 400, 8, 6, 1));
  if constexpr (sizeof(T) >= 4) {
    const Recurrent recurrent{.blocks = {3}, .mixing = {.states = 2}, .scale = 0.3};
    call("recurrent", recurrent, tokens(2, 4, 2, 100, 8, 6, 1));
    call("recurrent, parameters for each head of each item", recurrent,
         tokens(2, 4, 2, 55, 8, 6, 8));
  }
  if constexpr (std::is_same_v<T, double>) {
    call("separable", SeparableVideo{.blocks = {{3, 4, 5}, {1, 2, 2}}, .mixing = {.rank = 2}},
         tokens(2, 4, 2, 60, 8, 6, 4));
    call("more blocks than a grid has rows", Image{.blocks = {{2, 2}, {1, 1}}},
         tokens(1100, 16, 16, 4, 4, 4, 1));
    call("image, products mixed", ImageProduct{.blocks = {{6, 6}, {2, 3}}},
         tokens(2, 4, 2, 36, 8, 6, 4));
    call("video", Video{.blocks = {{3, 4, 5}, {2, 2, 3}}}, tokens(2, 2, 2, 60, 12, 6, 1));
    call("sequence, a map of one's own", Sequence{.blocks = {7}}, tokens(2, 4, 2, 40, 8, 6, 1));
    Shape cross = tokens(2, 4, 2, 40, 8, 6, 1);
    cross.key_tokens = 23;
    call("cross, row-wise map", Cross{.blocks = {7}, .key_blocks = {5}}, cross);
    call("causal, map of another dimension", CausalHedgehog{.blocks = {3}},
         tokens(2, 4, 2, 50, 8, 6, 4));
    call("past blocks", PastBlocks{.blocks = {3}}, tokens(2, 4, 2, 50, 8, 6, 4));
    const std::vector<std::int32_t>& offsets = packed_offsets();
    call("packed", PackedCausal(causal, {offsets.data(), static_cast<Index>(offsets.size())}),
         tokens(1, 4, 2, 100, 8, 6, 4));
    call("padded", PaddedImage(image, {padding(), padding()}), tokens(2, 4, 2, 35, 8, 6, 1));
  }
}

/// Calls f(name, attention, shape) for every case of scalar T that the fused kernels run: with
/// tails of blocks and of tiles, small enough for a tool that watches every access.
template <class T, class F>
void for_each_fused_case(const F& f) {
  [[maybe_unused]] const auto call = [&](const std::string& name, const auto& attention,
                                         const Shape& shape) {
    f(name, attention, with_blocks(attention, shape));
  };
  if constexpr (std::is_same_v<T, BFloat16>) {
    const auto language = [](Index block, double scale) {
      return Language{.feature_map = {.epsilon = 0}, .blocks = {block}, .scale = scale};
    };
    call("image 72/72", ReluImage{.blocks = {{1, 7, 9}, {1, 4, 3}}},
         tokens(2, 2, 1, 63, 72, 72, 1));
    call("image 64/64, a mix for each head", ReluImage{.blocks = {{2, 5, 7}, {2, 2, 3}}},
         tokens(1, 4, 2, 70, 64, 64, 4));
    call("video 128/128", Video{.blocks = {{3, 4, 5}, {2, 2, 3}}},
         tokens(1, 2, 2, 60, 128, 128, 1));
    call("language 128/128", language(20, 0.1), tokens(2, 2, 1, 67, 128, 128, 2));
    call("language 128/128, blocks of several tiles", language(150, 0.1),
         tokens(1, 2, 1, 200, 128, 128, 1));
    call("language 128/128, many blocks", language(2, 0.1), tokens(1, 2, 1, 79, 128, 128, 1));
    call("language 128/256, many blocks", language(2, 0.1), tokens(1, 2, 1, 79, 128, 256, 1));
    call("language 256/256", language(50, 0.06), tokens(1, 2, 2, 90, 256, 256, 1));
  }
  if constexpr (std::is_same_v<T, Half>) {
    call("image 72/72", Image{.blocks = {{7, 9}, {4, 3}}}, tokens(2, 2, 1, 63, 72, 72, 2));
    call("causal, normalized, 64/64", CausalSum{.blocks = {20}}, tokens(2, 2, 1, 67, 64, 64, 1));
    call("causal, normalized, 64/64, blocks of several tiles", CausalSum{.blocks = {150}},
         tokens(1, 2, 1, 200, 64, 64, 1));
    for (const Index blocks : {115, 130})  // mixing holds 128 at once
      call("causal, normalized, 64/64, " + std::to_string(blocks) + " blocks",
           CausalSum{.blocks = {1}}, tokens(1, 1, 1, blocks, 64, 64, 1));
  }
}

/// Likewise, for the resident path alone, which takes fewer values at once where it has more
/// blocks: every width of 227 KB of shared memory but the largest.
template <class T, class F>
void for_each_sliced_case(const F& f) {
  [[maybe_unused]] const auto call = [&](const std::string& name, const auto& attention,
                                         const Shape& shape) {
    f(name, attention, with_blocks(attention, shape));
  };
  if constexpr (std::is_same_v<T, BFloat16>) {
    const auto image = [](Index rows) { return ReluImage{.blocks = {{2, 5, 9}, {1, rows, 2}}}; };
    call("image 72/72, 30 blocks", image(2), tokens(1, 2, 1, 90, 72, 72, 1));
    call("image 64/64, 30 blocks", image(2), tokens(1, 2, 1, 90, 64, 64, 2));
    call("image 64/64, 50 blocks", image(1), tokens(1, 2, 1, 90, 64, 64, 1));
    call("video 128/128, 12 blocks", Video{.blocks = {{3, 4, 5}, {2, 2, 2}}},
         tokens(1, 2, 2, 60, 128, 128, 1));
    call("video 128/128, 24 blocks", Video{.blocks = {{3, 4, 5}, {1, 1, 3}}},
         tokens(1, 2, 2, 60, 128, 128, 1));
  }
  if constexpr (std::is_same_v<T, Half>)
    call("image 72/72, 21 blocks", Image{.blocks = {{7, 9}, {1, 3}}},
         tokens(1, 2, 1, 63, 72, 72, 2));
}

/// Likewise, large enough to fill a GPU, one with more blocks than mixing holds at once.
template <class T, class F>
void for_each_large_fused_case(const F& f) {
  [[maybe_unused]] const auto call = [&](const std::string& name, const auto& attention,
                                         const Shape& shape) {
    f(name, attention, with_blocks(attention, shape));
  };
  if constexpr (std::is_same_v<T, BFloat16>) {
    const auto language = [](Index block, double scale) {
      return Language{.feature_map = {.epsilon = 0}, .blocks = {block}, .scale = scale};
    };
    call("image 72/72", ReluImage{.blocks = {{1, 32, 32}, {1, 8, 8}}},
         tokens(4, 16, 16, 1024, 72, 72, 1));
    call("video 128/128", Video{.blocks = {{6, 20, 25}, {3, 10, 10}}},
         tokens(1, 12, 12, 3000, 128, 128, 1));
    call("language 128/128, more blocks than mixing holds at once", language(8, 0.09),
         tokens(2, 8, 4, 1100, 128, 128, 1));
    call("language 128/256", language(64, 0.09), tokens(2, 4, 4, 2053, 128, 256, 1));
    call("language 256/256", language(64, 0.06), tokens(2, 4, 4, 2053, 256, 256, 1));
  }
  if constexpr (std::is_same_v<T, Half>)
    call("causal, normalized, 64/64", CausalSum{.blocks = {64}}, tokens(4, 8, 4, 2053, 64, 64, 1));
}

}  // namespace gpu
