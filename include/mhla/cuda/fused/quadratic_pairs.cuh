// SPDX-License-Identifier: MIT
// What the kernels over pairs of tokens share: their operands, which pairs count, and the weights
// of those. A warp has 16 rows of a thread block's own tile, and visits the columns, tokens of the
// other side, in strips: rows are queries and columns keys, or vice versa.
#pragma once

#include <mhla/cuda/chip/warp_product.cuh>
#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/token_pairs.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Operands of every pair kernel. Scores are `q.scale` phi(q).phi(k).
template <class T, class Map, bool Rotates>
struct PairOperands {
  FeatureTokens<T, Map, Rotates> q;
  FeatureTokens<T, Map, Rotates> k;
  Tokens<const T> v;
  MixingWeights mixing;
  Sharing sharing;
  bool packed;  // the table has blocks of several sequences, which do not see each other

  template <Side side>
  MHLA_HOST_DEVICE const FeatureTokens<T, Map, Rotates>& tokens() const {
    return side == Side::queries ? q : k;
  }
  /// How many tiles the tokens of one side have, in all heads of it.
  template <Side side, int Rows>
  MHLA_HOST_DEVICE Index tiles(Index items) const {
    return items * ceil_div(tokens<side>().x.table.entries(), Rows) * heads<side>();
  }
  /// The tile of a thread block.
  template <Side side, int Rows>
  MHLA_DEVICE TokenRange tile(const Block& block) const {
    const int entries = tokens<side>().x.table.entries();
    BlockIndices at(block);
    const int head = at.next(heads<side>());
    const int begin = at.next(ceil_div(entries, Rows)) * Rows;
    return {Index{at.rest}, head, begin, begin + Rows < entries ? begin + Rows : entries};
  }

 private:
  template <Side side>
  MHLA_HOST_DEVICE int heads() const {
    return side == Side::queries ? sharing.all_heads() : sharing.kv_heads;
  }
};

/// What kernels over pairs are compiled for.
template <class Scalar, class FeatureMap, bool Rotates, int KeyDim, int ValueDim, Sight Sees,
          bool Divides>
struct PairTraits : KernelTraits<Scalar, FeatureMap, Rotates, KeyDim, ValueDim> {
  static constexpr Sight sees = Sees;
  static constexpr bool divides = Divides;
  /// A rotation applies to the numerators' features, not to the denominators'.
  static constexpr bool is_twofold = Rotates && Divides;
  static_assert(!is_twofold || Sees != Sight::past_tokens,
                "mhla: Causal with MixedKeySum and a rotation has no fused kernels");
  using Operands = PairOperands<Scalar, FeatureMap, Rotates>;
  static constexpr PairTiles tiles = pair_tiles(KeyDim, ValueDim, is_twofold);
};

/// Entries [begin, end) of a table, and tiles of Rows of them.
template <int Rows>
struct EntryRange {
  int begin;
  int end;

  MHLA_DEVICE int tiles() const { return begin < end ? (end - begin + Rows - 1) / Rows : 0; }
  MHLA_DEVICE TokenRange tile(int item, int head, int number) const {
    return {item, head, begin + number * Rows, end};
  }
};

/// The first block of the sequence of `b`, and the first after it.
MHLA_DEVICE int begin_of_sequence(const BlockTable& table, int b) {
  return b - static_cast<int>(machine::load_from(table.mix_rows.data + b));
}
MHLA_DEVICE int end_of_sequence(const BlockTable& table, int b) {
  int end = b + 1;
  while (end < table.blocks && machine::load_from(table.mix_rows.data + end) != 0) ++end;
  return end;
}

/// The entries that pair with some of [begin, end) of a table: the keys that these queries see, or
/// the queries that see these keys.
template <Sight sees, Side own, int Rows>
MHLA_DEVICE EntryRange<Rows> paired_with(const BlockTable& table, const BlockTable& others,
                                         bool packed, int begin, int end) {
  constexpr bool of_queries = own == Side::queries;
  EntryRange<Rows> found{0, others.entries()};
  if (packed) {
    if constexpr (sees == Sight::all || of_queries)
      found.begin = others.begin_of(begin_of_sequence(table, table.block_of(begin)));
    if constexpr (sees == Sight::all || !of_queries)
      found.end = others.begin_of(end_of_sequence(table, table.block_of(end - 1)));
  }
  // Both sides share a table.
  int& bound = of_queries ? found.end : found.begin;
  if constexpr (sees == Sight::past_blocks)
    bound = others.begin_of(of_queries ? table.block_of(end - 1) + 1 : table.block_of(begin));
  if constexpr (sees == Sight::past_tokens) bound = of_queries ? end : begin;
  return found;
}
/// Whether queries from one entry on may not see all of a tile of keys from another on.
template <Sight sees>
MHLA_DEVICE bool hides_some(bool packed, const BlockTable& table, int query_begin, int key_begin,
                            int keys) {
  bool hides = packed;
  if constexpr (sees == Sight::past_tokens) hides = hides || key_begin + keys > query_begin + 1;
  if constexpr (sees == Sight::past_blocks)
    hides = hides || table.block_of(key_begin + keys - 1) > table.block_of(query_begin);
  return hides;
}

/// The block of a tile's row.
struct alignas(8) RowBlock {
  std::int32_t mix_index;  // row or column of mix
  std::int32_t sequence;   // the first block of its sequence

  MHLA_DEVICE int in_table() const { return sequence + mix_index; }
  MHLA_DEVICE bool operator==(const RowBlock& other) const {
    return mix_index == other.mix_index && sequence == other.sequence;
  }
};

/// Those of all rows of a tile, in shared memory. Rows without a token, whose features and values
/// are zero, have the block of their place in the table; those past its end, the last one.
template <int Rows>
struct RowBlocks {
  static constexpr int bytes = Rows * 8;
  Shared begin;

  MHLA_DEVICE RowBlock operator[](int r) const {
    return machine::read<RowBlock>(begin + static_cast<Shared>(r * 8));
  }
  MHLA_DEVICE void look_up(const Block& block, const BlockTable& table, bool packed,
                           const TokenRange& range) const {
    const int r = block.thread;
    if (r >= Rows) return;
    const int b = table.block_of(range.begin + r < range.end ? range.begin + r : range.end - 1);
    RowBlock of{b, 0};
    if (packed) {
      of.mix_index = static_cast<std::int32_t>(machine::load_from(table.mix_rows.data + b));
      of.sequence = b - of.mix_index;
    }
    machine::write(begin + static_cast<Shared>(r * 8), of);
  }
};

/// Whether a row of a tile of queries, which is `ahead` of a tile of keys, sees one of that.
template <Sight sees>
MHLA_DEVICE bool sees_pair(const RowBlock& query, const RowBlock& key, int query_row, int key_row,
                           int ahead) {
  bool seen = query.sequence == key.sequence;
  if constexpr (sees == Sight::past_tokens) seen = seen && key_row <= query_row + ahead;
  if constexpr (sees == Sight::past_blocks) seen = seen && key.mix_index <= query.mix_index;
  return seen;
}

/// r and c of a query, as the gradients' kernels pass them on.
struct alignas(8) QueryWeights {
  float r;
  float c;
};

/// Shared memory of a thread block that has Rows tokens of its own, and loops over tiles of the
/// other side's: "values" are v, y or dy.
template <class Traits, Side own_side, int Rows, int Warps, bool has_own_values>
struct PairMemory {
  static constexpr int columns = Traits::tiles.others;
  using Own = Tile<Rows, Traits::key_dim>;
  using OwnValues = Tile<Rows, Traits::value_dim>;
  using Others = Tile<columns, Traits::key_dim>;
  using OtherValues = Tile<columns, Traits::value_dim>;
  using Weights = SharedArray<QueryWeights>;
  /// A part of the rows: fewer if they are long.
  static constexpr int part_rows = Rows <= 32 || Traits::key_dim > 128 ? 32 : 64;
  using Gradient = FloatTile < part_rows<Rows ? part_rows : Rows, Traits::key_dim>;
  static_assert(Rows % Gradient::rows == 0);
  static constexpr int stage_bytes = Others::bytes + OtherValues::bytes;
  static constexpr Side side = own_side;
  /// What products read as a second factor: features in a backward pass.
  static constexpr bool reads_features = has_own_values;
  static constexpr bool reads_values = !reads_features || side == Side::keys;
  static constexpr bool has_own_plain = Traits::is_twofold && own_side == Side::queries;

  MHLA_HOST_DEVICE constexpr PairMemory() {}
  SharedLayout layout{};
  RowBlocks<Rows> own_blocks = layout.take<RowBlocks<Rows>>();
  RowBlocks<columns> other_blocks = layout.take<RowBlocks<columns>>();
  /// Whether a warp found infinities among the others' features, and values.
  SharedArray<float> feature_flags = layout.take_array<float>(Warps);
  SharedArray<float> value_flags = layout.take_array<float>(Warps);
  SharedArray<float> mixing = layout.take_array<float>(max_kept_weights);
  /// r and c of the others. Warps that sum dv read the first, those that sum dk the second. Of
  /// twofold features dk also reads the first, and its part of unrotated features the second.
  Weights value_weights = layout.take_array<QueryWeights>(columns);
  Weights key_weights = layout.take_array<QueryWeights>(columns);
  SharedLayout at_end = layout;
  OwnValues out = at_end.take<OwnValues>();  // where all tiles were
  Own own = layout.take<Own>();
  SharedLayout after_own = layout;
  Gradient gradient = after_own.take<Gradient>();  // where all but `own` were
  OwnValues own_values = layout.take<OwnValues>(has_own_values);
  Own own_plain = layout.take<Own>(has_own_plain);  // unrotated features
  Others others_plain = layout.take<Others>(Traits::is_twofold);
  Others first_others = layout.take<Others>();  // of the ring's first stage
  OtherValues first_other_values = layout.take<OtherValues>();
  int stages = layout.bytes() + stage_bytes <= machine::max_shared_bytes ? 2 : 1;
  std::uint32_t other_stages = layout.take_bytes((stages - 1) * stage_bytes);
  int bytes = layout.go_past(at_end).go_past(after_own).bytes();

  MHLA_DEVICE Others others(int tile) const {
    return {first_others.begin + static_cast<Shared>(tile % stages * stage_bytes)};
  }
  MHLA_DEVICE OtherValues other_values(int tile) const {
    return {first_other_values.begin + static_cast<Shared>(tile % stages * stage_bytes)};
  }
};

/// How many of a strip's pairs count.
enum class Counted { none, some, all };

/// A warp's rows, of a thread block's own tile, and the columns, of a tile of the other side's:
/// which pairs count, and their weights, those of one head times a power of two. Small matrices of
/// weights are kept in shared memory; others, whose address and extents are read from the kernel's
/// operands again instead of taking registers, are not.
template <class Traits, Side own, int Rows>
struct WarpPairs {
  static constexpr Sight sees = Traits::sees;
  static constexpr bool transposed = own == Side::keys;

  RowBlocks<Rows> rows;
  RowBlocks<Traits::tiles.others> columns;
  SharedArray<float> kept;
  bool is_bounded;    // not every query sees every key
  bool has_eights;    // every eight columns from a multiple of eight on are of one block
  bool has_sixteens;  // every sixteen columns, and every sixteen rows, likewise
  int first_row;      // of the warp
  int ahead = 0;      // by how many entries the rows are ahead of the columns
  const MixingWeights& mixing;
  int head;
  float scale;

  template <class Memory>
  MHLA_DEVICE WarpPairs(const Block& block, const Memory& memory,
                        const typename Traits::Operands& of, int of_head, float times)
      : rows(memory.own_blocks),
        columns(memory.other_blocks),
        kept(memory.mixing),
        is_bounded(of.packed || sees != Sight::all),
        has_eights((transposed ? of.q : of.k).x.table.block_tokens % 8 == 0),
        has_sixteens(of.q.x.table.block_tokens % 16 == 0 && of.k.x.table.block_tokens % 16 == 0),
        first_row(first_row_of(block)),
        mixing(of.mixing),
        head(of_head),
        scale(times) {}

  MHLA_DEVICE static int first_row_of(const Block& block) {
    return block.warp() % (Rows / 16) * 16;
  }
  /// The first of the columns of a result that a warp sums, N each.
  template <int N>
  MHLA_DEVICE static int first_column_of(const Block& block) {
    const int slice = block.warp() / (Rows / 16);  // with keys, of dv, then of dk
    return (transposed ? slice % Traits::tiles.slices : slice) * N;
  }
  MHLA_DEVICE bool is_kept() const {
    return Index{mixing.rows} * mixing.columns <= max_kept_weights;
  }
  /// Copies the head's weights to shared memory, if they are to be there.
  template <int Threads>
  MHLA_DEVICE void keep(const Block& block) const {
    if (!is_kept()) return;
    const auto size = mixing.rows * mixing.columns;
    const float* const matrix = mixing.data + (mixing.heads == 1 ? 0 : head) * size;
    for (int i = block.thread; i < size; i += Threads)
      machine::write<float>(kept.at(i), scale * machine::load_from(matrix + i));
  }

  MHLA_DEVICE int row(const Block& block, int half) const {
    return first_row + block.lane() / 4 + half * 8;
  }
  MHLA_DEVICE bool counts(const RowBlock& of_row, const RowBlock& of_column, int row,
                          int column) const {
    return transposed ? sees_pair<sees>(of_column, of_row, column, row, -ahead)
                      : sees_pair<sees>(of_row, of_column, row, column, ahead);
  }
  MHLA_DEVICE bool counts(int row, int column) const {
    return counts(rows[row], columns[column], row, column);
  }
  /// Blocks ascend along both sides, so that corners decide.
  MHLA_DEVICE Counted counted(int first, int count) const {
    if (!is_bounded) return Counted::all;
    const int last_row = first_row + 15;
    const int last = first + count - 1;
    if (counts(first_row, last) && counts(last_row, first)) return Counted::all;
    const RowBlock row[2] = {rows[first_row], rows[last_row]};
    const RowBlock column[2] = {columns[first], columns[last]};
    bool none = row[1].sequence < column[0].sequence || column[1].sequence < row[0].sequence;
    if constexpr (sees == Sight::past_tokens)
      none = none || (transposed ? first_row > last - ahead : first > last_row + ahead);
    if constexpr (sees == Sight::past_blocks) {
      const RowBlock& query = transposed ? column[1] : row[1];
      const RowBlock& key = transposed ? row[0] : column[0];
      none = none || key.sequence + key.mix_index > query.sequence + query.mix_index;
    }
    return none ? Counted::none : Counted::some;
  }

  /// Replaces the scores of columns [first, first + Strip) by f(part, e, weight, score), that of
  /// value[part][e], or 0 where a pair does not count.
  template <int Strip, class F>
  MHLA_DEVICE void weigh(const Block& block, WarpRows<Strip>& scores, int first, Counted counted,
                         const F& f) const {
    if (counted == Counted::all && has_sixteens && is_kept()) {
      weigh_groups<16>(block, scores, first, f);
    } else if (counted == Counted::all && has_eights && is_kept()) {
      weigh_groups<8>(block, scores, first, f);
    } else if (is_kept()) {
      weigh_each<true>(block, scores, first, counted, f);
    } else {
      weigh_each<false>(block, scores, first, counted, f);
    }
  }

 private:
  /// Where a row's weights are kept, from which those of columns' blocks are steps().
  MHLA_DEVICE Shared kept_row(const RowBlock& of_row) const {
    const int step = transposed ? 1 : mixing.columns;
    return kept.at(of_row.mix_index * step);
  }
  MHLA_DEVICE int kept_step() const { return (transposed ? mixing.columns : 1) * 4; }
  template <int Group, int Strip, class F>
  MHLA_DEVICE void weigh_groups(const Block& block, WarpRows<Strip>& scores, int first,
                                const F& f) const {
    constexpr int weights = 16 / Group;  // of a group: those of a warp's rows, or one
    Shared row_at[std::size_t{weights}];
    for (int half = 0; half < weights; ++half) row_at[half] = kept_row(rows[row(block, half)]);
    const int step = kept_step();
    MHLA_DEVICE_UNROLL
    for (int group = 0; group < Strip / 8; group += Group / 8) {
      const auto at = static_cast<Shared>(columns[first + group * 8].mix_index * step);
      float weight[std::size_t{weights}];
      for (int half = 0; half < weights; ++half)
        weight[half] = machine::read<float>(row_at[half] + at);
      MHLA_DEVICE_UNROLL
      for (int part = group; part < group + Group / 8; ++part) {
        MHLA_DEVICE_UNROLL
        for (int e = 0; e < 4; ++e)
          scores.value[part][e] = f(part, e, weight[e / 2 % weights], scores.value[part][e]);
      }
    }
  }
  template <bool in_shared_memory, int Strip, class F>
  MHLA_DEVICE void weigh_each(const Block& block, WarpRows<Strip>& scores, int first,
                              Counted counted, const F& f) const {
    const RowBlock of_row[2] = {rows[row(block, 0)], rows[row(block, 1)]};
    const Shared row_at[2] = {kept_row(of_row[0]), kept_row(of_row[1])};
    const int step = kept_step();
    scores.for_each_element([&](int part, int e) {
      const int half = e / 2;
      const int column = first + WarpRows<Strip>::column(block, part) + e % 2;
      const RowBlock of_column = columns[column];
      float weight = 0;
      if constexpr (in_shared_memory) {
        weight =
            machine::read<float>(row_at[half] + static_cast<Shared>(of_column.mix_index * step));
      } else {
        const RowBlock& query = transposed ? of_column : of_row[half];
        const RowBlock& key = transposed ? of_row[half] : of_column;
        weight = scale * mixing.at(head, query.mix_index, key.mix_index);
      }
      const bool is_counted =
          counted == Counted::all || counts(of_row[half], of_column, row(block, half), column);
      float& score = scores.value[part][e];
      score = is_counted ? f(part, e, weight, score) : 0.0f;
    });
  }
};

/// sum += P C for a strip of P, rounded, and its rows of C, N columns. `spoilt`: C has infinities
/// and not every pair counts.
template <class T, int N, int Strip, int Cols, class Pairs, class TileC>
MHLA_DEVICE void add_strip(const Block& block, const Pairs& pairs, WarpRows<Cols>& sum,
                           const RowsInRegisters<Strip>& p, const TileC& c, int first,
                           bool spoilt) {
  if (spoilt) {
    multiply_add_seen_rows<T, N>(block, sum, p, c, first, [&](int half, int column) {
      return pairs.counts(pairs.row(block, half), column);
    });
  } else {
    multiply_add_rows<T, N>(block, sum, p, c, first);
  }
}

/// Adds sums over a strip's pairs of weights and scores of unrotated features.
template <class Kernel>
MHLA_DEVICE void add_plain_scores(const Block& block, const typename Kernel::Pairs& pairs,
                                  int first, Counted counted, float (&sums)[2]) {
  const RowsInTile queries(block, Kernel::memory().own_plain, pairs.first_row);
  auto scores = product_with_rows<typename Kernel::T, Kernel::strip>(
      block, queries, Kernel::memory().others_plain, first);
  pairs.weigh(block, scores, first, counted, [&](int, int e, float weight, float score) {
    sums[e / 2] += weight * score;
    return 0.0f;
  });
}

/// A tile's columns from `first` on.
template <int Rows, int Cols>
MHLA_DEVICE Tile<Rows, Cols> from_column(const Tile<Rows, Cols>& tile, int first) {
  return {tile.at(0, first)};
}

/// Writes unrotated features of a tile of tokens to a second tile, before the tile's own are
/// computed. Rows without a token are zero there, and stay so.
template <int Threads, class T, class Map, bool Rotates, int Rows, int Dim>
MHLA_DEVICE void make_plain_features(const Block& block, const FeatureTokens<T, Map, Rotates>& of,
                                     const TokenRange& range, const Tile<Rows, Dim>& tile,
                                     const Tile<Rows, Dim>& plain) {
  for_each_token<Threads, Rows, Dim, false>(
      block, of.x.table, range, [&](int row, const Place& place) {
        Strips<Dim>::for_each(block, [&](int n, int) {
          typename Strips<Dim>::Elements features;
          read_strip<T>(tile, row, n, features);
          for (float& x : features)
            x = place.token != absent.token ? of.scale * of.map.value(x) : 0.0f;
          write_strip<T>(plain, row, n, features);
        });
      });
}

/// Whether a rotated feature, a sum of two, may be infinite or NaN in T.
template <class T>
MHLA_DEVICE bool is_large(float feature) {
  constexpr float limit = std::is_same_v<T, BFloat16> ? 1e38f : 3e4f;
  return !(feature <= limit && feature >= -limit);
}

/// make_features, and flags for infinities among them. Keys have no scale.
template <int Threads, Side side, class T, class Map, bool Rotates, int Rows, int Dim>
MHLA_DEVICE void make_flagged_features(const Block& block, const FeatureTokens<T, Map, Rotates>& of,
                                       const TokenRange& range, const Tile<Rows, Dim>& tile,
                                       bool wants_flags, const SharedArray<float>& flags) {
  float found = 0;
  make_features<Threads>(
      block, of, range, tile, [&](int) { return side == Side::keys ? 1.0f : of.scale; },
      [&](int, int, const typename Strips<Dim>::Elements& plain) {
        for (const float feature : plain)
          if (is_large<T>(feature)) found = 1;
      },
      Ignore());
  if (wants_flags) write_flags(block, found, flags);
}

/// Calls use(tile, hides) for each of the tiles of the other side that pair with a thread block's
/// own one, of all heads, once their features and, if it `begins`, those of its own are made, and
/// prepare(range) was called. `values` are the other side's. `hides`: some pairs may not
/// count, and flags say where what the kernel reads has infinities.
template <class Kernel, class Prepare, class Use>
MHLA_DEVICE void for_each_other_tile(const Block& block, const typename Kernel::Operands& of,
                                     const Tokens<const typename Kernel::T>& values,
                                     const TokenRange& own, bool begins,
                                     typename Kernel::Pairs& pairs, const Prepare& prepare,
                                     const Use& use) {
  constexpr auto memory = &Kernel::memory;
  constexpr int threads = Kernel::threads;
  using Memory = typename Kernel::Memory;
  constexpr bool of_queries = Memory::side == Side::queries;
  constexpr Side other_side = of_queries ? Side::keys : Side::queries;
  const auto& x = of.template tokens<Memory::side>();
  const auto& y = of.template tokens<other_side>();
  const auto paired = paired_with<Kernel::sees, Memory::side, Kernel::columns>(
      x.x.table, y.x.table, of.packed, own.begin, own.end);
  const int tiles = paired.tiles();  // of a head
  const int first_head = of_queries ? own.head / of.sharing.heads : own.head * of.sharing.heads;
  const auto others_of = [&](int tile) {
    if constexpr (of_queries) return paired.tile(own.item, first_head, tile);
    return paired.tile(own.item, first_head + tile / tiles, tile % tiles);
  };
  const auto hides = [&](int tile) {
    const int begin = others_of(tile).begin;
    return of_queries
               ? hides_some<Kernel::sees>(of.packed, x.x.table, own.begin, begin, Kernel::columns)
               : hides_some<Kernel::sees>(of.packed, x.x.table, begin, own.begin, Kernel::rows);
  };
  for_each_tile<memory().stages>(
      block, of_queries ? paired.tiles() : tiles * of.sharing.heads,
      [&](int tile) {
        const Block anew = of_queries ? machine::known_anew(block) : block;
        copy_tokens<threads>(anew, y.x, others_of(tile), memory().others(tile));
        copy_tokens<threads>(anew, values, others_of(tile), memory().other_values(tile));
      },
      [&](int tile) {
        const TokenRange others = others_of(tile);
        const bool is_first = begins && tile == 0;
        if constexpr (Kernel::is_twofold) {
          if (of_queries && is_first)
            make_plain_features<threads>(block, x, own, memory().own, memory().own_plain);
          make_plain_features<threads>(block, y, others, memory().others(tile),
                                       memory().others_plain);
        }
        const auto flags = memory().feature_flags;
        if (is_first)
          make_flagged_features<threads, Memory::side>(block, x, own, memory().own, false, flags);
        make_flagged_features<threads, other_side>(of_queries ? machine::known_anew(block) : block,
                                                   y, others, memory().others(tile),
                                                   Memory::reads_features && hides(tile), flags);
        memory().other_blocks.look_up(block, y.x.table, of.packed, others);
        if (Memory::reads_values && hides(tile))
          look_for_infinities<typename Kernel::T, threads>(block, memory().other_values(tile),
                                                           memory().value_flags);
        prepare(others);
      },
      [&](int tile) {
        pairs.ahead = own.begin - others_of(tile).begin;
        use(tile, hides(tile));
      });
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
