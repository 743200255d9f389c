// SPDX-License-Identifier: MIT
// Readout of all blocks (arXiv 2601.07832, eq. 5), a block of threads for each head's tokens of a
// block and for a slice of value columns:
//
//   num_t = phi^r(x_t) S     den_t = phi(x_t) z + epsilon     o_t = num_t / den_t, 0 where den_t is
//   0
//
// Forward: x = q, S = S~_i, z = z~_i. Backward, without denominators: x = k, S = dS_b gives dv.
// Causal blocks add their own tokens: forward m_ii phi^r(q_t)^T phi^r(k_j) v_j for j <= t, and to
// den_t the scores themselves, unless something rotates; backward to dv_j, over the heads that
// share it, m_ii r_t phi^r(q_t)^T phi^r(k_j) dy_t for t >= j.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/features.cuh>
#include <mhla/cuda/fused/own_tokens.cuh>
#include <mhla/cuda/fused/product.cuh>
#include <mhla/cuda/fused/tile.cuh>
#include <mhla/cuda/fused/token_bytes.hpp>
#include <mhla/cuda/fused/token_pairs.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, int Parts, bool Divides,
          class Own = NoOwnTokens>
struct ReadOutBlocks {
  static constexpr bool adds_own = !std::is_same_v<Own, NoOwnTokens>;
  static constexpr int threads = 256;
  static constexpr int warps = threads / 32;
  static constexpr int blocks_of_processor = 1;
  static constexpr int rows = tile_rows(KeyDim);
  using FeatureTile = Tile<rows, KeyDim>;
  using ScoreTile = Tile<rows, rows>;
  static constexpr bool weighs_own = [] {
    if constexpr (adds_own) return Own::later;
    return false;
  }();
  static_assert(!(weighs_own && Divides), "mhla: only the forward pass divides");
  static constexpr ReadOutShape shape{KeyDim, ValueDim, Parts, adds_own, weighs_own};
  static constexpr int stages = shape.stages();
  static constexpr int sums_of_row = shape.sums_of_row();
  static constexpr int denominators_at = shape.denominators_at();
  static constexpr int own_sums_at = shape.own_sums_at();
  static constexpr int flags_at = shape.flags_at();
  static constexpr int own_weights_at = shape.own_weights_at();
  static constexpr int features_at = shape.features_at();
  static constexpr int scores_at = shape.scores_at();
  static constexpr int summary_at = shape.summary_at();
  static_assert(summary_at % 16 == 0);
  static constexpr int slice = shape.slice();
  static constexpr int slices = shape.slices();
  static constexpr int shared_bytes = shape.bytes_with(slice);
  static_assert(shared_bytes <= machine::most_shared_bytes);
  using SummaryTile = Tile<KeyDim, slice>;
  using ValueTile = Tile<rows, slice>;
  // What is read out is put together where the features were.
  static_assert(ValueTile::bytes <= FeatureTile::bytes);
  using Sum = Accumulators<rows, slice, rows / 16, 8 / (rows / 16)>;

  FeatureTokens<T, Map, Rotates> x;
  Tokens<T> o;
  Update update;
  Sharing sharing;
  Summaries<const T> summaries;
  const float* key_sums;  // z, [units, blocks, matrices, KeyDim]
  float epsilon;
  Own own;

  MHLA_DEVICE static FeatureTile feature_tile(int slot) {
    return {static_cast<Shared>(features_at + slot * FeatureTile::bytes)};
  }
  MHLA_DEVICE static Shared denominator(int row) {
    return static_cast<Shared>(denominators_at + row * 4);
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    const BlockTable& table = x.x.table;
    const Index all_heads = sharing.kv_heads * sharing.heads;
    const Index head = block.number % all_heads;
    const int column = static_cast<int>(block.number / all_heads % slices) * slice;
    const Index of_table = block.number / all_heads / slices;
    const Index b = of_table % table.blocks;
    const Index item = of_table / table.blocks;
    const Index kv_head = head / sharing.heads;
    const Index matrix = head % sharing.heads / sharing.heads_of_matrix();
    const Index unit = item * sharing.kv_heads + kv_head;
    const Index summary = (unit * table.blocks + b) * sharing.matrices + matrix;
    const TokenRange all = TokenRange::of_block(table, item, head, b);
    const int tiles = static_cast<int>(ceil_div(table.block_tokens, Index{rows}));
    const auto range_of = [&](int tile) { return all.from(all.begin + tile * rows); };
    const auto copy_tile = [&](int tile) {
      if (tile < tiles)
        copy_tokens<threads>(block, x.x, range_of(tile), feature_tile(tile % stages));
    };
    const auto begin_copy = [&](int tile) {
      copy_tile(tile);
      machine::commit_copies();
    };
    const auto copy_summary = [&] {
      MHLA_DEVICE_UNROLL
      for (int part = 0; part < Parts; ++part) {
        const T* const from = summaries.data + part * summaries.plane + summary * KeyDim * ValueDim;
        copy_rows<threads, T>(block, summary_tile(part), true, [&](int r) {
          return TensorRow<const T>{from + r * ValueDim + column, 1, true};
        });
      }
    };

    copy_tile(0);  // never the first kernel of a call: the tokens are there
    machine::wait_for_earlier_kernels();
    if constexpr (Divides)
      for (int c = block.thread; c < KeyDim; c += threads)
        machine::write(static_cast<Shared>(c * 4),
                       machine::load_from(key_sums + summary * KeyDim + c));
    if constexpr (!adds_own) copy_summary();
    machine::commit_copies();
    for (int tile = 1; tile < stages - 1; ++tile) begin_copy(tile);

    for (int tile = 0; tile < tiles; ++tile) {
      if constexpr (adds_own) {
        block.sync();  // the tile before has been read
        copy_summary();
        if (tile > 0) copy_tile(tile);
        machine::commit_copies();
        machine::wait_for_copies<0>();
        block.sync();
      } else {
        machine::wait_for_copies<stages - 2>();
        block.sync();  // this tile has landed, and the one before has been read
        begin_copy(tile + stages - 1);
      }
      const TokenRange range = range_of(tile);
      const FeatureTile features = feature_tile(tile % stages);
      make_query_features(block, range, features);
      if constexpr (adds_own) clear_own_sums(block);
      block.sync();
      Sum sum;
      MHLA_DEVICE_UNROLL
      for (int part = 0; part < Parts; ++part)
        multiply_add<T, KeyDim, Stored::straight, Stored::straight>(block, sum, features,
                                                                    summary_tile(part));
      float unscale = 1 / summaries.scale;
      if constexpr (weighs_own) unscale *= own.weight_scale;
      sum.for_each_pair(block, [&](int, int, float& first, float& second) {
        first *= unscale;
        second *= unscale;
      });
      if constexpr (adds_own) add_own(block, range, kv_head, b, column, sum);
      if constexpr (weighs_own) {
        const float unweigh = 1 / own.weight_scale;
        sum.for_each_pair(block, [&](int, int, float& first, float& second) {
          first *= unweigh;
          second *= unweigh;
        });
      }
      block.sync();  // features have been read, denominators written
      const ValueTile out{features.begin};
      sum.for_each_pair(block, [&](int row, int col, float first, float second) {
        if constexpr (Divides) {
          const float den = denominator_of(row);
          first = den == 0 ? 0.0f : first / den;
          second = den == 0 ? 0.0f : second / den;
        }
        machine::write(out.at(row, col), machine::rounded_pair<T>(first, second));
      });
      block.sync();
      store_tokens<threads>(block, out, o, range, update, column);
    }
    machine::wait_for_copies<0>();
  }

 private:
  MHLA_DEVICE static SummaryTile summary_tile(int part) {
    return {static_cast<Shared>(summary_at + part * SummaryTile::bytes)};
  }

  /// phi^r(x) in place, and den = phi(x) z + epsilon.
  MHLA_DEVICE void make_query_features(const Block& block, const TokenRange& range,
                                       const FeatureTile& tile) const {
    float product = 0;
    make_features<threads>(
        block, x, range, tile, [](int) { return 1.0f; },
        [&](int, int n, int, const float(&quad)[4]) {
          if constexpr (Divides)
            for (int e = 0; e < 4; ++e)
              product +=
                  quad[e] * machine::read<float>(static_cast<Shared>(
                                (Quads<KeyDim>::column(n) + e % 2 + e / 2 * (KeyDim / 2)) * 4));
        },
        [&](int row) {
          if constexpr (Divides) {
            product = Quads<KeyDim>::sum_of_row(product);
            if (Quads<KeyDim>::leads(block))
              machine::write<float>(denominator(row), product + epsilon);
            product = 0;
          }
        });
  }

  MHLA_DEVICE static Shared own_sum(int part, int row) {
    return static_cast<Shared>(own_sums_at + (part * rows + row) * 4);
  }
  MHLA_DEVICE static void clear_own_sums(const Block& block) {
    for (int i = block.thread; i < rows * sums_of_row; i += threads)
      machine::write<float>(own_sum(0, i), 0.0f);
  }
  MHLA_DEVICE float denominator_of(int row) const {
    float den = machine::read<float>(denominator(row));
    if constexpr (adds_own)
      for (int part = 0; part < sums_of_row; ++part)
        den += machine::read<float>(own_sum(part, row));
    return den;
  }

  /// Adds the own block's pairs to `sum` and, where something divides, to the denominators.
  MHLA_DEVICE void add_own(const Block& block, const TokenRange& range, Index kv_head, Index b,
                           int column, Sum& sum) const {
    const BlockTable& table = x.x.table;
    const FeatureTile features = feature_tile(0);
    const FeatureTile others{static_cast<Shared>(summary_at)};
    const ValueTile values{static_cast<Shared>(summary_at + FeatureTile::bytes)};
    const ScoreTile scores_tile{static_cast<Shared>(scores_at)};
    for_each_own_tile<rows>(own, table, range, kv_head, b, [&](const TokenRange& ys) {
      const float weight = own_mixing(own, table, range, ys, b);
      block.sync();  // what was in the tiles has been read
      copy_tokens<threads>(block, own.y.x, ys, others);
      copy_tokens<threads>(block, own.values, ys, values, column);
      machine::commit_copies();
      if constexpr (weighs_own) {
        const Index unit = range.item * sharing.kv_heads + kv_head;
        copy_numbers<threads, rows>(block, own.weights, table, unit, b, own.heads(), ys, 1.0f,
                                    own_weight(0));
      }
      machine::wait_for_copies<0>();
      block.sync();
      make_features<threads>(
          block, own.y, ys, others, [](int) { return 1.0f; },
          [](int, int, int, const float(&)[4]) {}, [](int) {});
      look_for_infinities<threads>(block, values, exponent_bits<T>, static_cast<Shared>(flags_at));
      block.sync();
      Scores<rows> scores;
      multiply_add<T, KeyDim, Stored::straight, Stored::transposed>(block, scores, features,
                                                                    others);
      const auto pair_counts = [&](int t, int j) { return counts<Own>(range, t, ys, j); };
      write_scores<T>(block, scores, scores_tile, [&](int t, int j, float score) {
        if (!pair_counts(t, j)) return 0.0f;
        if constexpr (weighs_own)
          return weight * own.weight_scale * machine::read<float>(own_weight(j)) * score;
        return weight * score;
      });
      if constexpr (Divides) add_row_sums<rows>(block, scores, own_sum(0, 0));
      block.sync();
      if (found_infinities<warps>(static_cast<Shared>(flags_at))) {
        add_counted_pairs<T>(block, sum, scores_tile, values, pair_counts);
      } else {
        add_pairs<T>(block, sum, scores_tile, values);
      }
    });
  }
  MHLA_DEVICE static Shared own_weight(int row) {
    return static_cast<Shared>(own_weights_at + row * 4);
  }
};

/// Launched for `items` items of the batch.
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, int Parts, bool Divides,
          class Own>
void read_out(const CudaDevice& device, Index items,
              const ReadOutBlocks<T, Map, Rotates, KeyDim, ValueDim, Parts, Divides, Own>& body) {
  machine::run(
      device,
      items * body.x.x.table.blocks * body.slices * body.sharing.kv_heads * body.sharing.heads,
      body);
}

/// What that moves. Own tokens are in the same blocks as x.
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, int Parts, bool Divides,
          class Own>
MovedBytes read_out_bytes(
    const ReadOutBlocks<T, Map, Rotates, KeyDim, ValueDim, Parts, Divides, Own>& body,
    const TileTokens& tokens) {
  return read_out_bytes(TokenStage{KeyDim, ValueDim, Parts, Rotates, body.sharing.kv_heads,
                                   body.sharing.heads, body.sharing.matrices},
                        tokens, Divides, own_pairs(body.own), body.update);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
