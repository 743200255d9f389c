// SPDX-License-Identifier: MIT
// Readout of all blocks (arXiv 2601.07832, eq. 5), a thread block per block, head and slice of
// value columns:
//
//   num_t = phi^r(q_t) S~_i     den_t = phi(q_t) z~_i + epsilon
//   y_t = num_t / den_t, 0 where den_t is 0
//
// Causal blocks add their own tokens: m_ii phi^r(q_t)^T phi^r(k_j) v_j for j <= t, and to den_t the
// scores themselves, unless there is a rotation.
#pragma once

#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/token_pairs.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Readout of tiles of tokens, wherever their summaries are: features and denominators, own tokens,
/// and results of a slice of value columns.
template <class Traits, int Slice, bool Divides, class Own>
struct TileReadOut {
  using T = typename Traits::T;
  static constexpr int key_dim = Traits::key_dim;
  static constexpr bool adds_own = Own::is_some;
  static constexpr int threads = 256;
  static constexpr int warps = threads / 32;
  static constexpr int rows = tile_rows(key_dim);
  static constexpr int sums_of_row = warps / (rows / 16);
  using FeatureTile = Tile<rows, key_dim>;
  using ScoreTile = Tile<rows, rows>;
  using ValueTile = Tile<rows, Slice>;
  // Results are assembled in the features' place.
  static_assert(ValueTile::bytes <= FeatureTile::bytes);
  using Sum = Accumulators<rows, Slice, rows / 16, warps / (rows / 16)>;
  using S = Strips<key_dim>;

  const FeatureTokens<T, typename Traits::Map, Traits::rotates>& q;
  const Own& own;
  float epsilon;  // of epsilon_for()
  SharedArray<float> key_sum;
  SharedArray<float> denominators;

  /// Without own tokens all that a query's scale s multiplies is one product, so that features need
  /// not have it: y = s N / (s D + epsilon) = N / (D + epsilon / s).
  static constexpr bool scales_result = !adds_own;
  MHLA_DEVICE static float epsilon_for(float epsilon, float scale) {
    if constexpr (!scales_result) return epsilon;
    return scale == 0 ? HUGE_VALF : epsilon / scale;
  }

  /// phi^r(q) in place, and den = phi(q) z + epsilon.
  MHLA_DEVICE void make_query_features(const Block& block, const TokenRange& range,
                                       const FeatureTile& tile) const {
    const auto weight = [&](int) { return scales_result ? 1.0f : q.scale; };
    if constexpr (Divides) {
      typename S::Elements z[std::size_t{S::of_lane}];
      S::for_each(block, [&](int n, int i) { read_strip<key_dim>(key_sum.begin, n, z[i]); });
      float product = 0;
      make_features<threads>(
          block, q, range, tile, weight,
          [&](int, int i, const typename S::Elements& features) {
            for (int e = 0; e < S::size; ++e) product += features[e] * z[i][e];
          },
          [&](int row) {
            product = sum_of_lanes<S::lanes>(product);
            if (S::leads(block)) machine::write<float>(denominators.at(row), product + epsilon);
            product = 0;
          });
    } else {
      make_features<threads>(block, q, range, tile, weight, Ignore(), Ignore());
    }
    if constexpr (adds_own)
      for (int i = block.thread; i < rows * sums_of_row; i += threads)
        machine::write<float>(own_memory().own_sums.at(i), 0.0f);
  }

  /// Stores a slice of the results of the range's first tokens from `sum`, their features' product
  /// with the summary, which is scaled. Assembles them in the features' place.
  MHLA_DEVICE void finish(const Block& block, Sum& sum, float scale, const FeatureTile& features,
                          const TokenRange& range, const Sharing& sharing, const Tokens<T>& y,
                          int column) const {
    if constexpr (adds_own) {
      sum.scale(1 / scale);
      scale = 1;
      add_own(block, features, range, sharing, column, sum);
    }
    block.sync();  // features have been read, denominators written
    const ValueTile out{features.begin};
    assemble(block, sum, 1 / scale, out);
    block.sync();
    store_tokens<threads>(adds_own ? machine::known_anew(block) : block, out, y, range,
                          Update::overwrite, column);
  }
  /// scale num / den, rounded, into a tile.
  MHLA_DEVICE void assemble(const Block& block, Sum& sum, float scale, const ValueTile& out) const {
    if constexpr (Divides) {
      Sum::for_each_row(block, [&](int i, int half, int row) {
        const float den = denominator(row);
        const float factor = scale / den;
        const auto replace = [&](auto value) {
          for (auto& part : sum.value[i])
            for (int e = 2 * half; e < 2 * half + 2; ++e) part[e] = value(part[e]);
        };
        if (den == 0) {
          replace([](float) { return 0.0f; });
        } else {
          replace([&](float element) { return element * factor; });
        }
      });
    } else {
      sum.scale(scales_result ? scale * q.scale : scale);
    }
    sum.for_each_pair(block, [&](int row, int col, float first, float second) {
      machine::write(out.at(row, col), machine::rounded_pair<T>(first, second));
    });
  }

 private:
  /// Adds the own block's pairs to `sum` and, with a normalizer, to the denominators.
  MHLA_DEVICE void add_own(const Block& before, const FeatureTile& features,
                           const TokenRange& range, const Sharing& sharing, int column,
                           Sum& sum) const {
    const BlockTable& table = q.x.table;
    constexpr ReadOutMemory at = own_memory();
    const FeatureTile others{at.others};
    const ValueTile values{at.values};
    const ScoreTile scores_tile{at.scores};
    for_each_own_tile<rows>(
        own, table, range, range.head / sharing.heads, [&](const TokenRange& ys) {
          const Block block = machine::known_anew(before);
          const float weight = own_mixing(own, table, range, ys);
          block.sync();  // what was in the tiles has been read
          copy_tokens<threads>(block, own.y.x, ys, others);
          copy_tokens<threads>(block, own.values, ys, values, column);
          machine::commit_copies();
          machine::wait_for_copies<0>();
          block.sync();
          make_features<threads>(block, own.y, ys, others);
          look_for_infinities<T, threads>(block, values, at.flags);
          block.sync();
          Scores<rows> scores;
          multiply_add<T, Stored::not_transposed, Stored::transposed>(block, scores, features,
                                                                      others);
          const auto pair_counts = [&](int t, int j) { return counts<Own>(range, t, ys, j); };
          write_scores<T>(block, scores, scores_tile, pair_counts,
                          [&](int, int, float score) { return weight * score; });
          if constexpr (Divides) add_row_sums<rows>(block, scores, at.own_sums);
          block.sync();
          add_pairs<T>(block, sum, scores_tile, values, found_infinities<warps>(at.flags),
                       pair_counts);
        });
  }

  MHLA_HOST_DEVICE static constexpr ReadOutMemory own_memory() { return {key_dim, Slice, true, 1}; }
  MHLA_DEVICE float denominator(int row) const {
    float den = machine::read<float>(denominators.at(row));
    if constexpr (adds_own)
      for (int part = 0; part < sums_of_row; ++part)
        den += machine::read<float>(own_memory().own_sums.at(part * rows + row));
    return den;
  }
};

template <class Traits, bool Divides, class Own = NoOwnTokens>
struct ReadOutBlocks {
  using T = typename Traits::T;
  static constexpr int key_dim = Traits::key_dim;
  static constexpr int value_dim = Traits::value_dim;
  static constexpr bool adds_own = Own::is_some;
  MHLA_HOST_DEVICE static constexpr ReadOutMemory memory() {
    return read_out_memory(key_dim, value_dim, adds_own);
  }
  static constexpr int shared_bytes = memory().bytes;
  static constexpr int slice = memory().slice;
  static constexpr int slices = value_dim / slice;
  static constexpr int stages = memory().stages;
  using Tiles = TileReadOut<Traits, slice, Divides, Own>;
  using FeatureTile = typename Tiles::FeatureTile;
  using ValueTile = typename Tiles::ValueTile;
  using SummaryTile = Tile<key_dim, slice>;
  static constexpr int threads = Tiles::threads;
  static constexpr int min_blocks_per_sm = key_dim > 128                             ? 1
                                           : adds_own || (Divides && key_dim == 128) ? 2
                                                                                     : 3;
  static constexpr int rows = Tiles::rows;
  MHLA_DEVICE static FeatureTile features(int tile) {
    return Ring<FeatureTile, stages>{memory().features}[tile % stages];
  }
  MHLA_DEVICE static SummaryTile summary_tile() { return {memory().summary}; }

  FeatureTokens<T, typename Traits::Map, Traits::rotates> q;
  Tokens<T> y;
  Sharing sharing;
  Summaries<const T> summaries;
  const float* key_sums;  // z, [units, blocks, matrices, key_dim]
  float epsilon;
  Own own;

  Index blocks(Index items) const {
    return items * sharing.kv_heads * sharing.heads * slices * q.x.table.blocks;
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    const BlockTable& table = q.x.table;
    BlockIndices indices(block);
    const int head = indices.next(sharing.all_heads());
    indices.next(slices);
    const int b = indices.next(table.blocks);
    TokenRange tile = TokenRange::of_block(table, Index{indices.rest}, head, b);

    // Never the first kernel of a call: the tokens are valid.
    copy_tokens<threads>(block, q.x, tile, features(0));
    machine::wait_for_earlier_kernels();
    if constexpr (Divides)
      for (int c = block.thread; c < key_dim; c += threads)
        machine::write(
            memory().key_sum.at(c),
            machine::load_from(key_sums + sharing.summary_of(table, tile) * key_dim + c));
    copy_summary(block, tile);
    machine::commit_copies();
    const Tiles tiles{q, own, Tiles::epsilon_for(epsilon, q.scale), memory().key_sum,
                      memory().denominators};

    for (int n = 0; tile.begin < tile.end; tile.begin += rows, ++n) {
      if (stages == 1 && n > 0) {
        block.sync();  // the previous tile has been read
        if constexpr (adds_own) copy_summary(block, tile);
        copy_tokens<threads>(block, q.x, tile, features(0));
        machine::commit_copies();
      }
      machine::wait_for_copies<0>();
      block.sync();  // this tile has landed, and the previous one has been read
      read_out(block, tiles, tile, features(n), features(n + 1));
    }
    machine::wait_for_copies<0>();
  }

 private:
  /// The first of the thread block's value columns.
  MHLA_DEVICE int column_of(const Block& block) const {
    BlockIndices indices(machine::known_anew(block));
    indices.next(sharing.all_heads());
    return slices == 1 ? 0 : indices.next(slices) * slice;
  }
  MHLA_DEVICE void copy_summary(const Block& block, const TokenRange& range) const {
    const T* const from = summaries.data +
                          sharing.summary_of(q.x.table, range) * (key_dim * value_dim) +
                          column_of(block);
    copy_rows<threads, T>(block, summary_tile(), [&](int r, int c) {
      return TensorRow<const T>{from + (r * value_dim + c), true};
    });
  }
  /// A tile that has landed, with the summary. The next copy begins after this tile's features:
  /// their loads would wait for it.
  MHLA_DEVICE void read_out(const Block& block, const Tiles& tiles, const TokenRange& tile,
                            const FeatureTile& of_tile, const FeatureTile& next) const {
    tiles.make_query_features(block, tile, of_tile);
    if constexpr (stages > 1) {
      if (tile.begin + rows < tile.end)
        copy_tokens<threads>(block, q.x, tile.from(tile.begin + rows), next);
      machine::commit_copies();
    }
    block.sync();
    typename Tiles::Sum sum;
    multiply_add<T, Stored::not_transposed, Stored::not_transposed>(block, sum, of_tile,
                                                                    summary_tile());
    tiles.finish(block, sum, summaries.scale, of_tile, tile, sharing, y, column_of(block));
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
