// SPDX-License-Identifier: MIT
// The query side of quadratic_gradient.cuh: dq, and r and c, which the other kernels read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/float_tile.cuh>
#include <mhla/cuda/fused/product.cuh>
#include <mhla/cuda/fused/quadratic.cuh>
#include <mhla/cuda/fused/quadratic_gradient.cuh>
#include <mhla/cuda/fused/tile.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// dq, and r and c of every query: a thread block per tile of queries of one head. The first pass
/// over the keys sums den and s(m P o dP).
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sight sees, bool Divides>
struct QueryPairsGradient {
  using Shapes = PairShapes<KeyDim, ValueDim, Rotates, Divides, sees>;
  static constexpr bool is_twofold = Shapes::is_twofold;
  using FeatureTile = typename Shapes::FeatureTile;
  using ValueTile = typename Shapes::ValueTile;
  using ScoreTile = typename Shapes::ScoreTile;
  static constexpr int threads = Shapes::threads;
  static constexpr int rows = Shapes::rows;
  static constexpr int features_at = Shapes::tiles_at;
  static constexpr int plain_at = features_at + FeatureTile::bytes;
  static constexpr int plain_keys_at = plain_at + Shapes::plain_bytes;
  static constexpr int dy_at = plain_keys_at + Shapes::plain_bytes;
  static constexpr int scores_at = dy_at + ValueTile::bytes;
  static_assert(!is_twofold || ScoreTile::bytes <= 2 * FeatureTile::bytes);
  static constexpr int ring_at = scores_at + ScoreTile::bytes;
  static constexpr int stage_bytes = FeatureTile::bytes + ValueTile::bytes;
  using Gradient = FloatTile<rows, KeyDim>;  // where the ring was
  static constexpr int stages = ring_at + 2 * stage_bytes <= machine::max_shared_bytes ? 2 : 1;
  static constexpr int ring_bytes = std::max(stages * stage_bytes, Gradient::bytes);
  static constexpr int shared_bytes = ring_at + ring_bytes;
  static constexpr int min_blocks_per_sm = 1;
  static_assert(shared_bytes <= machine::max_shared_bytes);
  using Pairs = PairsOfThread<sees, rows, false>;

  PairGradientOperands<T, Map, Rotates> operands;
  float epsilon;
  Tokens<T> dq;
  bool wants_query;  // otherwise only r and c
  Update update;

  MHLA_DEVICE static FeatureTile key_tile(int tile) {
    return {static_cast<Shared>(ring_at + tile % stages * stage_bytes)};
  }
  MHLA_DEVICE static ValueTile value_tile(int tile) {
    return {static_cast<Shared>(ring_at + tile % stages * stage_bytes + FeatureTile::bytes)};
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();  // this is the first kernel of a call
    const PairOperands<T, Map, Rotates>& of = operands.of;
    const BlockTable& table = of.q.x.table;
    const TokenRange xs = of.template query_tile<rows>(block.number);
    const Index kv_head = xs.head / of.sharing.heads;
    const EntryRange seen = keys_seen<sees>(table, of.k.x.table, of.packed, xs.begin, xs.end);
    const int tiles = seen.tiles<rows>();
    const auto ys_of = [&](int tile) {
      return TokenRange{xs.item, kv_head, seen.begin + Index{tile} * rows, seen.end};
    };
    const auto hides = [&](int tile) {
      return hides_some<sees, rows>(of.packed, table, xs.begin, ys_of(tile).begin);
    };

    const FeatureTile features{Shared{features_at}};
    const FeatureTile plain_features{Shared{plain_at}};
    const FeatureTile plain_keys{Shared{plain_keys_at}};
    const ValueTile dy{Shared{dy_at}};
    const ScoreTile weights_tile{Shared{scores_at}};
    const RowBlocks<rows> query_blocks = Shapes::query_blocks();
    const RowBlocks<rows> key_blocks = Shapes::key_blocks();

    if constexpr (Divides) copy_tokens<threads>(block, of.q.x, xs, features);
    copy_tokens<threads>(block, operands.dy, xs, dy);
    query_blocks.look_up(block, table, xs, absent_query);
    const MixingOfHead mixing =
        mixing_of_head<threads>(block, of.mixing, xs.head, Shared{Shapes::mixing_at});
    const auto begin_copy = [&](int tile) {
      copy_tokens<threads>(block, of.k.x, ys_of(tile), key_tile(tile));
      copy_tokens<threads>(block, of.v, ys_of(tile), value_tile(tile));
    };
    const auto landed = [&](int tile, bool is_first) {
      if constexpr (is_twofold) {
        if (is_first) make_plain_features<threads>(block, of.q, xs, features, plain_features);
        make_plain_features<threads>(block, of.k, ys_of(tile), key_tile(tile), plain_keys);
      }
      if (is_first) make_flagged_features<threads>(block, of.q, xs, features, false, Shared{0});
      make_flagged_features<threads>(block, of.k, ys_of(tile), key_tile(tile), hides(tile),
                                     Shapes::flags(0));
      key_blocks.look_up(block, of.k.x.table, ys_of(tile), absent_key);
    };
    const auto look_up = [&](Pairs& pairs, int tile) {
      pairs.look_up(block, mixing, query_blocks, key_blocks,
                    entries_ahead<rows>(xs.begin, ys_of(tile).begin));
    };

    float r[2] = {1, 1};
    float c[2] = {0, 0};
    if constexpr (Divides) {
      float denominator[2] = {0, 0};
      float product[2] = {0, 0};
      for_each_tile<stages>(
          block, tiles, begin_copy, [&](int tile) { landed(tile, tile == 0); },
          [&](int tile) {
            Scores<rows> p, dp;
            multiply_add<T, KeyDim, Stored::straight, Stored::transposed>(block, p, features,
                                                                          key_tile(tile));
            multiply_add<T, ValueDim, Stored::straight, Stored::transposed>(block, dp, dy,
                                                                            value_tile(tile));
            Pairs pairs;
            look_up(pairs, tile);
            Pairs::for_each([&](int half, int n) {
              for (int e = n; e < n + 2; ++e) {
                if (!pairs.counts(half, e)) continue;
                const float score = pairs.weight[half][e] * Pairs::of(p, half, e);
                if constexpr (!is_twofold) denominator[half] += score;
                product[half] += score * Pairs::of(dp, half, e);
              }
            });
            if constexpr (is_twofold) {
              p.clear();
              multiply_add<T, KeyDim, Stored::straight, Stored::transposed>(
                  block, p, plain_features, plain_keys);
              pairs.add_row_sums(p, denominator);
            }
          });
      write_row_sums<rows>(block, denominator, Shapes::sums(0));
      write_row_sums<rows>(block, product, Shapes::sums(1));
      block.sync();
      if (block.thread < rows) {
        const int x = block.thread;
        const float den = row_sum<rows>(Shapes::sums(0), x) + epsilon;
        const bool counts = query_blocks[x].sequence != absent_query && den != 0;
        const float of_row = counts ? 1 / den : 0.0f;
        const float of_sum = counts ? -row_sum<rows>(Shapes::sums(1), x) * of_row * of_row : 0.0f;
        const auto at = static_cast<Shared>(x * 4);
        // Overwrites this row's own sums, which no other thread reads.
        machine::write<float>(Shapes::sums(0) + at, of_row);
        machine::write<float>(Shapes::sums(1) + at, of_sum);
        if (xs.begin + x < xs.end) {
          const Index to = operands.row(xs.item, xs.head, xs.begin + x);
          machine::store_to(operands.weights + to, of_row);
          machine::store_to(operands.sum_weights + to, of_sum);
        }
      }
      if (!wants_query) return;
      block.sync();
      for (int half = 0; half < 2; ++half) {
        const auto at = static_cast<Shared>(Pairs::row_of(block, half) * 4);
        r[half] = machine::read<float>(Shapes::sums(0) + at);
        c[half] = machine::read<float>(Shapes::sums(1) + at);
      }
    }

    typename Shapes::FeatureSum sum;
    typename Shapes::FeatureSum key_sum;  // s(m K), if features are twofold
    for_each_tile<stages>(
        block, tiles, begin_copy, [&](int tile) { landed(tile, false); },
        [&](int tile) {
          Scores<rows> dp;
          multiply_add<T, ValueDim, Stored::straight, Stored::transposed>(block, dp, dy,
                                                                          value_tile(tile));
          Pairs pairs;
          look_up(pairs, tile);
          Pairs::for_each([&](int half, int n) {
            float w[2];
            for (int e = 0; e < 2; ++e)
              w[e] = pairs.counts(half, n + e)
                         ? pairs.weight[half][n + e] * (r[half] * Pairs::of(dp, half, n + e) +
                                                        (is_twofold ? 0.0f : c[half]))
                         : 0.0f;
            machine::write(weights_tile.at(Pairs::row_of(block, half), Pairs::col_of(block, n)),
                           machine::rounded_pair<T>(operands.gradient_scale * w[0],
                                                    operands.gradient_scale * w[1]));
          });
          block.sync();
          const int ahead = entries_ahead<rows>(xs.begin, ys_of(tile).begin);
          add_seen_pairs<T, Shapes::warps>(block, sum, weights_tile, key_tile(tile), hides(tile),
                                           Shapes::flags(0), [&](int x, int y) {
                                             return sees_pair<sees>(query_blocks[x], key_blocks[y],
                                                                    x, y, ahead);
                                           });
          if constexpr (is_twofold)
            add_key_sums(block, pairs, plain_keys, key_sum, hides(tile), ahead);
        });

    block.sync();  // tiles have been read
    copy_tokens<threads>(block, of.q.x, xs, features);
    machine::commit_copies();
    const Gradient gradient{Shared{ring_at}};
    gradient.write(block, sum, 1 / operands.gradient_scale);
    machine::wait_for_copies<0>();
    block.sync();
    if constexpr (is_twofold) {
      turn_back<threads>(block, of.q, xs, gradient);
      block.sync();
      add_sums(block, gradient, key_sum, [](int row) {
        return machine::read<float>(Shapes::sums(1) + static_cast<Shared>(row * 4));
      });
      block.sync();
    }
    unmake_features<threads, Rotates && !is_twofold>(block, of.q, xs, features, gradient);
    block.sync();
    store_tokens<threads>(block, features, dq, xs, update);
  }

 private:
  /// sum += m K with unrotated keys. c multiplies it only at the end: m is the same for all keys of
  /// a block, so that its rounding would not average out; hence it is split into two parts.
  MHLA_DEVICE static void add_key_sums(const Block& block, const Pairs& pairs,
                                       const FeatureTile& plain_keys,
                                       typename Shapes::FeatureSum& sum, bool hides, int ahead) {
    const ScoreTile part{Shared{plain_at}};  // unrotated queries are no longer needed
    MHLA_DEVICE_UNROLL
    for (int n = 0; n < 2; ++n) {
      Pairs::for_each([&](int half, int at) {
        const float w[2] = {pairs.weight[half][at], pairs.weight[half][at + 1]};
        std::uint32_t rounded = machine::rounded_pair<T>(w[0], w[1]);
        if (n == 1)
          rounded = machine::rounded_pair<T>(w[0] - machine::first_of<T>(rounded),
                                             w[1] - machine::second_of<T>(rounded));
        machine::write(part.at(Pairs::row_of(block, half), Pairs::col_of(block, at)), rounded);
      });
      block.sync();
      add_seen_pairs<T, Shapes::warps>(
          block, sum, part, plain_keys, hides, Shapes::flags(0), [&](int x, int y) {
            return sees_pair<sees>(Shapes::query_blocks()[x], Shapes::key_blocks()[y], x, y, ahead);
          });
      block.sync();
    }
  }
};

/// Launches them for `items` items of the batch; PairBytes counts what they move.
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sight sees, bool Divides>
void query_pairs_gradient(
    const CudaDevice& device, Index items,
    const QueryPairsGradient<T, Map, Rotates, KeyDim, ValueDim, sees, Divides>& body) {
  const auto& of = body.operands.of;
  if (Divides || body.wants_query)
    machine::run(device, items * ceil_div(of.query_entries(), Index{body.rows}) * of.heads(), body);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
