// SPDX-License-Identifier: MIT
// Gradients of queries and keys through their features, and of values, a thread block per tile of
// tokens of a block:
//
//   dx = s phi'(x) o (R^T(g) + c z)
//
// Queries, X = dy, S = S~_i, z = z~_i: u_t = S~_i dy_t, den_t = phi(q_t) z~_i + epsilon,
//   r_t = 1 / den_t, c_t = -(phi^r(q_t) u_t) r_t^2, both 0 where den_t is 0, and g_t = r_t u_t. r
//   and c are kept: the gradients of summaries and of keys are weighted by them.
// Keys, X = v, S = dS_b, z = dz_b: g_j = dS_b v_j and c = 1; dv_j = dS_b^T phi^r(k_j).
//
// Causal blocks add their own pairs of a query t and a key j <= t, P = phi^r(q_t) phi^r(k_j) and
// D = dy_t v_j:
//
//   den_t += m_ii sum_j P     phi^r(q_t) u_t += m_ii sum_j P D
//   g_t += sum_j W phi^r(k_j)     g_j += sum_t W phi^r(q_t)     W = m_ii (r_t D + c_t)
//   dv_j += sum_t m_ii r_t P dy_t
//
// and each query's part of dm_ii is sum_j P (r_t D + c_t). W is rounded to 16 bits after its two
// parts, which nearly cancel if values have a common mean, are added.
#pragma once

#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/token_pairs.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// What the query side keeps for others.
struct QueryNumbers {
  float* weights;       // r, [units, blocks, heads, block tokens]; absent without a normalizer
  float* sum_weights;   // c / r, likewise; 0 where r is
  float* own_products;  // causal blocks: each query's part of dm_ii, likewise
};

/// What the key side has besides dk.
template <class T>
struct ValueGradient {
  Tokens<T> dv;
  bool wanted;
};

/// Shared memory of FeatureGradient, with a summary's columns, and those of own values, in slices.
template <int KeyDim, int ValueDim, int Slice, int OwnSlice, bool adds_own>
struct FeatureGradientMemory {
  static constexpr int rows = tile_rows(KeyDim);
  using FeatureTile = Tile<rows, KeyDim>;
  using ValueTile = Tile<rows, ValueDim>;
  using ScoreTile = Tile<rows, rows>;
  using SummaryTiles = Ring<Tile<KeyDim, Slice>, 2>;
  using OwnValueTile = Tile<rows, OwnSlice>;
  using GradientTile = FloatTile<rows, KeyDim>;

  MHLA_HOST_DEVICE constexpr FeatureGradientMemory() {}
  SharedLayout layout{};
  SharedArray<float> key_sum = layout.take_array<float>(KeyDim);    // z
  SharedArray<float> numbers = layout.take_array<float>(4 * rows);  // of the tile's rows
  /// Parts of rows' sums over own tokens, or those tokens' r and c / r.
  SharedArray<float> own_numbers =
      layout.take_array<float>(adds_own ? 2 * 8 / (rows / 16) * rows : 0);
  SharedArray<float> flags = layout.take_array<float>(adds_own ? 8 : 0);
  FeatureTile x = layout.take<FeatureTile>();
  ValueTile values = layout.take<ValueTile>();  // X
  ScoreTile scores = layout.take<ScoreTile>(adds_own);
  // In one place, in turn.
  SharedLayout own = layout;
  SharedLayout last = layout;
  SummaryTiles summary = layout.take<SummaryTiles>();
  FeatureTile own_features = own.take<FeatureTile>(adds_own);
  OwnValueTile own_values = own.take<OwnValueTile>(adds_own);
  GradientTile gradient = last.take<GradientTile>();
  int bytes = layout.go_past(own).go_past(last).bytes();
};

template <class Traits, int Parts, Side side, bool Normalizes, class Own = NoOwnTokens>
struct FeatureGradient {
  using T = typename Traits::T;
  static constexpr int key_dim = Traits::key_dim;
  static constexpr int value_dim = Traits::value_dim;
  using S = Strips<key_dim>;
  static constexpr bool adds_own = Own::is_some;
  static constexpr bool of_queries = side == Side::queries;
  static constexpr bool divides = of_queries && Normalizes;
  static_assert(!(adds_own && Normalizes && Traits::rotates),
                "mhla: the denominators of rotated causal attention need unrotated features: "
                "cuBLAS runs it");
  static constexpr int threads = 256;
  static constexpr int warps = threads / 32;
  static constexpr int rows = tile_rows(key_dim);
  static constexpr int sums_of_row = warps / (rows / 16);
  using FeatureTile = Tile<rows, key_dim>;
  using Gradient = Accumulators<rows, key_dim, rows / 16, sums_of_row>;

  template <int Slice, int OwnSlice>
  using MemoryOf = FeatureGradientMemory<key_dim, value_dim, Slice, OwnSlice, adds_own>;
  template <int Slice, int OwnSlice>
  static constexpr bool fits = MemoryOf<Slice, OwnSlice>().bytes <= machine::max_shared_bytes;
  static constexpr int wide = value_slice(value_dim, key_dim < 96 ? 96 : 64);
  static constexpr int slice = fits<wide, wide> ? wide : value_slice(value_dim, 32);
  static constexpr int slices = value_dim / slice;
  // Keys need own values twice.
  static constexpr int own_slice = !of_queries && fits<slice, value_dim> ? value_dim : slice;
  static constexpr int own_slices = value_dim / own_slice;
  static_assert(slices == 1 || slice % 16 == 0,
                "mhla: this kernel takes the columns of values all at once or in slices of whole "
                "sixteens, into which they cannot be cut here");
  MHLA_HOST_DEVICE static constexpr MemoryOf<slice, own_slice> memory() { return {}; }
  static constexpr int shared_bytes = memory().bytes;
  /// A slice of dv. If pairs are added to them, all are kept.
  using ValueSum = Accumulators<rows, slice, rows / 16, sums_of_row>;
  static constexpr bool keeps_values = !of_queries && adds_own;
  using ValueSums = ValueSum[std::size_t{keeps_values ? slices : 1}];
  static constexpr bool has_many_sums = !of_queries && key_dim >= 128 && Parts > 1;
  static constexpr int min_blocks_per_sm = keeps_values && value_dim > 128 ? 1
                                           : adds_own || has_many_sums     ? 2
                                                                           : 3;

  FeatureTokens<T, typename Traits::Map, Traits::rotates> x;
  Tokens<const T> values;  // X
  Tokens<T> dx;
  bool wanted;  // dx; r and c are always written
  Update update;
  Sharing sharing;
  Summaries<const T> summaries;
  const float* key_sums;  // z, [units, blocks, matrices, key_dim]
  float epsilon;
  std::conditional_t<of_queries, QueryNumbers, ValueGradient<T>> other;
  Own own;

  Index blocks(Index items) const {
    const BlockTable& table = x.x.table;
    return items * table.blocks * table.tiles_of_block(rows) * sharing.all_heads();
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    const TokenRange range = range_of(block);
    // Never the first kernel of a call: the tokens are valid.
    copy_tokens<threads>(block, x.x, range, memory().x);
    copy_tokens<threads>(block, values, range, memory().values);
    machine::wait_for_earlier_kernels();
    const Index summary = sharing.summary_of(x.x.table, range);
    if constexpr (Normalizes)
      for (int c = block.thread; c < key_dim; c += threads)
        machine::write(memory().key_sum.at(c),
                       machine::load_from(key_sums + summary * key_dim + c));
    Gradient gradient;
    [[maybe_unused]] ValueSums value_sums;
    multiply_summary(block, range, summary, gradient, value_sums);

    if constexpr (of_queries) {
      if constexpr (divides) {
        block.sync();  // the summary has been read
        memory().gradient.write(block, gradient);
        block.sync();
        start_sums(block, range);
      } else if constexpr (adds_own) {
        make_features<threads>(block, x, range, memory().x);
      }
      if constexpr (adds_own) {
        for (int i = block.thread; i < 2 * sums_of_row * rows; i += threads)
          machine::write<float>(memory().own_numbers.at(i), 0.0f);
        pair_queries(block, range, gradient);
      } else if constexpr (divides) {
        block.sync();
        finish_sums(block, range, 0);
      }
      if (!wanted) return;
    } else if constexpr (adds_own) {
      pair_keys(block, range, gradient, value_sums);
    }
    block.sync();                                   // tiles have been read, numbers written
    const Block anew = machine::known_anew(block);  // keys lack registers for what is known
    if constexpr (of_queries)
      write(block, range, gradient, value_sums);
    else
      write(anew, range_of(anew), gradient, value_sums);
  }

 private:
  /// A thread block's tile.
  MHLA_DEVICE TokenRange range_of(const Block& block) const {
    const BlockTable& table = x.x.table;
    BlockIndices indices(block);
    const int head = indices.next(sharing.all_heads());
    const int tile = indices.next(table.tiles_of_block(rows));
    const int b = indices.next(table.blocks);
    const TokenRange all = TokenRange::of_block(table, Index{indices.rest}, head, b);
    return all.from(all.begin + tile * rows);
  }
  MHLA_DEVICE int kv_head_of(const TokenRange& range) const { return range.head / sharing.heads; }

  // Numbers of the tile's rows.
  enum Number { denominator, product, weight, sum_weight };
  MHLA_DEVICE static Shared number(Number which, int row) {
    return memory().numbers.at(which * rows + row);
  }
  MHLA_DEVICE static SharedArray<float> own_numbers(int part) {
    return {memory().own_numbers.at(part * rows)};
  }
  /// A slice of a tile of all columns.
  template <class Values>
  MHLA_DEVICE static Values slice_of(const Values& values, int n) {
    return {values.at(0, n * slice)};
  }

  /// gradient = X S^T and, of keys, value_sums = phi^r(x) S, of features that replace x.
  MHLA_DEVICE void multiply_summary(const Block& block, const TokenRange& range, Index summary,
                                    Gradient& gradient, ValueSums& value_sums) const {
    constexpr int steps = slices * Parts;
    const auto begin_copy = [&](int step) {
      if (step < steps) {
        const T* const from = summaries.data + step % Parts * summaries.plane +
                              summary * key_dim * value_dim + step / Parts * slice;
        copy_rows<threads, T>(block, memory().summary[step % 2], [&](int r, int c) {
          return TensorRow<const T>{from + (r * value_dim + c), true};
        });
      }
      machine::commit_copies();
    };
    const auto multiply = [&](int step, ValueSum& of_values) {
      machine::wait_for_copies<0>();
      block.sync();  // this slice has landed, and the previous one has been read
      begin_copy(step + 1);
      if constexpr (!of_queries && !keeps_values)
        if (step > 0 && step % Parts == 0) round_values(block, of_values, step / Parts - 1);
      multiply_add<T, Stored::not_transposed, Stored::transposed>(
          block, gradient, slice_of(memory().values, step / Parts), memory().summary[step % 2]);
      if constexpr (!of_queries)
        multiply_add<T, Stored::not_transposed, Stored::not_transposed>(
            block, of_values, memory().x, memory().summary[step % 2]);
    };
    begin_copy(0);
    if constexpr (!of_queries) {
      machine::wait_for_copies<0>();
      block.sync();
      make_features<threads>(block, x, range, memory().x);
    }
    if constexpr (keeps_values || steps <= 2) {
      MHLA_DEVICE_UNROLL
      for (int step = 0; step < steps; ++step)
        multiply(step, value_sums[keeps_values ? step / Parts : 0]);
    } else {
      for (int step = 0; step < steps; ++step) multiply(step, value_sums[0]);
    }
    machine::wait_for_copies<0>();
    gradient.scale(1 / summaries.scale);
  }
  /// Rounds a slice of dv into the place of X's, which has been read.
  MHLA_DEVICE void round_values(const Block& block, ValueSum& sum, int n) const {
    if constexpr (!keeps_values) sum.scale(1 / summaries.scale);
    sum.for_each_pair(block, [&](int row, int col, float first, float second) {
      machine::write(slice_of(memory().values, n).at(row, col),
                     machine::rounded_pair<T>(first, second));
    });
    sum = {};
  }

  /// z, of the lane's strips.
  using KeySums = typename S::Elements[std::size_t{S::of_lane}];
  MHLA_DEVICE static void read_key_sums(const Block& block, KeySums& z) {
    if constexpr (Normalizes)
      S::for_each(block,
                  [&](int n, int i) { read_strip<key_dim>(memory().key_sum.begin, n, z[i]); });
  }
  /// phi(q) z + epsilon and phi^r(q) u, features in float; rounded ones replace q if pairs need
  /// them.
  MHLA_DEVICE void start_sums(const Block& block, const TokenRange& range) const {
    KeySums z;
    read_key_sums(block, z);
    const LaneAngles<key_dim, Traits::rotates> angles(block, x.rotation);
    for_each_token<threads, rows, key_dim, Traits::rotates>(
        block, x.x.table, range, [&](int row, const Place& place) {
          float den = 0, along = 0;
          const auto of_token = angles.of(block, place);
          S::for_each(block, [&](int n, int i) {
            typename S::Elements features = {};
            if (place.token >= 0) {
              read_strip<T>(memory().x, row, n, features);
              for (int e = 0; e < S::size; ++e) {
                features[e] = x.scale * x.map.value(features[e]);
                den += features[e] * z[i][e];
              }
              angles.turn(i, of_token, Turn::forward, features);
              typename S::Elements u;
              memory().gradient.read_strip(row, n, u);
              for (int e = 0; e < S::size; ++e) along += features[e] * u[e];
            }
            if constexpr (adds_own) write_strip<T>(memory().x, row, n, features);
          });
          den = sum_of_lanes<S::lanes>(den);
          along = sum_of_lanes<S::lanes>(along);
          if (S::leads(block)) {
            machine::write<float>(number(denominator, row), den + epsilon);
            machine::write<float>(number(product, row), along);
          }
        });
  }

  /// r and c of the tile's queries, and their part of dm_ii, from all sums. `mixing` is m_ii.
  MHLA_DEVICE void finish_sums(const Block& block, const TokenRange& range, float mixing) const {
    const BlockTable& table = x.x.table;
    const Index first = first_number(table, sharing.kv_heads, sharing.heads, range);
    const RangeTokens token_of(table, range);
    for (int row = block.thread; row < rows; row += threads) {
      const bool inside = row < token_of.left;
      const bool present = token_of(row) != absent.token;
      float scores = 0, products = 0;
      if constexpr (adds_own)
        for (int part = 0; part < sums_of_row; ++part) {
          scores += machine::read<float>(own_numbers(part).at(row));
          products += machine::read<float>(own_numbers(sums_of_row + part).at(row));
        }
      float r = 1, c = 0;
      if constexpr (divides) {
        const float den = machine::read<float>(number(denominator, row)) + mixing * scores;
        const float along = machine::read<float>(number(product, row)) + mixing * products;
        r = !present || den == 0 ? 0.0f : 1 / den;
        c = !present || den == 0 ? 0.0f : -along * r * r;
        if (inside) {
          machine::store_to(other.weights + first + row, r);
          machine::store_to(other.sum_weights + first + row, -along * r);
        }
        machine::write<float>(number(weight, row), r);
        machine::write<float>(number(sum_weight, row), c);
      }
      if constexpr (adds_own)
        if (inside)
          machine::store_to(other.own_products + first + row,
                            present ? r * products + c * scores : 0.0f);
    }
  }

  /// The features of the own tokens y, in shared memory, and D of their pairs with the tile's.
  MHLA_DEVICE void make_own_products(const Block& block, const TokenRange& y,
                                     Scores<rows>& products) const {
    const FeatureTile& features = memory().own_features;
    products = {};
    for (int s = 0; s < own_slices; ++s) {
      block.sync();  // what was in the tiles has been read
      if (s == 0) copy_tokens<threads>(block, own.y.x, y, features);
      copy_tokens<threads>(block, own.values, y, memory().own_values, s * own_slice);
      machine::commit_copies();
      machine::wait_for_copies<0>();
      block.sync();
      multiply_add<T, Stored::not_transposed, Stored::transposed>(
          block, products, slice_of(memory().values, s), memory().own_values);
    }
    make_features<threads>(block, own.y, y, features);
    block.sync();
    look_for_infinities<T, threads>(block, features, memory().flags);
  }
  /// gradient += W phi^r(y) for the pairs' weights W, rounded here.
  template <class Weight>
  MHLA_DEVICE void add_own_features(const Block& block, const TokenRange& range,
                                    const TokenRange& y, Scores<rows>& products,
                                    const Weight& weight_of, Gradient& gradient) const {
    const auto pair_counts = [&](int t, int j) { return counts<Own>(range, t, y, j); };
    write_scores<T>(block, products, memory().scores, pair_counts, weight_of);
    block.sync();
    add_pairs<T>(block, gradient, memory().scores, memory().own_features,
                 found_infinities<warps>(memory().flags), pair_counts);
  }

  /// The queries' sums over pairs, r and c; then the pairs' part of the gradient.
  MHLA_DEVICE void pair_queries(const Block& block, const TokenRange& range,
                                Gradient& gradient) const {
    const BlockTable& table = x.x.table;
    const float mixing = own_mixing(own, table, range, range);
    const float scale = own.weight_scale;
    const int kv_head = kv_head_of(range);
    Scores<rows> products;
    const auto add_pairs_of = [&](const TokenRange& y) {
      add_own_features(
          block, range, y, products,
          [&](int t, int, float d) {
            if constexpr (divides)
              return mixing * scale *
                     (machine::read<float>(number(weight, t)) * d +
                      machine::read<float>(number(sum_weight, t)));
            return mixing * scale * d;
          },
          gradient);
    };
    if constexpr (!divides) gradient.scale(scale);
    for_each_own_tile<rows>(own, table, range, kv_head, [&](const TokenRange& y) {
      make_own_products(block, y, products);
      Scores<rows> scores;
      multiply_add<T, Stored::not_transposed, Stored::transposed>(block, scores, memory().x,
                                                                  memory().own_features);
      keep_counted(block, scores, range, y);
      add_row_sums<rows>(block, scores, own_numbers(0));
      scores.multiply(products);
      keep_counted(block, scores, range, y);  // 0 times a possibly infinite number
      add_row_sums<rows>(block, scores, own_numbers(sums_of_row));
      if constexpr (!divides)
        if (wanted) add_pairs_of(y);
    });
    block.sync();
    finish_sums(block, range, mixing);
    if constexpr (divides) {
      if (!wanted) return;
      block.sync();
      gradient.for_each_pair(block, [&](int row, int, float& first, float& second) {
        const float r = scale * machine::read<float>(number(weight, row));
        first *= r;
        second *= r;
      });
      // From the last tile, whose products are available, to the first.
      TokenRange y{range.item, kv_head, range.begin, range.end};
      const int begin = table.begin_of(table.block_of(range.begin));
      for (; y.begin >= begin; y.begin -= rows) {
        if (y.begin != range.begin) make_own_products(block, y, products);
        add_pairs_of(y);
      }
    }
    gradient.scale(1 / scale);
  }
  MHLA_DEVICE static void keep_counted(const Block& block, Scores<rows>& scores,
                                       const TokenRange& range, const TokenRange& y) {
    scores.for_each_pair(block, [&](int t, int j, float& first, float& second) {
      if (!counts<Own>(range, t, y, j)) first = 0;
      if (!counts<Own>(range, t, y, j + 1)) second = 0;
    });
  }

  /// The parts of dk and dv from pairs with later queries.
  MHLA_DEVICE void pair_keys(const Block& block, const TokenRange& range, Gradient& gradient,
                             ValueSums& value_sums) const {
    const BlockTable& table = x.x.table;
    const float scale = own.weight_scale;
    gradient.scale(scale);
    for (auto& sum : value_sums) sum.scale(scale / summaries.scale);
    for_each_own_tile<rows>(own, table, range, kv_head_of(range), [&](const TokenRange& y) {
      const float mixing = own_mixing(own, table, range, y);
      block.sync();  // the previous tile's numbers have been read
      if constexpr (Normalizes) {
        const Index first = first_number(table, sharing.kv_heads, own.heads(), y);
        copy_numbers<threads, rows>(block, own.weights, first, y, 1.0f, own_numbers(0));
        copy_numbers<threads, rows>(block, own.sum_weights, first, y, 0.0f, own_numbers(1));
      }
      const auto weight_of = [&](int j) {
        return mixing * scale * (Normalizes ? machine::read<float>(own_numbers(0).at(j)) : 1.0f);
      };
      Scores<rows> products;
      make_own_products(block, y, products);
      add_own_features(
          block, range, y, products,
          [&](int, int j, float d) {
            if constexpr (Normalizes)
              return weight_of(j) * (d + machine::read<float>(own_numbers(1).at(j)));
            return weight_of(j) * d;
          },
          gradient);
      Scores<rows> scores;
      multiply_add<T, Stored::not_transposed, Stored::transposed>(block, scores, memory().x,
                                                                  memory().own_features);
      block.sync();  // the former weights have been read
      add_own_values(block, range, y, scores, weight_of, value_sums);
    });
    gradient.scale(1 / scale);
    for (auto& sum : value_sums) sum.scale(1 / scale);
  }
  /// dv += m_ii r_t P dy_t, weights rounded; the last of dy's slices is in shared memory.
  template <class Weight>
  MHLA_DEVICE void add_own_values(const Block& block, const TokenRange& range, const TokenRange& y,
                                  Scores<rows>& scores, const Weight& weight_of,
                                  ValueSums& value_sums) const {
    const auto pair_counts = [&](int t, int j) { return counts<Own>(range, t, y, j); };
    write_scores<T>(block, scores, memory().scores, pair_counts,
                    [&](int, int j, float p) { return weight_of(j) * p; });
    const auto flags = memory().flags;
    MHLA_DEVICE_UNROLL
    for (int n = slices - 1; n >= 0; --n) {
      if (own_slices > 1 && n + 1 < slices) {
        block.sync();  // the slice after it has been read
        copy_tokens<threads>(block, own.values, y, memory().own_values, n * slice);
        machine::commit_copies();
        machine::wait_for_copies<0>();
        block.sync();
      }
      if (own_slices > 1 || n + 1 == slices) {
        look_for_infinities<T, threads>(block, memory().own_values, flags);
        block.sync();
      }
      add_pairs<T>(block, value_sums[n], memory().scores,
                   own_slices > 1 ? memory().own_values : slice_of(memory().own_values, n),
                   found_infinities<warps>(flags), pair_counts);
    }
  }

  /// Stores the wanted gradients, rounded in the places of X and x.
  MHLA_DEVICE void write(const Block& block, const TokenRange& range, Gradient& gradient,
                         ValueSums& value_sums) const {
    if constexpr (adds_own || !of_queries) {
      copy_tokens<threads>(block, x.x, range, memory().x);
      machine::commit_copies();
    }
    if constexpr (adds_own || !divides) memory().gradient.write(block, gradient);
    if constexpr (keeps_values) {
      MHLA_DEVICE_UNROLL
      for (int n = 0; n < slices; ++n) round_values(block, value_sums[n], n);
    } else if constexpr (!of_queries) {
      round_values(block, value_sums[0], slices - 1);
    }
    machine::wait_for_copies<0>();
    if constexpr (adds_own || !divides) block.sync();
    if constexpr (!of_queries) {
      if (other.wanted) store_tokens<threads>(block, memory().values, other.dv, range, update);
      if (!wanted) return;
    }
    go_back_through_features(block, range);
    block.sync();
    store_tokens<threads>(block, memory().x, dx, range, update);
  }

  /// x = s phi'(x) o (R^T(g) + c z), in place.
  MHLA_DEVICE void go_back_through_features(const Block& block, const TokenRange& range) const {
    KeySums z;
    read_key_sums(block, z);
    unmake_features<threads, Traits::rotates>(
        block, x, range, memory().x, memory().gradient,
        [&](int row) {
          return divides && !adds_own ? machine::read<float>(number(weight, row)) : 1.0f;
        },
        [&](int row, int i, typename S::Elements& g) {
          const float c = divides ? machine::read<float>(number(sum_weight, row)) : 1.0f;
          if constexpr (Normalizes)
            for (int e = 0; e < S::size; ++e) g[e] += c * z[i][e];
        });
  }
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
