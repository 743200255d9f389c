// SPDX-License-Identifier: MIT
// The adjoint of attention as pairs of tokens, from q, k, v, mix and dy alone. With P = Q^r K^r^T,
// dP = dY V^T, m the weights of pairs in mix and s their sum over keys:
//
//   den = s(m P) + epsilon   r = 1 / den   c = -s(m P o dP) r^2      (r = 1, c = 0 undivided)
//   dQ^r = W K^r   dK^r = W^T Q^r   dV = (m r P)^T dY                W = m (r dP + c)
//   dm_ib = sum of P (r dP + c) over the tokens of i and b
//
// r dP and c are large and nearly cancel where values have a mean: W is rounded to 16 bits after
// that, times a power of two that keeps it in range. A kernel for each side, which owns what it
// sums up, so that no order is left to chance; r and c go from the queries' to the keys' by memory.
// Where a rotation turns the numerators' features alone, c's parts are sums of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/features.cuh>
#include <mhla/cuda/fused/float_tile.cuh>
#include <mhla/cuda/fused/product.cuh>
#include <mhla/cuda/fused/quadratic.cuh>
#include <mhla/cuda/fused/quadratic.hpp>
#include <mhla/cuda/fused/tile.cuh>
#include <mhla/cuda/fused/token_pairs.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// The gradient of tokens' features to that of the tokens:s phi'(x) o R^T g, or without R where
/// that is done, in place of x, which the tile holds.Threads wait for each other before, and after.
template <int Threads, bool turns_back, class T, class Map, bool Rotates, int Rows, int Dim>
MHLA_DEVICE void unmake_features(const Block& block, const FeatureTokens<T, Map, Rotates>& of,
                                 const TokenRange& range, const Tile<Rows, Dim>& tile,
                                 const FloatTile<Rows, Dim>& gradient) {
  Quads<Dim>::template for_each_row<Threads, Rows>(
      block, of.x.table, range, [&](int row, const Place& place) {
        if (place.token < 0) return;
        [[maybe_unused]] const Angles angles(of.rotation, of.x.table.grid, place.position);
        Quads<Dim>::for_each(block, [&](int n, int) {
          float quad[4];
          gradient.read_quad(row, n, quad);
          if constexpr (turns_back) turn_quad<Dim>(angles, n, Turn::back, quad);
          float x[4];
          read_quad<T>(tile, row, n, x);
          for (int e = 0; e < 4; ++e) quad[e] *= of.scale * of.map.derivative(x[e]);
          write_quad<T>(tile, row, n, quad);
        });
      });
}

/// R^T g of a tile's present tokens, in place, before sums of unrotated features join it. Threads
/// wait for each other before, and after.
template <int Threads, class T, class Map, int Rows, int Dim>
MHLA_DEVICE void turn_back(const Block& block, const FeatureTokens<T, Map, true>& of,
                           const TokenRange& range, const FloatTile<Rows, Dim>& gradient) {
  Quads<Dim>::template for_each_row<Threads, Rows>(
      block, of.x.table, range, [&](int row, const Place& place) {
        if (place.token < 0) return;
        const Angles angles(of.rotation, of.x.table.grid, place.position);
        Quads<Dim>::for_each(block, [&](int n, int) {
          const int col = Quads<Dim>::column(n);
          float quad[4];
          gradient.read_quad(row, n, quad);
          turn_quad<Dim>(angles, n, Turn::back, quad);
          gradient.write_pair(row, col, quad[0], quad[1]);
          gradient.write_pair(row, col + Dim / 2, quad[2], quad[3]);
        });
      });
}
/// Adds sums of products, times factor(row), each thread what it has.
template <int Rows, int Dim, class Sum, class Factor>
MHLA_DEVICE void add_sums(const Block& block, const FloatTile<Rows, Dim>& gradient, Sum& sum,
                          const Factor& factor) {
  using Pair = typename FloatTile<Rows, Dim>::Pair;
  sum.for_each_pair(block, [&](int row, int col, float first, float second) {
    const auto before = machine::read<Pair>(gradient.at(row, col));
    const float times = factor(row);
    gradient.write_pair(row, col, before.first + times * first, before.second + times * second);
  });
}

/// Whether a feature may be an infinity or NaN in T once rotated, which adds up two.
template <class T>
MHLA_DEVICE bool is_large(float feature) {
  constexpr float limit = std::is_same_v<T, BFloat16> ? 1e38f : 3e4f;
  return !(feature <= limit && feature >= -limit);
}
/// What the threads of each warp have found, to `flags`; the warp meets.
MHLA_DEVICE void write_flags(const Block& block, float found, Shared flags) {
  for (int mask = 1; mask < 32; mask *= 2) found += machine::exchange(found, mask);
  if (block.lane() == 0)
    machine::write<float>(flags + static_cast<Shared>(block.warp() * 4), found);
}

/// make_features, and flags for infinities among them.
template <int Threads, class T, class Map, bool Rotates, int Rows, int Dim>
MHLA_DEVICE void make_flagged_features(const Block& block, const FeatureTokens<T, Map, Rotates>& of,
                                       const TokenRange& range, const Tile<Rows, Dim>& tile,
                                       bool wants_flags, Shared flags) {
  float found = 0;
  make_features<Threads>(
      block, of, range, tile, [](int) { return 1.0f; },
      [&](int, int, int, const float(&plain)[4]) {
        for (const float feature : plain)
          if (is_large<T>(feature)) found = 1;
      },
      [](int) {});
  if (wants_flags) write_flags(block, found, flags);
}

/// sum += W V, with `hides` pair by pair where V has infinities.
template <class T, int Warps, int Rows, int N, int WarpsM, int WarpsN, class Counts>
MHLA_DEVICE void add_seen_pairs(const Block& block, Accumulators<Rows, N, WarpsM, WarpsN>& sum,
                                const Tile<Rows, Rows>& weights, const Tile<Rows, N>& values,
                                bool hides, Shared flags, const Counts& counts) {
  if (hides && found_infinities<Warps>(flags)) {
    add_counted_pairs<T>(block, sum, weights, values, counts);
  } else {
    add_pairs<T>(block, sum, weights, values);
  }
}

/// What the kernels of the backward pass have in common.
template <class T, class Map, bool Rotates>
struct PairGradientOperands {
  PairOperands<T, Map, Rotates> of;
  Tokens<const T> dy;
  float* weights;      // r, [batch, heads, query entries]; neither where nothing is divided
  float* sum_weights;  // c
  float gradient_scale;

  MHLA_DEVICE Index row(Index item, Index head, Index entry) const {
    return (item * of.heads() + head) * of.query_entries() + entry;
  }
  /// r and c of a tile of queries to shared memory, 0 where there is none.
  template <int Rows>
  MHLA_DEVICE void read_weights(const Block& block, const TokenRange& xs, Shared r,
                                Shared c) const {
    const int x = block.thread;
    if (x >= Rows) return;
    const bool inside = xs.begin + x < xs.end;
    const Index at = row(xs.item, xs.head, xs.begin + x);
    const auto to = static_cast<Shared>(x * 4);
    machine::write<float>(r + to, inside ? machine::load_from(weights + at) : 0.0f);
    machine::write<float>(c + to, inside ? machine::load_from(sum_weights + at) : 0.0f);
  }
};

/// dq, and r and c of every query: a block of threads for a tile of queries of one head. The first
/// pass over the keys sums up den and s(m P o dP).
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sees sees, bool Divides>
struct QueryPairsGradient {
  static constexpr bool is_twofold = Rotates && Divides;
  static_assert(!is_twofold || sees != Sees::past_tokens,
                "mhla: Causal with MixedKeySum and a rotation has no fused kernels");
  using Shapes = PairShapes<KeyDim, ValueDim, is_twofold>;
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
  static constexpr int stages = ring_at + 2 * stage_bytes <= machine::most_shared_bytes ? 2 : 1;
  static constexpr int ring_bytes = std::max(stages * stage_bytes, Gradient::bytes);
  static constexpr int shared_bytes = ring_at + ring_bytes;
  static constexpr int blocks_of_processor = 1;
  static_assert(shared_bytes <= machine::most_shared_bytes);
  using Pairs = PairsOfThread<sees, rows, false>;

  PairGradientOperands<T, Map, Rotates> operands;
  float epsilon;
  Tokens<T> dq;
  bool wants_query;  // otherwise r and c alone
  Update update;

  MHLA_DEVICE static FeatureTile key_tile(int tile) {
    return {static_cast<Shared>(ring_at + tile % stages * stage_bytes)};
  }
  MHLA_DEVICE static ValueTile value_tile(int tile) {
    return {static_cast<Shared>(ring_at + tile % stages * stage_bytes + FeatureTile::bytes)};
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    const PairOperands<T, Map, Rotates>& of = operands.of;
    const BlockTable& table = of.q.x.table;
    const Index tiles_of_head = ceil_div(of.query_entries(), Index{rows});
    const Index head = block.number % of.heads();
    const Index begin = block.number / of.heads() % tiles_of_head * rows;
    const Index item = block.number / of.heads() / tiles_of_head;
    const Index kv_head = head / of.sharing.heads;
    const Index all = of.query_entries();
    const TokenRange xs{item, head, begin, begin + rows < all ? begin + rows : all};
    const EntryRange seen = keys_seen<sees>(table, of.k.x.table, of.packed, xs.begin, xs.end);
    const int tiles = seen.tiles<rows>();
    const auto ys_of = [&](int tile) {
      return TokenRange{item, kv_head, seen.begin + Index{tile} * rows, seen.end};
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
        mixing_of_head<threads>(block, of.mixing, head, Shared{Shapes::mixing_at});
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
        // Over this row's own sums, which nobody else reads.
        machine::write<float>(Shapes::sums(0) + at, of_row);
        machine::write<float>(Shapes::sums(1) + at, of_sum);
        if (xs.begin + x < xs.end) {
          const Index to = operands.row(item, head, xs.begin + x);
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
    typename Shapes::FeatureSum key_sum;  // s(m K), where features are twofold
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
  /// a block, so that its rounding would not average out, and it comes in two parts.
  MHLA_DEVICE static void add_key_sums(const Block& block, const Pairs& pairs,
                                       const FeatureTile& plain_keys,
                                       typename Shapes::FeatureSum& sum, bool hides, int ahead) {
    const ScoreTile part{Shared{plain_at}};  // unrotated queries are not needed any more
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

/// dk and dv: a block of threads for a tile of keys of a kv head, which goes through the queries
/// that see them, of all heads that share it.
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sees sees, bool Divides>
struct KeyPairsGradient {
  static constexpr bool is_twofold = Rotates && Divides;
  static_assert(!is_twofold || sees != Sees::past_tokens,
                "mhla: Causal with MixedKeySum and a rotation has no fused kernels");
  using Shapes = PairShapes<KeyDim, ValueDim, is_twofold>;
  using FeatureTile = typename Shapes::FeatureTile;
  using ValueTile = typename Shapes::ValueTile;
  using ScoreTile = typename Shapes::ScoreTile;
  static constexpr int threads = Shapes::threads;
  static constexpr int rows = Shapes::rows;
  static constexpr int features_at = Shapes::tiles_at;
  static constexpr int values_at = features_at + FeatureTile::bytes;
  static constexpr int scores_at = values_at + ValueTile::bytes;
  static constexpr int plain_at = scores_at + (is_twofold ? 3 : 2) * ScoreTile::bytes;
  static constexpr int ring_at = plain_at + Shapes::plain_bytes;
  static constexpr int stage_bytes = FeatureTile::bytes + ValueTile::bytes;
  using Gradient = FloatTile<rows, KeyDim>;  // where the ring was
  static constexpr int stages = ring_at + 2 * stage_bytes <= machine::most_shared_bytes ? 2 : 1;
  static constexpr int ring_bytes = std::max(stages * stage_bytes, Gradient::bytes);
  static constexpr int shared_bytes = ring_at + ring_bytes;
  static constexpr int blocks_of_processor = 1;
  static_assert(shared_bytes <= machine::most_shared_bytes);
  using Pairs = PairsOfThread<sees, rows, true>;

  PairGradientOperands<T, Map, Rotates> operands;
  Tokens<T> dk;
  bool wants_key;
  Tokens<T> dv;
  bool wants_value;
  Update update;

  MHLA_DEVICE static FeatureTile query_tile(int tile) {
    return {static_cast<Shared>(ring_at + tile % stages * stage_bytes)};
  }
  MHLA_DEVICE static ValueTile dy_tile(int tile) {
    return {static_cast<Shared>(ring_at + tile % stages * stage_bytes + FeatureTile::bytes)};
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    const PairOperands<T, Map, Rotates>& of = operands.of;
    const BlockTable& table = of.k.x.table;
    const Index tiles_of_keys = ceil_div(of.key_entries(), Index{rows});
    const Index kv_head = block.number % of.sharing.kv_heads;
    const Index begin = block.number / of.sharing.kv_heads % tiles_of_keys * rows;
    const Index item = block.number / of.sharing.kv_heads / tiles_of_keys;
    const Index all = of.key_entries();
    const TokenRange ys{item, kv_head, begin, begin + rows < all ? begin + rows : all};
    const EntryRange seeing =
        queries_that_see<sees>(of.q.x.table, table, of.packed, ys.begin, ys.end);
    const int tiles_of_head = seeing.tiles<rows>();
    const auto xs_of = [&](int tile) {
      return TokenRange{item, kv_head * of.sharing.heads + tile / tiles_of_head,
                        seeing.begin + Index{tile % tiles_of_head} * rows, seeing.end};
    };
    const auto hides = [&](int tile) {
      return hides_some<sees, rows>(of.packed, table, xs_of(tile).begin, ys.begin);
    };

    const FeatureTile features{Shared{features_at}};
    const ValueTile values{Shared{values_at}};
    const ScoreTile of_features{Shared{scores_at}};
    const ScoreTile of_values{static_cast<Shared>(scores_at + ScoreTile::bytes)};
    const ScoreTile of_plain{static_cast<Shared>(scores_at + 2 * ScoreTile::bytes)};
    const FeatureTile plain_queries{Shared{plain_at}};
    const RowBlocks<rows> query_blocks = Shapes::query_blocks();
    const RowBlocks<rows> key_blocks = Shapes::key_blocks();

    copy_tokens<threads>(block, of.k.x, ys, features);
    copy_tokens<threads>(block, of.v, ys, values);
    key_blocks.look_up(block, table, ys, absent_key);
    MixingOfHead mixing{};
    typename Shapes::FeatureSum feature_sum;
    typename Shapes::FeatureSum plain_sum;  // of unrotated queries, where features are twofold
    typename Shapes::ValueSum value_sum;
    for_each_tile<stages>(
        block, tiles_of_head * static_cast<int>(of.sharing.heads),
        [&](int tile) {
          copy_tokens<threads>(block, of.q.x, xs_of(tile), query_tile(tile));
          copy_tokens<threads>(block, operands.dy, xs_of(tile), dy_tile(tile));
        },
        [&](int tile) {
          const TokenRange xs = xs_of(tile);
          if (tile == 0)
            make_flagged_features<threads>(block, of.k, ys, features, false, Shared{0});
          if constexpr (is_twofold)
            make_plain_features<threads>(block, of.q, xs, query_tile(tile), plain_queries);
          make_flagged_features<threads>(block, of.q, xs, query_tile(tile), hides(tile),
                                         Shapes::flags(0));
          if (hides(tile))
            look_for_infinities<threads>(block, dy_tile(tile), exponent_bits<T>, Shapes::flags(1));
          query_blocks.look_up(block, of.q.x.table, xs, absent_query);
          if (tile % tiles_of_head == 0)
            mixing = mixing_of_head<threads>(block, of.mixing, xs.head, Shared{Shapes::mixing_at});
          if constexpr (Divides)
            operands.template read_weights<rows>(block, xs, Shapes::sums(0), Shapes::sums(1));
        },
        [&](int tile) {
          const int ahead = entries_ahead<rows>(xs_of(tile).begin, ys.begin);
          Pairs pairs;
          pairs.look_up(block, mixing, query_blocks, key_blocks, ahead);
          const auto write = [&](const ScoreTile& to, Scores<rows>& scores, const auto& weight) {
            Pairs::for_each([&](int half, int n) {
              float w[2];
              for (int e = 0; e < 2; ++e) {
                const auto x = static_cast<Shared>(Pairs::col_of(block, n + e) * 4);
                w[e] = pairs.counts(half, n + e)
                           ? pairs.weight[half][n + e] * weight(x, Pairs::of(scores, half, n + e))
                           : 0.0f;
              }
              machine::write(to.at(Pairs::row_of(block, half), Pairs::col_of(block, n)),
                             machine::rounded_pair<T>(operands.gradient_scale * w[0],
                                                      operands.gradient_scale * w[1]));
            });
          };
          if (wants_value) {
            Scores<rows> p;
            multiply_add<T, KeyDim, Stored::straight, Stored::transposed>(block, p, features,
                                                                          query_tile(tile));
            write(of_values, p, [&](Shared x, float score) {
              return Divides ? machine::read<float>(Shapes::sums(0) + x) * score : score;
            });
          }
          if (wants_key) {
            Scores<rows> dp;
            multiply_add<T, ValueDim, Stored::straight, Stored::transposed>(block, dp, values,
                                                                            dy_tile(tile));
            write(of_features, dp, [&]([[maybe_unused]] Shared x, float product) {
              if constexpr (Divides) {
                const float r = machine::read<float>(Shapes::sums(0) + x);
                const float c = machine::read<float>(Shapes::sums(1) + x);
                return is_twofold ? r * product : r * product + c;
              } else {
                return product;
              }
            });
            if constexpr (is_twofold)
              write(of_plain, dp,
                    [&](Shared x, float) { return machine::read<float>(Shapes::sums(1) + x); });
          }
          block.sync();
          const auto counts = [&](int y, int x) {
            return sees_pair<sees>(query_blocks[x], key_blocks[y], x, y, ahead);
          };
          if (wants_value)
            add_seen_pairs<T, Shapes::warps>(block, value_sum, of_values, dy_tile(tile),
                                             hides(tile), Shapes::flags(1), counts);
          if (wants_key)
            add_seen_pairs<T, Shapes::warps>(block, feature_sum, of_features, query_tile(tile),
                                             hides(tile), Shapes::flags(0), counts);
          if constexpr (is_twofold)
            if (wants_key)
              add_seen_pairs<T, Shapes::warps>(block, plain_sum, of_plain, plain_queries,
                                               hides(tile), Shapes::flags(0), counts);
        });

    block.sync();  // tiles have been read
    const float unscale = 1 / operands.gradient_scale;
    if (wants_value)
      value_sum.for_each_pair(block, [&](int row, int col, float first, float second) {
        machine::write(values.at(row, col),
                       machine::rounded_pair<T>(unscale * first, unscale * second));
      });
    const Gradient gradient{Shared{ring_at}};
    if (wants_key) {
      copy_tokens<threads>(block, of.k.x, ys, features);
      machine::commit_copies();
      gradient.write(block, feature_sum, unscale);
      machine::wait_for_copies<0>();
    }
    block.sync();
    if (wants_value) store_tokens<threads>(block, values, dv, ys, update);
    if (!wants_key) return;
    if constexpr (is_twofold) {
      turn_back<threads>(block, of.k, ys, gradient);
      block.sync();
      add_sums(block, gradient, plain_sum, [&](int) { return unscale; });
      block.sync();
    }
    unmake_features<threads, Rotates && !is_twofold>(block, of.k, ys, features, gradient);
    block.sync();
    store_tokens<threads>(block, features, dk, ys, update);
  }
};

/// Parts of dmix: a block of threads for as many whole blocks of either side as a tile has room
/// for, of one unit and matrix, over all its heads and, where the batch is packed, sequences.
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sees sees, bool Divides>
struct MixingPairsGradient {
  static constexpr bool is_twofold = Rotates && Divides;
  static_assert(!is_twofold || sees != Sees::past_tokens,
                "mhla: Causal with MixedKeySum and a rotation has no fused kernels");
  using Shapes = PairShapes<KeyDim, ValueDim, is_twofold>;
  using FeatureTile = typename Shapes::FeatureTile;
  using ValueTile = typename Shapes::ValueTile;
  static constexpr int threads = Shapes::threads;
  static constexpr int rows = Shapes::rows;
  static constexpr int queries_at = Shapes::tiles_at;
  static constexpr int keys_at = queries_at + FeatureTile::bytes;
  static constexpr int dy_at = keys_at + FeatureTile::bytes;
  static constexpr int values_at = dy_at + ValueTile::bytes;
  using Products = FloatTile<rows, rows>;  // where the tiles were
  static constexpr int plain_queries_at = values_at + ValueTile::bytes;
  static constexpr int plain_keys_at = plain_queries_at + Shapes::plain_bytes;
  static constexpr int shared_bytes =
      std::max(plain_keys_at + Shapes::plain_bytes, Shapes::tiles_at + 2 * Products::bytes);
  static constexpr int blocks_of_processor = 1;
  static_assert(shared_bytes <= machine::most_shared_bytes);
  using Pairs = PairsOfThread<sees, rows, false>;

  PairGradientOperands<T, Map, Rotates> operands;
  float* parts;  // [units, matrices, mix rows, mix columns]; of pairs nobody sees, left alone

  /// Whole blocks of a tile, and tiles of a longer block.
  MHLA_HOST_DEVICE static Index blocks_of_tile(const BlockTable& table) {
    return table.block_tokens < rows ? rows / table.block_tokens : 1;
  }
  MHLA_HOST_DEVICE static Index tiles_of_block(const BlockTable& table) {
    return ceil_div(table.block_tokens, Index{rows});
  }
  MHLA_HOST_DEVICE Index row_groups() const {
    return ceil_div(operands.of.mixing.rows, blocks_of_tile(operands.of.q.x.table));
  }
  MHLA_HOST_DEVICE Index column_groups() const {
    return ceil_div(operands.of.mixing.columns, blocks_of_tile(operands.of.k.x.table));
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    const PairOperands<T, Map, Rotates>& of = operands.of;
    const Sharing& sharing = of.sharing;
    const BlockTable& queries = of.q.x.table;
    const BlockTable& keys = of.k.x.table;
    const Index kv_head = block.number % sharing.kv_heads;
    const Index matrix = block.number / sharing.kv_heads % sharing.matrices;
    const Index group = block.number / sharing.kv_heads / sharing.matrices;
    const Index first_column = group % column_groups() * blocks_of_tile(keys);
    const Index first_row = group / column_groups() % row_groups() * blocks_of_tile(queries);
    const Index item = group / column_groups() / row_groups();
    const Index end_row = least(first_row + blocks_of_tile(queries), of.mixing.rows);
    const Index end_column = least(first_column + blocks_of_tile(keys), of.mixing.columns);
    if (sees != Sees::all && first_column >= end_row) return;

    // This thread's pairs of the tile, over all tiles.
    float sum[2][std::size_t{Pairs::cols}] = {};
    if (of.packed) {
      for (Index b = 0; b < queries.blocks; ++b) {
        if (machine::load_from(queries.mix_rows.data + b) != first_row) continue;
        const Index first = b - first_row;
        const Index end = end_of_sequence(queries, first);
        if (first + first_column >= end) continue;
        add_heads(block, item, kv_head, matrix, b, least(first + end_row, end),
                  first + first_column, least(first + end_column, end), sum);
      }
    } else {
      add_heads(block, item, kv_head, matrix, first_row, end_row, first_column, end_column, sum);
    }

    // Sums over the pairs of two blocks, in one order: along each row, then of the rows.
    block.sync();  // tiles have been read
    const Products products{Shared{Shapes::tiles_at}};
    const Products of_rows{static_cast<Shared>(Shapes::tiles_at + Products::bytes)};
    Pairs::for_each([&](int half, int n) {
      products.write_pair(Pairs::row_of(block, half), Pairs::col_of(block, n), sum[half][n],
                          sum[half][n + 1]);
    });
    block.sync();
    const int row_length = static_cast<int>(least(queries.block_tokens, rows));
    const int column_length = static_cast<int>(least(keys.block_tokens, rows));
    const int block_rows = static_cast<int>(end_row - first_row);
    const int block_columns = static_cast<int>(end_column - first_column);
    for (int at = block.thread; at < rows * block_columns; at += threads) {
      const int row = at / block_columns;
      const int column = at % block_columns;
      float of_row = 0;
      for (int n = 0; n < column_length; ++n)
        of_row += machine::read<float>(products.at(row, column * column_length + n));
      machine::write<float>(of_rows.at(row, column), of_row);
    }
    block.sync();
    const Index unit = item * sharing.kv_heads + kv_head;
    const Index first = (unit * sharing.matrices + matrix) * of.mixing.rows;
    for (int at = block.thread; at < block_rows * block_columns; at += threads) {
      const int row = at / block_columns;
      const int column = at % block_columns;
      if (sees != Sees::all && first_column + column > first_row + row) continue;
      float of_blocks = 0;
      for (int n = 0; n < row_length; ++n)
        of_blocks += machine::read<float>(of_rows.at(row * row_length + n, column));
      machine::store_to(
          parts + (first + first_row + row) * of.mixing.columns + first_column + column, of_blocks);
    }
  }

 private:
  MHLA_DEVICE static Index least(Index a, Index b) { return a < b ? a : b; }

  /// Adds the pairs of query blocks and key blocks, of every head of a matrix.
  MHLA_DEVICE void add_heads(const Block& block, Index item, Index kv_head, Index matrix,
                             Index first_row, Index end_row, Index first_column, Index end_column,
                             float (&sum)[2][std::size_t{Pairs::cols}]) const {
    const PairOperands<T, Map, Rotates>& of = operands.of;
    const Index heads = of.sharing.heads_of_matrix();
    const Index row_end = end_row * of.q.x.table.block_tokens;
    const Index column_end = end_column * of.k.x.table.block_tokens;
    for (Index h = 0; h < heads; ++h)
      for (Index x = first_row * of.q.x.table.block_tokens; x < row_end; x += rows)
        for (Index y = first_column * of.k.x.table.block_tokens; y < column_end; y += rows) {
          if (sees == Sees::past_tokens && y >= least(x + rows, row_end)) break;
          add_tile(
              block,
              {item, kv_head * of.sharing.heads + matrix * heads + h, x, least(x + rows, row_end)},
              {item, kv_head, y, least(y + rows, column_end)}, sum);
        }
  }

  MHLA_DEVICE void add_tile(const Block& block, const TokenRange& xs, const TokenRange& ys,
                            float (&sum)[2][std::size_t{Pairs::cols}]) const {
    const PairOperands<T, Map, Rotates>& of = operands.of;
    const FeatureTile query_tile{Shared{queries_at}};
    const FeatureTile key_tile{Shared{keys_at}};
    const ValueTile dy_tile{Shared{dy_at}};
    const ValueTile value_tile{Shared{values_at}};
    const RowBlocks<rows> query_blocks = Shapes::query_blocks();
    const RowBlocks<rows> key_blocks = Shapes::key_blocks();
    block.sync();  // the tiles before have been read
    copy_tokens<threads>(block, of.q.x, xs, query_tile);
    copy_tokens<threads>(block, of.k.x, ys, key_tile);
    copy_tokens<threads>(block, operands.dy, xs, dy_tile);
    copy_tokens<threads>(block, of.v, ys, value_tile);
    machine::commit_copies();
    query_blocks.look_up(block, of.q.x.table, xs, absent_query);
    key_blocks.look_up(block, of.k.x.table, ys, absent_key);
    if constexpr (Divides)
      operands.template read_weights<rows>(block, xs, Shapes::sums(0), Shapes::sums(1));
    machine::wait_for_copies<0>();
    block.sync();
    const FeatureTile plain_queries{Shared{plain_queries_at}};
    const FeatureTile plain_keys{Shared{plain_keys_at}};
    if constexpr (is_twofold) {
      make_plain_features<threads>(block, of.q, xs, query_tile, plain_queries);
      make_plain_features<threads>(block, of.k, ys, key_tile, plain_keys);
    }
    make_flagged_features<threads>(block, of.q, xs, query_tile, false, Shared{0});
    make_flagged_features<threads>(block, of.k, ys, key_tile, false, Shared{0});
    block.sync();
    Scores<rows> p, dp;
    multiply_add<T, KeyDim, Stored::straight, Stored::transposed>(block, p, query_tile, key_tile);
    multiply_add<T, ValueDim, Stored::straight, Stored::transposed>(block, dp, dy_tile, value_tile);
    RowBlock of_row[2];
    float r[2] = {1, 1};
    float c[2] = {0, 0};
    for (int half = 0; half < 2; ++half) {
      const int x = Pairs::row_of(block, half);
      of_row[half] = query_blocks[x];
      if constexpr (Divides) {
        r[half] = machine::read<float>(Shapes::sums(0) + static_cast<Shared>(x * 4));
        c[half] = machine::read<float>(Shapes::sums(1) + static_cast<Shared>(x * 4));
      }
    }
    const int ahead = entries_ahead<rows>(xs.begin, ys.begin);
    const auto add = [&](const auto& product) {
      Pairs::for_each([&](int half, int n) {
        for (int e = n; e < n + 2; ++e) {
          const int y = Pairs::col_of(block, e);
          if (sees_pair<sees>(of_row[half], key_blocks[y], Pairs::row_of(block, half), y, ahead))
            sum[half][e] += product(half, e);
        }
      });
    };
    add([&](int half, int e) {
      return Pairs::of(p, half, e) *
             (r[half] * Pairs::of(dp, half, e) + (is_twofold ? 0.0f : c[half]));
    });
    if constexpr (is_twofold) {
      p.clear();
      multiply_add<T, KeyDim, Stored::straight, Stored::transposed>(block, p, plain_queries,
                                                                    plain_keys);
      add([&](int half, int e) { return Pairs::of(p, half, e) * c[half]; });
    }
  }
};

/// Launched for `items` items of the batch; PairBytes says what they move.
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sees sees, bool Divides>
void query_pairs_gradient(
    const CudaDevice& device, Index items,
    const QueryPairsGradient<T, Map, Rotates, KeyDim, ValueDim, sees, Divides>& body) {
  const auto& of = body.operands.of;
  if (Divides || body.wants_query)
    machine::run(device, items * ceil_div(of.query_entries(), Index{body.rows}) * of.heads(), body);
}
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sees sees, bool Divides>
void key_pairs_gradient(
    const CudaDevice& device, Index items,
    const KeyPairsGradient<T, Map, Rotates, KeyDim, ValueDim, sees, Divides>& body) {
  const auto& of = body.operands.of;
  if (body.wants_key || body.wants_value)
    machine::run(device, items * ceil_div(of.key_entries(), Index{body.rows}) * of.sharing.kv_heads,
                 body);
}
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sees sees, bool Divides>
void mixing_pairs_gradient(
    const CudaDevice& device, Index items,
    const MixingPairsGradient<T, Map, Rotates, KeyDim, ValueDim, sees, Divides>& body) {
  const Sharing& sharing = body.operands.of.sharing;
  if (body.operands.of.mixing.rows == 0 || body.operands.of.mixing.columns == 0) return;
  machine::run(
      device,
      items * body.row_groups() * body.column_groups() * sharing.matrices * sharing.kv_heads, body);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
