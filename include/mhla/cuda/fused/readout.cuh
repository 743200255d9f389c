// SPDX-License-Identifier: MIT
// Readout of all blocks (arXiv 2601.07832, eq. 5), a thread block per block, head and slice of
// value columns:
//
//   num_t = phi^r(x_t) S     den_t = phi(x_t) z + epsilon
//   o_t = num_t / den_t, 0 where den_t is 0
//
// Forward: x = q, S = S~_i, z = z~_i. Backward, without denominators: x = k, S = dS_b gives dv.
// Causal blocks add their own tokens: forward m_ii phi^r(q_t)^T phi^r(k_j) v_j for j <= t, and to
// den_t the scores themselves, unless there is a rotation; backward to dv_j, over the heads that
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
#include <mhla/cuda/fused/tile_shape.hpp>
#include <mhla/cuda/fused/token_pairs.cuh>
#include <mhla/cuda/fused/tokens.cuh>
#include <mhla/cuda/machine.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Shared memory of a readout besides the tiles of features and summaries: z; the denominators of a
/// tile; and for own tokens their parts of the denominators, whether a warp found an infinity,
/// weights, scores, and tiles of the other side's features and values.
struct ReadOutPlaces {
  Shared key_sum;
  Shared denominators;
  Shared own_sums;
  Shared flags;
  Shared own_weights;
  Shared scores;
  Shared others;
  Shared values;
};

/// Readout of tiles of tokens, wherever their summaries are: features and denominators, own tokens,
/// and results of a slice of value columns.
template <class T, class Map, bool Rotates, int KeyDim, int Slice, bool Divides, class Own>
struct TileReadOut {
  static constexpr bool adds_own = !std::is_same_v<Own, NoOwnTokens>;
  static constexpr bool weighs_own = [] {
    if constexpr (adds_own) return Own::later;
    return false;
  }();
  static_assert(!(weighs_own && Divides), "mhla: only the forward pass divides");
  static constexpr int threads = 256;
  static constexpr int warps = threads / 32;
  static constexpr int rows = tile_rows(KeyDim);
  static constexpr int sums_of_row = warps / (rows / 16);
  using FeatureTile = Tile<rows, KeyDim>;
  using ScoreTile = Tile<rows, rows>;
  using ValueTile = Tile<rows, Slice>;
  // Results are assembled in the features' place.
  static_assert(ValueTile::bytes <= FeatureTile::bytes);
  using Sum = Accumulators<rows, Slice, rows / 16, warps / (rows / 16)>;

  const FeatureTokens<T, Map, Rotates>& x;
  const Own& own;
  float epsilon;
  ReadOutPlaces at;

  /// phi^r(x) in place, and den = phi(x) z + epsilon. Synchronizes the thread block before and
  /// after.
  MHLA_DEVICE void make_query_features(const Block& block, const TokenRange& range,
                                       const FeatureTile& tile) const {
    float product = 0;
    make_features<threads>(
        block, x, range, tile, [](int) { return 1.0f; },
        [&](int, int n, int, const float(&quad)[4]) {
          if constexpr (Divides)
            for (int e = 0; e < 4; ++e)
              product += quad[e] * number(at.key_sum,
                                          Quads<KeyDim>::column(n) + e % 2 + e / 2 * (KeyDim / 2));
        },
        [&](int row) {
          if constexpr (Divides) {
            product = Quads<KeyDim>::sum_of_row(product);
            if (Quads<KeyDim>::leads(block))
              machine::write<float>(place(at.denominators, row), product + epsilon);
            product = 0;
          }
        });
    if constexpr (adds_own)
      for (int i = block.thread; i < rows * sums_of_row; i += threads)
        machine::write<float>(place(at.own_sums, i), 0.0f);
  }

  /// Adds the own block's pairs to `sum` and, with a normalizer, to the denominators. The
  /// `features` are those of the range's first tokens, in block b of the unit and kv head.
  MHLA_DEVICE void add_own(const Block& block, const FeatureTile& features, const TokenRange& range,
                           Index unit, Index kv_head, Index b, int column, Sum& sum) const {
    const BlockTable& table = x.x.table;
    const FeatureTile others{at.others};
    const ValueTile values{at.values};
    const ScoreTile scores_tile{at.scores};
    for_each_own_tile<rows>(own, table, range, kv_head, b, [&](const TokenRange& ys) {
      const float weight = own_mixing(own, table, range, ys, b);
      block.sync();  // what was in the tiles has been read
      copy_tokens<threads>(block, own.y.x, ys, others);
      copy_tokens<threads>(block, own.values, ys, values, column);
      machine::commit_copies();
      if constexpr (weighs_own)
        copy_numbers<threads, rows>(block, own.weights, table, unit, b, own.heads(), ys, 1.0f,
                                    at.own_weights);
      machine::wait_for_copies<0>();
      block.sync();
      make_features<threads>(
          block, own.y, ys, others, [](int) { return 1.0f; },
          [](int, int, int, const float(&)[4]) {}, [](int) {});
      look_for_infinities<threads>(block, values, exponent_bits<T>, at.flags);
      block.sync();
      Scores<rows> scores;
      multiply_add<T, KeyDim, Stored::straight, Stored::transposed>(block, scores, features,
                                                                    others);
      const auto pair_counts = [&](int t, int j) { return counts<Own>(range, t, ys, j); };
      write_scores<T>(block, scores, scores_tile, [&](int t, int j, float score) {
        if (!pair_counts(t, j)) return 0.0f;
        if constexpr (weighs_own)
          return weight * own.weight_scale * number(at.own_weights, j) * score;
        return weight * score;
      });
      if constexpr (Divides) add_row_sums<rows>(block, scores, at.own_sums);
      block.sync();
      if (found_infinities<warps>(at.flags)) {
        add_counted_pairs<T>(block, sum, scores_tile, values, pair_counts);
      } else {
        add_pairs<T>(block, sum, scores_tile, values);
      }
    });
  }

  /// num / den, rounded, into a tile.
  MHLA_DEVICE void write(const Block& block, Sum& sum, const ValueTile& out) const {
    sum.for_each_pair(block, [&](int row, int col, float first, float second) {
      if constexpr (Divides) {
        const float den = denominator(row);
        first = den == 0 ? 0.0f : first / den;
        second = den == 0 ? 0.0f : second / den;
      }
      machine::write(out.at(row, col), machine::rounded_pair<T>(first, second));
    });
  }

 private:
  MHLA_DEVICE static Shared place(Shared of, int n) { return of + static_cast<Shared>(n * 4); }
  MHLA_DEVICE static float number(Shared of, int n) { return machine::read<float>(place(of, n)); }
  MHLA_DEVICE float denominator(int row) const {
    float den = number(at.denominators, row);
    if constexpr (adds_own)
      for (int part = 0; part < sums_of_row; ++part) den += number(at.own_sums, part * rows + row);
    return den;
  }
};

template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, int Parts, bool Divides,
          class Own = NoOwnTokens>
struct ReadOutBlocks {
  static constexpr bool adds_own = !std::is_same_v<Own, NoOwnTokens>;
  static constexpr bool weighs_own = [] {
    if constexpr (adds_own) return Own::later;
    return false;
  }();
  static constexpr ReadOutShape shape{KeyDim, ValueDim, Parts, adds_own, weighs_own};
  static constexpr int slice = shape.slice();
  static constexpr int slices = shape.slices();
  using Tiles = TileReadOut<T, Map, Rotates, KeyDim, slice, Divides, Own>;
  using FeatureTile = typename Tiles::FeatureTile;
  using ValueTile = typename Tiles::ValueTile;
  using SummaryTile = Tile<KeyDim, slice>;
  static constexpr int threads = Tiles::threads;
  static constexpr int min_blocks_per_sm = 1;
  static constexpr int rows = Tiles::rows;
  static constexpr int stages = shape.stages();
  static constexpr int denominators_at = shape.denominators_at();
  static constexpr int own_sums_at = shape.own_sums_at();
  static constexpr int flags_at = shape.flags_at();
  static constexpr int own_weights_at = shape.own_weights_at();
  static constexpr int features_at = shape.features_at();
  static constexpr int scores_at = shape.scores_at();
  static constexpr int summary_at = shape.summary_at();
  static_assert(summary_at % 16 == 0 && Tiles::sums_of_row == shape.sums_of_row());
  static constexpr int shared_bytes = shape.bytes_with(slice);
  static_assert(shared_bytes <= machine::max_shared_bytes);

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
  MHLA_DEVICE static ReadOutPlaces places() {
    // Own tokens overwrite the summary.
    return {Shared{0},
            Shared{denominators_at},
            Shared{own_sums_at},
            Shared{flags_at},
            Shared{own_weights_at},
            Shared{scores_at},
            Shared{summary_at},
            Shared{summary_at + FeatureTile::bytes}};
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    read_out(block, [] { machine::wait_for_earlier_kernels(); });
  }

  /// For a unit's n-th thread block of `of_unit()`.
  MHLA_DEVICE Index number_of(Index unit, Index n) const {
    const Index kv_head = unit % sharing.kv_heads;
    const Index item = unit / sharing.kv_heads;
    const Index of_head = of_unit() / sharing.heads;
    return kv_head * sharing.heads + n % sharing.heads +
           (item * of_head + n / sharing.heads) * (sharing.kv_heads * sharing.heads);
  }
  MHLA_HOST_DEVICE Index of_unit() const { return sharing.heads * slices * x.x.table.blocks; }

  /// For block.number. Calls `wait` before summaries and key sums are read, or anything is written;
  /// those of unit n are where those of unit n + shift would be.
  template <class Wait>
  MHLA_DEVICE void read_out(const Block& block, const Wait& wait, Index shift = 0) const {
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
    const Index summary = ((unit + shift) * table.blocks + b) * sharing.matrices + matrix;
    const TokenRange all = TokenRange::of_block(table, item, head, b);
    const int tiles = static_cast<int>(ceil_div(table.block_tokens, Index{rows}));
    const Tiles of_tiles{x, own, epsilon, places()};
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

    copy_tile(0);  // never the first kernel of a call: the tokens are valid
    wait();
    if constexpr (Divides)
      for (int c = block.thread; c < KeyDim; c += threads)
        machine::write(static_cast<Shared>(c * 4),
                       machine::load_from(key_sums + summary * KeyDim + c));
    if constexpr (!adds_own) copy_summary();
    machine::commit_copies();
    for (int tile = 1; tile < stages - 1; ++tile) begin_copy(tile);

    for (int tile = 0; tile < tiles; ++tile) {
      if constexpr (adds_own) {
        block.sync();  // the previous tile has been read
        copy_summary();
        if (tile > 0) copy_tile(tile);
        machine::commit_copies();
        machine::wait_for_copies<0>();
        block.sync();
      } else {
        machine::wait_for_copies<stages - 2>();
        block.sync();  // this tile has landed, and the previous one has been read
        begin_copy(tile + stages - 1);
      }
      const TokenRange range = range_of(tile);
      const FeatureTile features = feature_tile(tile % stages);
      of_tiles.make_query_features(block, range, features);
      block.sync();
      typename Tiles::Sum sum;
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
      if constexpr (adds_own)
        of_tiles.add_own(block, features, range, unit, kv_head, b, column, sum);
      if constexpr (weighs_own) {
        const float unweigh = 1 / own.weight_scale;
        sum.for_each_pair(block, [&](int, int, float& first, float& second) {
          first *= unweigh;
          second *= unweigh;
        });
      }
      block.sync();  // features have been read, denominators written
      const ValueTile out{features.begin};
      of_tiles.write(block, sum, out);
      block.sync();
      store_tokens<threads>(block, out, o, range, update, column);
    }
    machine::wait_for_copies<0>();
  }

 private:
  MHLA_DEVICE static SummaryTile summary_tile(int part) {
    return {static_cast<Shared>(summary_at + part * SummaryTile::bytes)};
  }
};

/// Launches it for `items` items of the batch.
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, int Parts, bool Divides,
          class Own>
void read_out(const CudaDevice& device, Index items,
              const ReadOutBlocks<T, Map, Rotates, KeyDim, ValueDim, Parts, Divides, Own>& body) {
  machine::run(device, items * body.sharing.kv_heads * body.of_unit(), body);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
