// SPDX-License-Identifier: MIT
// How far the items of a padded batch reach, of which a stage (mhla/stages.hpp) has some blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/block_table.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <mhla/policy/block_geometry.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// One side's blocks whose tokens a mask [batch, tokens of `held`] has, and what mask and counts
/// are called.
struct MaskedBlocks {
  const char* mask_name;
  const char* used_name;
  const Grid& grid;
  BlockRange blocks;
  BlockRange held;
  TensorView<const std::uint8_t, 2> mask;
};

/// Calls visit(item, n) where blocks [0, n) of an item are those up to the last with a token that
/// the mask keeps; 0: there is none.
template <class X, class Visit>
void for_each_used(const MaskedBlocks& of, Index batch, Span<X> used, const Visit& visit) {
  TokenMasks::require_fit(of.mask, of.mask_name, batch, of.grid.num_tokens(of.held));
  require_extent(of.used_name, "batch", used.size, batch, "it counts the blocks of every item");
  for (Index item = 0; item < batch; ++item) {
    const Index last = block_table::Builder(1, TilesOf::block, nullptr)
                           .add(of.grid, of.blocks, of.held, of.mask, item);
    visit(item, last == 0 ? 0 : of.blocks.first + last);
  }
}

/// Raises used[item] to what these blocks show.
inline void count_used(const MaskedBlocks& of, Index batch, Span<Index> used) {
  for_each_used(of, batch, used,
                [&](Index item, Index n) { used[item] = (std::max)(used[item], n); });
}

/// Throws ShapeError unless used[item] is at least that.
inline void require_used(const MaskedBlocks& of, Index batch, Span<const Index> used) {
  for_each_used(of, batch, used, [&](Index item, Index n) {
    if (used[item] < n || used[item] > of.grid.num_blocks())
      throw ShapeError({"mhla: ", of.used_name, "[", item, "] is ", used[item],
                        " but must be at least ", n, ", by the mask of blocks [", of.blocks.first,
                        ", ", of.blocks.end(), "), and at most ", of.grid.num_blocks()});
  });
}

}  // namespace cpu

MHLA_NAMESPACE_END
