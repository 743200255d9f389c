// SPDX-License-Identifier: MIT
// The key side of quadratic_gradient.cuh: dk and dv, with r and c of the queries.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/float_tile.cuh>
#include <mhla/cuda/fused/product.cuh>
#include <mhla/cuda/fused/quadratic.cuh>
#include <mhla/cuda/fused/quadratic_gradient.cuh>
#include <mhla/cuda/fused/tile.cuh>
#include <mhla/cuda/fused/token_pairs.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// dk and dv: a thread block per tile of keys of a kv head, which loops over the queries that see
/// them, of all heads that share it.
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sight sees, bool Divides>
struct KeyPairsGradient {
  using Shapes = PairShapes<KeyDim, ValueDim, Rotates, Divides, sees>;
  static constexpr bool is_twofold = Shapes::is_twofold;
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
  static constexpr int stages = ring_at + 2 * stage_bytes <= machine::max_shared_bytes ? 2 : 1;
  static constexpr int ring_bytes = std::max(stages * stage_bytes, Gradient::bytes);
  static constexpr int shared_bytes = ring_at + ring_bytes;
  static constexpr int min_blocks_per_sm = 1;
  static_assert(shared_bytes <= machine::max_shared_bytes);
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
    // The first kernel of a call, unless the query kernel made weights; then tokens are valid.
    if constexpr (!Divides) machine::wait_for_earlier_kernels();
    const PairOperands<T, Map, Rotates>& of = operands.of;
    const BlockTable& table = of.k.x.table;
    const TokenRange ys = of.template key_tile<rows>(block.number);
    const EntryRange seeing =
        queries_that_see<sees>(of.q.x.table, table, of.packed, ys.begin, ys.end);
    const int tiles_of_head = seeing.tiles<rows>();
    const auto xs_of = [&](int tile) {
      return TokenRange{ys.item, ys.head * of.sharing.heads + tile / tiles_of_head,
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
    if constexpr (Divides) machine::wait_for_earlier_kernels();
    MixingOfHead mixing{};
    typename Shapes::FeatureSum feature_sum;
    typename Shapes::FeatureSum plain_sum;  // of unrotated queries, if features are twofold
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

/// Launches them for `items` items of the batch; PairBytes counts what they move.
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, Sight sees, bool Divides>
void key_pairs_gradient(
    const CudaDevice& device, Index items,
    const KeyPairsGradient<T, Map, Rotates, KeyDim, ValueDim, sees, Divides>& body) {
  const auto& of = body.operands.of;
  if (body.wants_key || body.wants_value)
    machine::run(device, items * ceil_div(of.key_entries(), Index{body.rows}) * of.sharing.kv_heads,
                 body);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
