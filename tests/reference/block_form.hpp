// SPDX-License-Identifier: MIT
// Attention a second time, for one head, in the paper's block form (arXiv 2601.07832, eq. 3 and 4),
// with block numbers, positions and rotations found by loops of its own: what the token-level
// oracle is compared with where no other program's numbers exist.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

namespace block_form {

using Row = std::vector<double>;
using Rows = std::vector<Row>;
using Position = std::array<std::size_t, 3>;

enum class Visible { every_block, earlier_and_own_block, earlier_blocks_and_own_up_to_token };
enum class Denominator { mixed_key_sum, mixed_product, one };
enum class Turn { none, half_split, axial };

/// One side's tokens: `axes` extents with block extents, 1 on the axes that are not used.
struct Side {
  Position extent;
  Position block;

  std::size_t tokens() const { return extent[0] * extent[1] * extent[2]; }

  /// The tokens of every block, block by block.
  std::vector<std::vector<std::size_t>> blocks() const {
    std::vector<std::vector<std::size_t>> result;
    for (std::size_t f = 0; f < extent[0]; f += block[0])
      for (std::size_t h = 0; h < extent[1]; h += block[1])
        for (std::size_t w = 0; w < extent[2]; w += block[2]) {
          result.emplace_back();
          for (std::size_t token = 0; token < tokens(); ++token) {
            const Position at = position(token);
            if (at[0] >= f && at[0] < f + block[0] && at[1] >= h && at[1] < h + block[1] &&
                at[2] >= w && at[2] < w + block[2])
              result.back().push_back(token);
          }
        }
    return result;
  }

  Position position(std::size_t token) const {
    std::size_t number = 0;
    for (std::size_t f = 0; f < extent[0]; ++f)
      for (std::size_t h = 0; h < extent[1]; ++h)
        for (std::size_t w = 0; w < extent[2]; ++w)
          if (number++ == token) return {f, h, w};
    return {};
  }
};

struct Call {
  int axes;  ///< 1, 2 or 3
  Side query_side, key_side;
  Rows query, key, value;  ///< features phi(q), phi(k), and v  // [tokens, dim]
  Rows mix;
  Visible visible;
  Denominator denominator;
  double epsilon;
  Turn turn;
  double theta;
  double scale;
};

inline double dot(const Row& x, const Row& y) {
  double sum = 0;
  for (std::size_t c = 0; c < x.size(); ++c) sum += x[c] * y[c];
  return sum;
}

/// (x_a, x_b) turned by the angle.
inline void turn_pair(Row& x, std::size_t a, std::size_t b, double angle) {
  const double before = x[a];
  x[a] = before * std::cos(angle) - x[b] * std::sin(angle);
  x[b] = before * std::sin(angle) + x[b] * std::cos(angle);
}

inline Row turned(const Call& call, Row x, const Position& position) {
  const std::size_t pairs = x.size() / 2;
  if (call.turn == Turn::half_split)
    for (std::size_t c = 0; c < pairs; ++c)
      turn_pair(
          x, c, c + pairs,
          static_cast<double>(position[2]) *
              std::pow(call.theta, -2.0 * static_cast<double>(c) / static_cast<double>(x.size())));
  if (call.turn == Turn::axial) {
    std::vector<std::size_t> share{pairs};
    if (call.axes == 2) share = {pairs - pairs / 2, pairs / 2};
    if (call.axes == 3) share = {pairs - 2 * (pairs / 3), pairs / 3, pairs / 3};
    std::size_t pair = 0;
    for (std::size_t axis = 0; axis < share.size(); ++axis)
      for (std::size_t j = 0; j < share[axis]; ++j, ++pair)
        turn_pair(
            x, 2 * pair, 2 * pair + 1,
            static_cast<double>(position[3 - share.size() + axis]) *
                std::pow(call.theta, -static_cast<double>(j) / static_cast<double>(share[axis])));
  }
  return x;
}

/// y [query tokens, value_dim]
inline Rows output(const Call& call) {
  const auto query_blocks = call.query_side.blocks();
  const auto key_blocks = call.key_side.blocks();
  const std::size_t features = call.query[0].size();
  const std::size_t value_dim = call.value[0].size();

  // S_b = sum (R k_j) v_j^T and z_b = sum k_j over part of a block.
  const auto add_key = [&](std::size_t j, double weight, Rows& s, Row& z) {
    const Row k = turned(call, call.key[j], call.key_side.position(j));
    for (std::size_t c = 0; c < features; ++c) {
      z[c] += weight * call.key[j][c];
      for (std::size_t e = 0; e < value_dim; ++e) s[c][e] += weight * k[c] * call.value[j][e];
    }
  };

  Rows y(call.query_side.tokens(), Row(value_dim));
  for (std::size_t i = 0; i < query_blocks.size(); ++i)
    for (std::size_t p = 0; p < query_blocks[i].size(); ++p) {
      const std::size_t t = query_blocks[i][p];
      Rows mixed_s(features, Row(value_dim));
      Row mixed_z(features);
      double mixed_product = 0;
      for (std::size_t b = 0; b < key_blocks.size(); ++b) {
        if (call.visible != Visible::every_block && b > i) continue;
        Rows s(features, Row(value_dim));
        Row z(features);
        for (const std::size_t j : key_blocks[b])
          if (call.visible != Visible::earlier_blocks_and_own_up_to_token || b < i || j <= t)
            add_key(j, 1, s, z);
        for (std::size_t c = 0; c < features; ++c) {
          mixed_z[c] += call.mix[i][b] * z[c];
          for (std::size_t e = 0; e < value_dim; ++e) mixed_s[c][e] += call.mix[i][b] * s[c][e];
        }
        if (call.denominator == Denominator::mixed_product)
          mixed_product += call.mix[i][b] * dot(call.query[query_blocks[b][p]], z);
      }
      const Row q = turned(call, call.query[t], call.query_side.position(t));
      double den = 1;
      if (call.denominator == Denominator::mixed_key_sum)
        den = call.scale * dot(call.query[t], mixed_z) + call.epsilon;
      if (call.denominator == Denominator::mixed_product)
        den = call.scale * mixed_product + call.epsilon;
      for (std::size_t e = 0; e < value_dim; ++e) {
        double num = 0;
        for (std::size_t c = 0; c < features; ++c) num += q[c] * mixed_s[c][e];
        y[t][e] = call.scale * num / den;
      }
    }
  return y;
}

}  // namespace block_form
