// SPDX-License-Identifier: MIT
// Tokens of blocks, and tensors whose tokens are taken out or put in another order.
#pragma once

#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/laws/harness/random_case.hpp"
#include "tests/support/parts.hpp"

namespace laws {

using parts::put_back;
using parts::taken;

/// token[t] is where token t goes, or comes from, as the user says.
using Order = std::vector<Index>;

/// The tokens of a block in raster order.
inline Order tokens_of_block(const Grid& grid, Index block) {
  Order tokens;
  for (Index t = 0; t < grid.num_tokens(); ++t)
    if (grid.block_of(t) == block) tokens.push_back(t);
  return tokens;
}

/// A random order of 0, 1, ..., count - 1.
inline Order random_order(Index count, Draw& draw) {
  Order order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), Index{0});
  for (Index i = count - 1; i > 0; --i)
    std::swap(order[static_cast<std::size_t>(i)],
              order[static_cast<std::size_t>(draw.between(0, i))]);
  return order;
}

/// Tokens change places inside their blocks only: order[t] is in t's block.
inline Order order_inside_blocks(const Grid& grid, Draw& draw) {
  Order order(static_cast<std::size_t>(grid.num_tokens()));
  for (Index b = 0; b < grid.num_blocks(); ++b) {
    const Order tokens = tokens_of_block(grid, b);
    const Order shuffled = random_order(static_cast<Index>(tokens.size()), draw);
    for (std::size_t i = 0; i < tokens.size(); ++i)
      order[static_cast<std::size_t>(tokens[i])] = tokens[static_cast<std::size_t>(shuffled[i])];
  }
  return order;
}

/// Whole blocks, all of one size, change places: the token at offset p of block b goes to offset
/// offsets[p] of block blocks[b].
inline Order order_of_blocks(const Grid& grid, const Order& blocks, const Order& offsets) {
  Order order(static_cast<std::size_t>(grid.num_tokens()));
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const Order from = tokens_of_block(grid, static_cast<Index>(b));
    const Order to = tokens_of_block(grid, blocks[b]);
    for (std::size_t p = 0; p < from.size(); ++p)
      order[static_cast<std::size_t>(from[p])] = to[static_cast<std::size_t>(offsets[p])];
  }
  return order;
}

/// 0, 1, ..., count - 1.
inline Order same_order(Index count) {
  Order order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), Index{0});
  return order;
}

/// result(.., order[t], ..) = x(.., t, ..)
template <class T>
HostTensor<T, 4> moved(const HostTensor<T, 4>& x, const Order& order) {
  auto result = HostTensor<T, 4>::like(x.view());
  for (Index n = 0; n < x.extent(0); ++n)
    for (Index h = 0; h < x.extent(1); ++h)
      for (Index t = 0; t < x.extent(2); ++t)
        for (Index c = 0; c < x.extent(3); ++c)
          result(n, h, order[static_cast<std::size_t>(t)], c) = x(n, h, t, c);
  return result;
}

/// result(h, rows[i], columns[b]) = mix(h, i, b); what lies outside the layout stays.
template <class T>
HostTensor<T, 3> moved(const HostTensor<T, 3>& mix, const Order& rows, const Order& columns) {
  HostTensor<T, 3> result = mix;
  for (Index h = 0; h < mix.extent(0); ++h)
    for (std::size_t i = 0; i < rows.size(); ++i)
      for (std::size_t b = 0; b < columns.size(); ++b)
        result(h, rows[i], columns[b]) = mix(h, static_cast<Index>(i), static_cast<Index>(b));
  return result;
}

}  // namespace laws
