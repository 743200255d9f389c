// SPDX-License-Identifier: MIT
// A choice of blocks for a grid of tokens.
#pragma once

#include <limits>
#include <mhla/core/shape.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <vector>

MHLA_NAMESPACE_BEGIN

/// \addtogroup geometries
/// \{

/// What propose_blocks() is to know of a call beside its grid.
struct BlockNeeds {
  Index key_dim = 64;    ///< of phi's results
  Index value_dim = 64;  ///< of a head
  bool causal = false;   ///< Causal, whose own blocks are attended to pair by pair
  bool ragged = true;  ///< whether the last block of an axis may be shorter; not with MixedProduct
};

/// \cond INTERNAL
namespace proposal {

// How far blocks are from what is wanted, as a power of two; less is better.
//
// Of the N d e of summaries and of readout each, mixing adds M^2 d e: M^2 <= N adds at most half.
// More blocks carry more rank, at most M d, so that M comes near sqrt(N), of blocks that are as
// near to a cube as the grid allows: the initial matrix falls off with distance. Causal attention
// pays N n (d + e) / 2 for blocks of n tokens too: there the cheapest is taken.
inline double distance(const Grid& grid, const BlockNeeds& needs) {
  const auto tokens = static_cast<double>(grid.num_tokens());
  const auto blocks = static_cast<double>(grid.num_blocks());
  const auto d = static_cast<double>(needs.key_dim);
  const auto e = static_cast<double>(needs.value_dim);
  if (blocks * blocks > tokens) return std::numeric_limits<double>::infinity();
  if (needs.causal) {
    const double own = tokens * static_cast<double>(grid.block[2]) * (d + e) / 2;
    return std::log2((2 * tokens * d * e + blocks * blocks * d * e / 2 + own) /
                     (2 * tokens * d * e));
  }
  Index longest = 1;
  Index shortest = grid.num_tokens();  // of the axes that are cut
  for (int axis = 0; axis < 3; ++axis) {
    if (grid.block[axis] > longest) longest = grid.block[axis];
    if (grid.block[axis] < grid.extent[axis] && grid.block[axis] < shortest)
      shortest = grid.block[axis];
  }
  const double stretch = static_cast<double>(longest) / static_cast<double>(shortest);
  return std::log2(std::sqrt(tokens) / blocks) + (blocks > 1 ? std::log2(stretch) : 0);
}

// The extents that a block may have along an axis, longest first: divisors, or all that make a
// different number of blocks.
inline std::vector<Index> block_extents(Index extent, bool ragged) {
  std::vector<Index> all;
  for (Index blocks = 1; blocks <= extent; ++blocks) {
    const Index length = ceil_div(extent, blocks);
    if (ragged ? all.empty() || length < all.back() : extent % blocks == 0) all.push_back(length);
    if (blocks * blocks > extent * 4 && ragged) break;
  }
  return all;
}

struct Choice {
  Grid grid;
  double distance = std::numeric_limits<double>::infinity();
};

inline Choice nearest(const Grid& of, const BlockNeeds& needs, bool ragged) {
  Choice best{of};
  Grid grid = of;
  for (const Index frames : block_extents(of.extent[0], ragged))
    for (const Index rows : block_extents(of.extent[1], ragged))
      for (const Index columns : block_extents(of.extent[2], ragged)) {
        grid.block[0] = frames, grid.block[1] = rows, grid.block[2] = columns;
        const double distance = proposal::distance(grid, needs);
        constexpr double rounding = 1e-9;  // of equal ones, fewer blocks
        if (distance < best.distance - rounding ||
            (distance < best.distance + rounding && grid.num_blocks() < best.grid.num_blocks()))
          best = {grid, distance};
      }
  return best;
}

inline Grid blocks_of(const Grid& grid, const BlockNeeds& needs) {
  const auto fail = [&](const char* rule) {
    throw ShapeError({"mhla::propose_blocks: a grid of ", grid.extent[0], " x ", grid.extent[1],
                      " x ", grid.extent[2], " tokens", rule});
  };
  for (const Index extent : grid.extent)
    if (extent < 1) fail("; every extent must be at least 1");
  if (checked_mul(checked_mul(grid.extent[0], grid.extent[1]), grid.extent[2]) > max_call_tokens)
    fail(" exceeds 2^36, the most tokens of a call");
  require_at_least("propose_blocks: key_dim", needs.key_dim, 1);
  require_at_least("propose_blocks: value_dim", needs.value_dim, 1);
  const Choice exact = nearest(grid, needs, false);
  if (!needs.ragged) return exact.grid;
  const Choice ragged = nearest(grid, needs, true);
  constexpr double worth = 0.7;  // what a shorter last block must bring, as a power of two
  return ragged.distance < exact.distance - worth ? ragged.grid : exact.grid;
}

}  // namespace proposal
/// \endcond

/// Blocks for a sequence: M of them, where M^2 <= tokens (mixing costs at most half of what
/// summaries and readout do); near sqrt(tokens), or the cheapest if causal. They divide the
/// sequence unless it has no divisor near that.
/// \throws ShapeError if an extent or dimension is below 1
///
/// \code
/// const mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal> of_text{
///     .blocks = mhla::propose_blocks(2048, {.key_dim = 128, .value_dim = 256, .causal = true})};
/// const mhla::Attention<mhla::Relu, mhla::Blocks2D> of_patches{
///     .blocks = mhla::propose_blocks(16, 16)};
/// \endcode
inline Blocks1D propose_blocks(Index tokens, const BlockNeeds& needs = {}) {
  return {proposal::blocks_of({{1, 1, tokens}, {1, 1, tokens}}, needs).block[2]};
}
/// Blocks for an image, as square as its extents allow.
inline Blocks2D propose_blocks(Index rows, Index columns, const BlockNeeds& needs = {}) {
  const Grid grid = proposal::blocks_of({{1, rows, columns}, {1, rows, columns}}, needs);
  return {{rows, columns}, {grid.block[1], grid.block[2]}};
}
/// Blocks for a video, as cubic as its extents allow.
inline Blocks3D propose_blocks(Index frames, Index rows, Index columns,
                               const BlockNeeds& needs = {}) {
  const Grid grid = proposal::blocks_of({{frames, rows, columns}, {frames, rows, columns}}, needs);
  return {{frames, rows, columns}, {grid.block[0], grid.block[1], grid.block[2]}};
}

/// \}

MHLA_NAMESPACE_END
