// SPDX-License-Identifier: MIT
// How kernels over tokens cut values into slices so that their tiles fit into shared memory, and
// lay that out; tiles of kernels over pairs of tokens, and the powers of two that keep 16-bit
// numbers in range. Needs no CUDA header, so that a cost model can use it.
#pragma once

#include <mhla/core/scalar.hpp>
#include <mhla/cuda/chip/shared_layout.hpp>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/policy/causality.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Whose tokens a kernel goes through.
enum class Side { queries, keys };

/// Of SummarizeBlocks.
MHLA_HOST_DEVICE constexpr int summary_slice(int value_dim) { return value_slice(value_dim, 128); }

/// Shared memory of ReadOutBlocks. Tiles of own tokens take the summary's place.
struct ReadOutMemory {
  int key_dim;
  int slice;  // of value columns
  bool adds_own;
  int stages;  // of a ring of tiles of features

  MHLA_HOST_DEVICE constexpr ReadOutMemory(int key, int columns, bool adds, int tiles)
      : key_dim(key), slice(columns), adds_own(adds), stages(tiles) {}
  int rows = tile_rows(key_dim);
  int own_rows = adds_own ? rows : 0;
  SharedLayout layout{};
  SharedArray<float> key_sum = layout.take_array<float>(key_dim);  // z
  SharedArray<float> denominators = layout.take_array<float>(rows);
  /// Own tokens' parts of them.
  SharedArray<float> own_sums = layout.take_array<float>(own_rows * (8 / (rows / 16)));
  SharedArray<float> flags = layout.take_array<float>(adds_own ? 8 : 0);
  std::uint32_t scores = layout.take_bytes(tile_bytes(own_rows, rows));
  std::uint32_t features = layout.take_bytes(stages * tile_bytes(rows, key_dim));
  SharedLayout own = layout;
  std::uint32_t summary = layout.take_bytes(tile_bytes(key_dim, slice));
  std::uint32_t others = own.take_bytes(tile_bytes(own_rows, key_dim));
  std::uint32_t values = own.take_bytes(tile_bytes(own_rows, slice));
  int bytes = layout.go_past(own).bytes();

  MHLA_HOST_DEVICE constexpr bool fits() const { return bytes <= machine::max_shared_bytes; }
};
/// Has the widest slice that fits, and two stages if they fit with it and no own tokens are added.
/// With one stage, another thread block of the SM computes while this one waits.
MHLA_HOST_DEVICE constexpr ReadOutMemory read_out_memory(int key_dim, int value_dim,
                                                         bool adds_own) {
  ReadOutMemory memory{key_dim, 0, adds_own, 1};
  for (const int most : {128, 64, 32}) {
    const int slice = value_slice(value_dim, key_dim < most ? key_dim : most);
    memory = {key_dim, slice, adds_own, adds_own ? 1 : 2};
    if (!memory.fits()) memory = {key_dim, slice, adds_own, 1};
    if (memory.fits()) break;
  }
  return memory;
}

/// Maximum token blocks: a warp holds a column of all of them in registers.
inline constexpr Index max_resident_blocks = 64;

/// Head dimensions that it supports, among those of fused kernels: summaries of larger heads would
/// need so many slices that queries and keys are read too often.
constexpr bool has_resident_kernels(Index key_dim, Index value_dim) {
  return has_fused_kernels(key_dim, value_dim) && key_dim <= 128 && value_dim <= 128;
}

/// Widths of slices that it is compiled for, widest first.
inline constexpr int resident_slices = 3;
constexpr int resident_slice(int value_dim, int n) {
  constexpr int most[std::size_t{resident_slices}] = {96, 48, 24};
  return value_slice(value_dim, most[n]);
}

/// Its shared memory: the readout's denominators of a tile, where the warps' key sums are before;
/// rings of tiles, where the mixing matrix is in between; then a record for every block: S, later
/// S~, and z and z~.
struct ResidentMemory {
  int key_dim;
  int slice;
  bool divides;
  bool rotates;

  MHLA_HOST_DEVICE constexpr ResidentMemory(int key, int columns, bool normalizes, bool turns)
      : key_dim(key), slice(columns), divides(normalizes), rotates(turns) {}
  static constexpr int warps = 8;  // of a team
  static constexpr auto side = static_cast<int>(max_resident_blocks);
  int rows = tile_rows(key_dim);
  /// Two where key sums come out of the summaries' product: one team makes features while the other
  /// multiplies.
  int teams = divides && rotates ? 1 : 2;
  int stages = teams + 1;
  int key_sum_bytes = divides ? key_dim * 4 : 0;
  int warp_sum_bytes = rotates ? warps * key_sum_bytes : 0;
  SharedLayout layout{};
  SharedLayout before{};
  SharedArray<float> denominators = layout.take_array<float>(rows);
  /// Those of every other tile, where two teams work.
  SharedArray<float> next_denominators = layout.take_array<float>(teams == 1 ? 0 : rows);
  std::uint32_t warp_sums = before.take_bytes(warp_sum_bytes);
  SharedLayout between = layout.go_past(before);
  std::uint32_t features = layout.take_bytes(stages * tile_bytes(rows, key_dim));
  std::uint32_t values = layout.take_bytes(stages * tile_bytes(rows, slice));
  std::uint32_t matrix = between.take_bytes(2 * tile_bytes(side, side));  // high and low
  std::uint32_t records = layout.go_past(between).take_bytes(0);
  /// In a record, padded to an odd number of 16-byte chunks, so that eight blocks of a matrix load
  /// start in eight different groups of banks.
  int key_sum = key_dim * slice * 2 + 16;
  int mixed_key_sum = key_sum + key_sum_bytes;
  int record_bytes = mixed_key_sum + key_sum_bytes;

  constexpr int bytes(int blocks) const {
    return static_cast<int>(records) + blocks * record_bytes;
  }
};

/// Value columns that a thread block takes: the widest slice for which the summaries of all blocks
/// fit into `shared_bytes`; 0 if none does.
inline Index resident_slice_of(Index key_dim, Index value_dim, Index blocks, bool divides,
                               bool rotates, Index shared_bytes) {
  if (!has_resident_kernels(key_dim, value_dim) || blocks > max_resident_blocks) return 0;
  for (int n = 0; n < resident_slices; ++n) {
    const ResidentMemory memory{static_cast<int>(key_dim),
                                resident_slice(static_cast<int>(value_dim), n), divides, rotates};
    if (memory.bytes(static_cast<int>(blocks)) <= shared_bytes) return memory.slice;
  }
  return 0;
}

/// Tokens of a thread block's own tile, and of the tiles of the other side that it loops over:
/// fewer if rows are long, so that two thread blocks share an SM. Twofold calls have rotated
/// features, for scores, and unrotated ones, for denominators.
struct PairTiles {
  int own;  // 16 for each warp
  int others;
  int slices;  // warps that share 16 tokens, and sum parts of the result's columns
  int blocks_of_sm;
  /// Where half of a thread block's warps sum dv, and the others dk.
  constexpr int own_of_two() const { return own / 2; }
};
constexpr PairTiles pair_tiles(Index key_dim, Index value_dim, bool is_twofold) {
  const Index dim = key_dim < value_dim ? value_dim : key_dim;
  if (dim > 128) return is_twofold ? PairTiles{32, 16, 2, 2} : PairTiles{64, 16, 1, 2};
  if (dim > 96 || is_twofold) return {64, 32, 1, 2};
  if (dim > 72) return {128, 64, 1, 2};
  return {128, 128, 1, 2};
}
/// Tokens of a thread block's own tile that one warp has.
inline constexpr int pair_warp_rows = 16;
/// At most so many warps have queries of one block.
constexpr Index runs_of_block(Index block_tokens) {
  if (block_tokens % pair_warp_rows == 0) return block_tokens / pair_warp_rows;
  return (block_tokens + pair_warp_rows - 2) / pair_warp_rows + 1;
}

/// Elements of a mixing matrix that a thread block keeps in its shared memory; larger ones are read
/// pair by pair.
inline constexpr int max_kept_weights = 512;

/// Half ends at 65504 and scores are sums over key_dim: they are scaled by a power of two near 1 /
/// sqrt(key_dim) before rounding. BFloat16 has the range of float.
template <class T>
constexpr float score_scale(Index key_dim) {
  float scale = 1;
  if (std::is_same_v<T, Half>)
    for (; key_dim >= 4; key_dim /= 4) scale /= 2;
  return scale;
}

/// The weights of a backward pass are inversely proportional to the number of keys that share a
/// denominator: all of them or, if causal, between one and all, where the middle leaves equal room
/// on both sides. Without denominators they are as large as scores.
template <class T>
constexpr float gradient_scale(Index key_dim, Index keys, bool divides, Sight sees) {
  if (!std::is_same_v<T, Half>) return 1;
  if (!divides) return score_scale<T>(key_dim);
  float scale = 1;
  for (; keys > 1; keys /= sees == Sight::all ? 2 : 4) scale *= 2;
  return scale;
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
