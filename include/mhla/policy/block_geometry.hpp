// SPDX-License-Identifier: MIT
/// \defgroup geometries Geometries
/// \ingroup variant
/// How tokens are cut into blocks. Tokens lie in raster order of their grid and are never moved;
/// blocks are numbered in raster order of the layout, and tokens keep their raster order inside a
/// block. The last block along an axis is shorter where the grid is ragged. (arXiv 2601.07832,
/// section 4.1; released code: "b (fb p1 hb p2 wb p3) c -> ...".)
#pragma once

#include <algorithm>
#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup geometries
/// \{

/// Consecutive blocks of a grid.
struct BlockRange {
  Index first = 0;  ///< block
  Index count = 0;  ///< blocks

  /// One past the last block.
  MHLA_HOST_DEVICE constexpr Index end() const { return first + count; }
  /// Whether they are the same.
  friend constexpr bool operator==(const BlockRange&, const BlockRange&) = default;
};

/// A box of coordinates: [begin, end) on each axis.
struct GridBox {
  Index begin[3] = {0, 0, 0};  ///< first coordinate on each axis
  Index end[3] = {0, 0, 0};    ///< the coordinate after the last

  /// Coordinates on an axis.
  constexpr Index extent(int axis) const { return end[axis] - begin[axis]; }
  /// The smallest box that holds two others.
  friend constexpr GridBox hull(const GridBox& a, const GridBox& b) {
    GridBox both;
    for (int axis = 0; axis < 3; ++axis) {
      const GridBox& some = a.extent(axis) > 0 ? a : b;  // an empty box may begin anywhere
      const GridBox& other = b.extent(axis) > 0 ? b : a;
      both.begin[axis] = (std::min)(some.begin[axis], other.begin[axis]);
      both.end[axis] = (std::max)(a.end[axis], b.end[axis]);
    }
    return both;
  }
};

/// A grid of tokens on three axes, the last one contiguous, and the extent of a block along each.
/// Geometries with fewer axes have leading axes of extent 1.
struct Grid {
  Index extent[3] = {1, 1, 1};  ///< tokens along each axis
  Index block[3] = {1, 1, 1};   ///< tokens of a block along each axis

  /// All tokens.
  MHLA_HOST_DEVICE constexpr Index num_tokens() const { return extent[0] * extent[1] * extent[2]; }
  /// Blocks along an axis, including a shorter last one.
  MHLA_HOST_DEVICE constexpr Index layout(int axis) const {
    return ceil_div(extent[axis], block[axis]);
  }
  /// All blocks.
  MHLA_HOST_DEVICE constexpr Index num_blocks() const { return layout(0) * layout(1) * layout(2); }

  /// Whether all extents are equal.
  friend constexpr bool operator==(const Grid&, const Grid&) = default;

  /// Whether an axis ends in a shorter block.
  MHLA_HOST_DEVICE constexpr bool ragged() const {
    return extent[0] % block[0] != 0 || extent[1] % block[1] != 0 || extent[2] % block[2] != 0;
  }

  /// Coordinate of a token on an axis.
  MHLA_HOST_DEVICE constexpr Index coordinate(Index token, int axis) const {
    if (axis == 2) return token % extent[2];
    if (axis == 1) return token / extent[2] % extent[1];
    return token / (extent[2] * extent[1]);
  }
  /// Coordinate of a block in the layout, on an axis.
  MHLA_HOST_DEVICE constexpr Index block_coordinate(Index index, int axis) const {
    if (axis == 2) return index % layout(2);
    if (axis == 1) return index / layout(2) % layout(1);
    return index / (layout(2) * layout(1));
  }
  /// First coordinate of a block on an axis.
  MHLA_HOST_DEVICE constexpr Index block_begin(Index index, int axis) const {
    return block_coordinate(index, axis) * block[axis];
  }
  /// Tokens of a block along an axis.
  MHLA_HOST_DEVICE constexpr Index block_extent(Index index, int axis) const {
    const Index left = extent[axis] - block_begin(index, axis);
    return left < block[axis] ? left : block[axis];
  }
  /// Tokens of the longest block.
  MHLA_HOST_DEVICE constexpr Index block_tokens() const {
    Index tokens = 1;
    for (int a = 0; a < 3; ++a) tokens *= block[a] < extent[a] ? block[a] : extent[a];
    return tokens;
  }
  /// Tokens of blocks [0, blocks) whose raster index is less than `token`.
  MHLA_HOST_DEVICE constexpr Index tokens_before(Index blocks, Index token) const {
    if (num_tokens() == 0) return 0;
    const auto clamped = [](Index x, Index most) { return x < 0 ? 0 : x < most ? x : most; };
    // Whole slabs of blocks, then whole rows of the next slab, then blocks of its next row.
    const Index slabs = clamped(block_begin(blocks, 0), extent[0]);
    const Index rows = clamped(block_begin(blocks, 1), extent[1]);
    const Index columns = clamped(block_begin(blocks, 2), extent[2]);
    const Index in_slab = block_coordinate(blocks, 0) < layout(0) ? block_extent(blocks, 0) : 0;
    const Index in_row = block_extent(blocks, 1);
    const Index i = coordinate(token, 0);
    const Index j = coordinate(token, 1);
    const Index plane = extent[1] * extent[2];
    const auto in_plane = [&](Index j_end, Index l_end) {  // of the slab that is cut
      const Index cut = clamped(j_end - rows, in_row);
      const Index last = j_end >= rows && j_end < rows + in_row ? clamped(l_end, columns) : 0;
      const Index before = j_end < rows ? l_end : 0;
      return clamped(j_end, rows) * extent[2] + before + cut * columns + last;
    };
    if (i < slabs) return token;
    const Index planes = clamped(i - slabs, in_slab);
    const Index begun = planes < in_slab ? in_plane(j, coordinate(token, 2)) : 0;
    return slabs * plane + planes * in_plane(extent[1], 0) + begun;
  }
  /// Tokens of some blocks.
  MHLA_HOST_DEVICE constexpr Index num_tokens(const BlockRange& range) const {
    const Index all = num_tokens();
    return tokens_before(range.end(), all) - tokens_before(range.first, all);
  }
  /// The box of all tokens.
  constexpr GridBox grid_box() const { return {{0, 0, 0}, {extent[0], extent[1], extent[2]}}; }
  /// The smallest box that holds some blocks: once they differ on an axis, all of later ones.
  constexpr GridBox grid_box(const BlockRange& range) const {
    GridBox box;
    bool apart = false;
    for (int axis = 0; axis < 3 && range.count > 0; ++axis) {
      const Index last = range.end() - 1;
      box.begin[axis] = apart ? 0 : block_begin(range.first, axis);
      box.end[axis] = apart ? extent[axis] : block_begin(last, axis) + block_extent(last, axis);
      apart = apart || block_coordinate(range.first, axis) != block_coordinate(last, axis);
    }
    return box;
  }
  /// The block a token belongs to.
  MHLA_HOST_DEVICE constexpr Index block_of(Index token) const {
    return (coordinate(token, 0) / block[0] * layout(1) + coordinate(token, 1) / block[1]) *
               layout(2) +
           coordinate(token, 2) / block[2];
  }
};

/// Cuts a sequence into blocks of `block` tokens; the number of tokens is the tensor's.
struct Blocks1D {
  static constexpr int rank = 1;  ///< number of axes
  Index block = 0;                ///< tokens of a block; 0: unset

  /// Whether no extent was given.
  MHLA_HOST_DEVICE constexpr bool unset() const { return block == 0; }
  /// The grid of that many tokens.
  MHLA_HOST_DEVICE constexpr Grid grid_of(Index tokens) const {
    return {{1, 1, tokens}, {1, 1, block}};
  }
};

/// Cuts an image of grid[0] x grid[1] tokens (rows, columns) into block[0] x block[1] windows.
struct Blocks2D {
  static constexpr int rank = 2;  ///< number of axes
  Index grid[2] = {0, 0};         ///< tokens: rows, columns
  Index block[2] = {0, 0};        ///< tokens of a block: rows, columns

  /// Whether no extent was given.
  MHLA_HOST_DEVICE constexpr bool unset() const {
    return grid[0] == 0 && grid[1] == 0 && block[0] == 0 && block[1] == 0;
  }
  /// The grid of that many tokens.
  MHLA_HOST_DEVICE constexpr Grid grid_of(Index /*tokens*/) const {
    return {{1, grid[0], grid[1]}, {1, block[0], block[1]}};
  }
};

/// Cuts a video of grid[0] x grid[1] x grid[2] tokens (frames, rows, columns) into boxes.
struct Blocks3D {
  static constexpr int rank = 3;  ///< number of axes
  Index grid[3] = {0, 0, 0};      ///< tokens: frames, rows, columns
  Index block[3] = {0, 0, 0};     ///< tokens of a block: frames, rows, columns

  /// Whether no extent was given.
  MHLA_HOST_DEVICE constexpr bool unset() const {
    return grid[0] == 0 && grid[1] == 0 && grid[2] == 0 && block[0] == 0 && block[1] == 0 &&
           block[2] == 0;
  }
  /// The grid of that many tokens.
  MHLA_HOST_DEVICE constexpr Grid grid_of(Index /*tokens*/) const {
    return {{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}};
  }
};

/// A block geometry: `rank` axes; `unset()` says that no extent was given (for `key_blocks`: as
/// `blocks`); `grid_of(tokens)` is the grid of a sequence, leading axes 1. A geometry of rank 1
/// takes the token count, the others must match it.
template <class G>
concept BlockGeometry = std::is_trivially_copyable_v<G> &&
    requires(const G& geometry, Index tokens) {
  requires G::rank >= 1 && G::rank <= 3;
  { geometry.unset() } -> std::same_as<bool>;
  { geometry.grid_of(tokens) } -> std::same_as<Grid>;
};

/// \cond INTERNAL
// Throws ShapeError unless the grid of a geometry of `rank` axes holds a tensor's `tokens`.
MHLA_ONCE_A_CALL inline void require_grid(const Grid& grid, int rank, Index tokens,
                                          const char* member, const char* tensor) {
  for (int axis = 0; axis < 3 - rank; ++axis)
    if (grid.extent[axis] != 1 || grid.block[axis] != 1)
      throw ShapeError({"mhla: ", member, ": leading axis ", axis, " of the grid has ",
                        grid.extent[axis], " tokens in blocks of ", grid.block[axis],
                        "; a geometry of fewer than 3 axes has 1 in blocks of 1 there"});
  for (int axis = 3 - rank; axis < 3; ++axis) {
    if (grid.block[axis] > 0 && grid.extent[axis] >= 0) continue;
    const char* const at[] = {"[0]", "[1]", "[2]"};
    const char* const which = rank == 1 ? "" : at[axis - 3 + rank];
    if (grid.block[axis] <= 0)
      throw ShapeError({"mhla: ", member, ".block", which, " is ", grid.block[axis],
                        grid.block[axis] == 0 ? " (unset)" : "",
                        "; every block extent must be at least 1"});
    throw ShapeError({"mhla: ", member, ".grid", which, " is ", grid.extent[axis],
                      "; a grid extent cannot be negative"});
  }
  const Index count = checked_mul(checked_mul(grid.extent[0], grid.extent[1]), grid.extent[2]);
  if (count != tokens)
    throw ShapeError({"mhla: ", tensor, ": axis tokens is ", tokens, " but ", member,
                      ".grid holds ", count,
                      "; tokens must lie in raster order of the grid, one per cell"});
}

// The grid of a tensor's `tokens`; throws ShapeError if geometry and tensor do not fit. `member`
// and `tensor` name the arguments in the message.
template <BlockGeometry G>
Grid checked_grid(const G& geometry, Index tokens, const char* member, const char* tensor) {
  const Grid grid = geometry.grid_of(tokens);
  require_grid(grid, G::rank, tokens, member, tensor);
  return grid;
}
/// \endcond

/// \}

MHLA_NAMESPACE_END
