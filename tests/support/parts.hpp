// SPDX-License-Identifier: MIT
// Parts of a sequence: some of its blocks, and some tokens of a tensor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <vector>

namespace parts {

using mhla::BlockRange;
using mhla::Index;
using mhla::testing::HostTensor;

/// Blocks [0, blocks) cut at random multiples of `unit`; some parts are empty.
inline std::vector<BlockRange> random_parts(Index blocks, Index count, std::uint64_t seed,
                                            Index unit = 1) {
  std::vector<Index> cuts{0, blocks};
  for (Index i = 1; i < count; ++i) {
    const auto at = static_cast<std::uint64_t>(i);
    cuts.push_back(mhla::testing::random_index(seed, at, blocks + 1) / unit * unit);
  }
  std::sort(cuts.begin(), cuts.end());
  std::vector<BlockRange> ranges;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
    ranges.push_back({cuts[i], cuts[i + 1] - cuts[i]});
  return ranges;
}

/// Only the given tokens.
template <class T>
HostTensor<T, 4> taken(const HostTensor<T, 4>& x, const std::vector<Index>& tokens) {
  HostTensor<T, 4> part(x.extent(0), x.extent(1), static_cast<Index>(tokens.size()), x.extent(3));
  for (Index n = 0; n < x.extent(0); ++n)
    for (Index h = 0; h < x.extent(1); ++h)
      for (Index t = 0; t < part.extent(2); ++t)
        for (Index c = 0; c < x.extent(3); ++c)
          part(n, h, t, c) = x(n, h, tokens[static_cast<std::size_t>(t)], c);
  return part;
}

/// Puts the tokens taken out of `to` back.
template <class T>
void put_back(const HostTensor<T, 4>& x, const std::vector<Index>& tokens, HostTensor<T, 4>& to) {
  for (Index n = 0; n < x.extent(0); ++n)
    for (Index h = 0; h < x.extent(1); ++h)
      for (Index t = 0; t < x.extent(2); ++t)
        for (Index c = 0; c < x.extent(3); ++c)
          to(n, h, tokens[static_cast<std::size_t>(t)], c) = x(n, h, t, c);
}

}  // namespace parts
