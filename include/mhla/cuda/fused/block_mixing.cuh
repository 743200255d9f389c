// SPDX-License-Identifier: MIT
// The mixing of 16-bit summaries on tensor cores (arXiv 2601.07832, eq. 4), and its adjoint in the
// summaries; mixing_gradient.cuh has the adjoint in the matrix.
//
//   S~_(i,g) = sum_b m^g_ib S_b         causal: over b <= i - lag only
//   dS_b     = sum_(i,g) m^g_ib dS~_(i,g)
//
// and of key sums z likewise, in float.
//
// A summary is a row of `width` elements here. The matrix is split into m = hi + lo, both of the
// summaries' type, so that its rounding does not affect the result; with Half, entries are limited
// to 65504. Summaries have one plane, or two that add up likewise.
#pragma once

#include <mhla/cuda/chip/product.cuh>
#include <mhla/cuda/fused/block_mixing.hpp>
#include <mhla/cuda/fused/tokens.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// A summary for every block, or for every block and matrix: element c of plane p lies at at(unit,
/// block, matrix)[p * plane_stride + c]. Data is aligned to 16 bytes, strides are multiples of 8.
/// For a sequence of a packed batch, `data` is its first block. A kernel writes only to its result;
/// other rows are not const, so that one type serves both.
template <class T>
struct SummaryRows {
  T* data = nullptr;
  int planes = 1;  // 2: the second holds the rounding error of the first
  Index plane_stride = 0;
  Index unit_stride = 0;
  Index row_stride = 0;
  Index matrix_stride = 0;

  MHLA_DEVICE T* at(Index unit, Index row, Index matrix) const {
    return data + unit * unit_stride + matrix * matrix_stride + row * row_stride;
  }
};

/// Matrices of mix: element (i, b) of head h lies at data[h * head_stride + i * row_stride + b].
struct MixingMatrices {
  const float* data = nullptr;
  Index head_stride = 0;
  Index row_stride = 0;
  bool is_new = false;  // none of our kernels runs between the one that fills them and this one
};

/// Rows [begin, end) of a tile.
struct RowsOfTile {
  int begin;
  int end;
};

/// Asynchronously copies some rows of a part of a matrix into the same rows of a tile, and zeros
/// into the others of `written` and after `cols` columns.
template <int Threads, class T, int Rows, int Cols>
MHLA_DEVICE void copy_part(const Block& block, const Tile<Rows, Cols>& tile, const T* from,
                           Index row_stride, const RowsOfTile& rows, int cols,
                           const RowsOfTile& written) {
  constexpr int chunks = Tile<Rows, Cols>::chunks;
  static_assert(Threads % chunks == 0);
  constexpr int step = Threads / chunks;  // rows at once
  const int c = block.thread % chunks;
  int row = written.begin + block.thread / chunks;
  const bool is_inside = c * chunk_size < cols;
  const T* at = from + row * row_stride + c * chunk_size;
  Shared to = tile.begin + tile.chunk_offset(row, c);
  MHLA_DEVICE_UNROLL
  for (int n = 0; n < (Rows + step - 1) / step; ++n) {
    if (row < written.end)
      machine::copy_chunk(to, at, is_inside && row >= rows.begin && row < rows.end);
    row += step;
    at += step * row_stride;
    to += tile.chunk_offset(step, 0);
  }
}

/// A product of mixing. A warp has 16 rows and 64 columns of a result. If the matrix is one tile, a
/// thread block keeps it in registers for all its results; otherwise parts are read when needed.
template <class T, int Planes, int Side, bool Keeps>
struct MixBlocks {
  static constexpr int threads = 256;
  static constexpr int row_warps = Side / 16;
  static constexpr int col_warps = 8 / row_warps;
  static constexpr int inner_parts = Side / 16;
  using Panel = Tile<Side, 64 * col_warps>;
  using Sum = Accumulators<Side, 64 * col_warps, row_warps, col_warps>;
  static_assert(Sum::row_parts == 1 && Sum::col_parts == 8);
  static constexpr int stage_bytes = Planes * Panel::bytes;
  static constexpr int shared_bytes = 2 * stage_bytes;
  static constexpr int min_blocks_per_sm = 2;

  MixingWork work;
  MixingMatrices mixing;
  SummaryRows<T> source;
  SummaryRows<T> result;

  /// A tile of a result.
  struct Item {
    int group;
    int unit;
    int first_row;
    int first_col;
  };
  MHLA_DEVICE Item item(int number) const {
    Item item;
    item.first_col = number % work.panels * Panel::cols;
    number /= work.panels;
    item.first_row = number % work.row_tiles * Side;
    number /= work.row_tiles;
    item.group = number / work.units_of_group;
    item.unit = number % work.units_of_group * work.kv_heads + item.group / work.outputs;
    return item;
  }
  /// The one after it, if the matrix is one tile.
  MHLA_DEVICE Item after(Item item) const {
    item.first_col += Panel::cols;
    if (item.first_col < work.width) return item;
    item.first_col = 0;
    item.unit += work.kv_heads;
    if (item.unit < work.units_of_group * work.kv_heads) return item;
    ++item.group;
    item.unit = item.group / work.outputs;
    return item;
  }
  MHLA_DEVICE int end_row(const Item& item) const {
    return item.first_row + Side < work.rows ? item.first_row + Side : work.rows;
  }

  /// Tiles of inner rows summed for it, for every matrix: at least one, maybe empty.
  MHLA_DEVICE int first_tile(const Item& item) const {
    return work.inner_begin(item.first_row) / Side;
  }
  MHLA_DEVICE int tiles(const Item& item) const {
    const int count = (work.inner_end(end_row(item)) + Side - 1) / Side - first_tile(item);
    return count < 1 ? 1 : count;
  }
  /// For term `n`: the tile's first inner row, and the matrix.
  struct Term {
    int first;
    int matrix;
  };
  MHLA_DEVICE Term term(const Item& item, int n) const {
    if constexpr (Keeps) return {0, 0};
    const int of_matrix = tiles(item);
    return {(first_tile(item) + n % of_matrix) * Side, n / of_matrix};
  }

  MHLA_DEVICE static Panel panel(int stage, int plane) {
    return {static_cast<Shared>(stage * stage_bytes + plane * Panel::bytes)};
  }
  MHLA_DEVICE static int in_tile(int at) { return at < 0 ? 0 : at < Side ? at : Side; }

  MHLA_DEVICE void copy_source(const Block& block, const Item& item, int n, int stage) const {
    const Term of = term(item, n);
    const int begin = in_tile(work.inner_begin(item.first_row) - of.first);
    const int end = in_tile(work.inner_end(end_row(item)) - of.first);
    // Summaries are the same for all matrices, gradients of mixed ones are not.
    const T* from = source.at(item.unit, of.first, of.matrix) + item.first_col;
    // Products read full parts of 16 rows.
    for (int plane = 0; plane < Planes; ++plane, from += source.plane_stride)
      copy_part<threads>(block, panel(stage, plane), from, source.row_stride, {begin, end},
                         work.width - item.first_col, {begin / 16 * 16, (end + 15) / 16 * 16});
  }

  /// 16 x 16 elements of the matrix, as operands of products.
  struct Coefficients {
    std::uint32_t high[4];
    std::uint32_t low[4];
  };
  /// Those of a warp's rows and a part of its tile, as loaded from memory.
  struct Loaded {
    float value[4][2];
  };
  MHLA_DEVICE Loaded load_part(const Block& block, const Item& item, const Term& of,
                               int part) const {
    const int head =
        item.group / work.outputs * work.matrices + item.group % work.outputs + of.matrix;
    const Index row_step = work.adjoint ? 1 : mixing.row_stride;
    const Index inner_step = work.adjoint ? mixing.row_stride : 1;
    const int first_row = item.first_row + Sum::row_part(block, 0) * 16 + block.lane() / 4;
    const int first = of.first + part * 16 + block.lane() % 4 * 2;
    const float* const from =
        mixing.data + head * mixing.head_stride + first_row * row_step + first * inner_step;
    Loaded loaded;
    MHLA_DEVICE_UNROLL
    for (int x = 0; x < 4; ++x) {
      MHLA_DEVICE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int row = x % 2 * 8, at = x / 2 * 8 + e;
        loaded.value[x][e] = work.sees(first_row + row, first + at)
                                 ? machine::load_from(from + row * row_step + at * inner_step)
                                 : 0;
      }
    }
    return loaded;
  }
  /// Rounds them, and then their rounding errors.
  MHLA_DEVICE static Coefficients coefficients_of(Loaded loaded) {
    Coefficients of;
    MHLA_DEVICE_UNROLL
    for (int x = 0; x < 4; ++x) {
      of.high[x] = split_off<T>(loaded.value[x][0], loaded.value[x][1]);
      of.low[x] = machine::rounded_pair<T>(loaded.value[x][0], loaded.value[x][1]);
    }
    return of;
  }

  /// sum += m source, of one tile of inner rows: for_each_part(f) calls f(part, coefficients) of
  /// the matrix. If `guards`, non-finite elements do not spread to rows that do not see them.
  template <bool guards, class F>
  MHLA_DEVICE void multiply(const Block& block, const Item& item, int n, int stage, Sum& sum,
                            const F& for_each_part) const {
    const Term of = term(item, n);
    const int row = item.first_row + Sum::row_part(block, 0) * 16;
    if (row >= work.rows) return;
    const int last = row + 15 < work.rows ? row + 15 : work.rows - 1;
    const Shared factors =
        panel(stage, 0).chunk(block.lane() % 16, Sum::col_part(block, 0) + block.lane() / 16);
    // What any of the warp's rows sees, and what all of them see.
    const int any_begin = work.inner_begin(row) - of.first;
    const int any_end = work.inner_end(last + 1) - of.first;
    const int all_begin = work.inner_begin(last) - of.first;
    const int all_end = work.inner_end(row + 1) - of.first;
    for_each_part([&](int part, const Coefficients& coefficients) {
      const int begin = part * 16;
      const int end = begin + 16;
      if (begin >= any_end || end <= any_begin) return;
      const bool guarded = guards && work.past_only && (end > all_end || begin < all_begin);
      std::uint32_t sees[4] = {};
      if (guarded)
        ones_where_seen<T>(
            block, row, of.first + begin, [&](int r, int at) { return work.sees(r, at); }, sees);
      MHLA_DEVICE_UNROLL
      for (int j = 0; j < Sum::col_parts; j += 2) {
        MHLA_DEVICE_UNROLL
        for (int plane = 0; plane < Planes; ++plane) {
          std::uint32_t factor[4];
          machine::load_matrices_transposed(
              factor, factors + static_cast<Shared>(plane * Panel::bytes +
                                                    part * 16 * Panel::stride + j * 16));
          MHLA_DEVICE_UNROLL
          for (int half = 0; half < 2; ++half) {
            float(&to)[4] = sum.value[0][j + half];
            std::uint32_t& upper = factor[2 * half];
            std::uint32_t& lower = factor[2 * half + 1];
            if (guarded) guard_unseen<T>(sees, upper, lower, to);
            machine::multiply_add<T>(to, coefficients.high, upper, lower);
            if (plane == 0) machine::multiply_add<T>(to, coefficients.low, upper, lower);
          }
        }
      }
    });
  }
  /// Multiplies with coefficients from memory, part by part.
  MHLA_DEVICE void multiply_guarded(const Block& block, const Item& item, int n, int stage,
                                    Sum& sum) const {
    const Term of = term(item, n);
    multiply<true>(block, item, n, stage, sum, [&](const auto& multiply_part) {
      Loaded next = load_part(block, item, of, 0);
      MHLA_DEVICE_ROLLED
      for (int part = 0; part < inner_parts; ++part) {
        const Loaded loaded = next;
        if (part + 1 < inner_parts) next = load_part(block, item, of, part + 1);
        multiply_part(part, coefficients_of(loaded));
      }
    });
  }
  /// Whether a warp's sums have an infinity or NaN. The warp meets.
  MHLA_DEVICE static bool has_not_finite(const Sum& sum) {
    float found = 0;
    for (const auto& part : sum.value[0])
      for (const float element : part) found += element - element;
    return sum_of_lanes<32>(found) != 0;
  }

  /// Rounds a warp's part of a result, plane by plane, and writes its rows in full chunks, through
  /// the source's tile, which other warps no longer read.
  MHLA_DEVICE void write(const Block& block, const Item& item, int stage, Sum& sum) const {
    const Panel tile = panel(stage, 0);
    const int first_row = Sum::row_part(block, 0) * 16;
    const int first_chunk = Sum::col_part(block, 0);
    const Shared of_lane =
        tile.at(first_row + block.lane() / 4, first_chunk * chunk_size + block.lane() % 4 * 2);
    for (int plane = 0; plane < result.planes; ++plane) {
      T* to = result.data + plane * result.plane_stride + item.unit * result.unit_stride +
              item.group % work.outputs * result.matrix_stride +
              item.first_row * result.row_stride + item.first_col;
      const auto write_pairs = [&](const auto& rounded) {
        MHLA_DEVICE_UNROLL
        for (int j = 0; j < Sum::col_parts; ++j) {
          float(&value)[4] = sum.value[0][j];
          const Shared at = of_lane + static_cast<Shared>(j * 16);
          machine::write(at, rounded(value[0], value[1]));
          machine::write(at + 8 * Panel::stride, rounded(value[2], value[3]));
        }
      };
      if (plane + 1 < result.planes) {
        write_pairs([](float& first, float& second) { return split_off<T>(first, second); });
      } else {
        write_pairs(
            [](float first, float second) { return machine::rounded_pair<T>(first, second); });
      }
      block.sync_warp();
      // A lane handles one chunk of every fourth row.
      const int row = first_row + block.lane() / Sum::col_parts;
      const int c = first_chunk + block.lane() % Sum::col_parts;
      const int left =
          item.first_col + c * chunk_size < work.width ? work.rows - item.first_row - row : 0;
      Shared from = tile.chunk(row, c);
      T* of_row = to + row * result.row_stride + c * chunk_size;
      // Unrolled, chunks in flight would take the registers that keep the matrix.
      MHLA_DEVICE_ROLLED
      for (int r = 0; r < 16; r += 32 / Sum::col_parts) {
        if (r < left)
          machine::store_to(reinterpret_cast<Chunk*>(of_row), machine::read<Chunk>(from));
        from += 32 / Sum::col_parts * Panel::stride;
        of_row += 32 / Sum::col_parts * result.row_stride;
      }
      block.sync_warp();
    }
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    if constexpr (Keeps) {
      mix_stretch(block);
    } else {
      mix_item(block, item(static_cast<int>(block.number)));
    }
  }

 private:
  /// Of a stretch of items, each of which has one term.
  MHLA_DEVICE void mix_stretch(const Block& block) const {
    const auto stretch = [&](Index part) {
      return even_split(work.items, static_cast<int>(block.blocks), static_cast<int>(part));
    };
    const int first = stretch(block.number);
    int left = stretch(block.number + 1) - first;
    Item current = item(first);
    Item next = current;
    int stage = 0;
    const auto begin_copy = [&] {
      if (left > 0) copy_source(machine::known_anew(block), next, 0, stage);
      machine::commit_copies();
    };
    if (mixing.is_new) {
      machine::wait_for_earlier_kernels();
      begin_copy();
    }
    bool has_begun = mixing.is_new;
    int kept_group = -1;
    Coefficients kept[std::size_t{inner_parts}] = {};
    for (; left > 0; current = next) {
      if (current.group != kept_group) {
        const Block anew = machine::known_anew(block);
        MHLA_DEVICE_UNROLL
        for (int part = 0; part < inner_parts; ++part)
          kept[part] = coefficients_of(load_part(anew, current, {0, 0}, part));
        kept_group = current.group;
      }
      if (!has_begun) {
        // The matrix is a table, already filled: the previous kernel only makes summaries.
        machine::wait_for_earlier_kernels();
        begin_copy();
        has_begun = true;
      }
      machine::wait_for_copies<0>();
      // The copies of all threads have landed, and the other stage is no longer read.
      block.sync();
      stage = 1 - stage;
      --left;
      next = after(current);
      begin_copy();
      Sum sum;
      multiply<false>(machine::known_anew(block), current, 0, 1 - stage, sum,
                      [&](const auto& multiply_part) {
                        MHLA_DEVICE_UNROLL
                        for (int part = 0; part < inner_parts; ++part)
                          multiply_part(part, kept[part]);
                      });
      if (work.past_only && has_not_finite(sum)) {
        sum = {};
        multiply_guarded(machine::known_anew(block), current, 0, 1 - stage, sum);
        // No registers keep the matrix meanwhile.
        for (Coefficients& of_part : kept) of_part = {};
        kept_group = -1;
      }
      block.sync();
      write(machine::known_anew(block), current, 1 - stage, sum);
    }
    if (!has_begun) machine::wait_for_earlier_kernels();
  }

  /// Of one item.
  MHLA_DEVICE void mix_item(const Block& block, const Item& current) const {
    machine::wait_for_earlier_kernels();
    Sum sum;
    const int terms = tiles(current) * work.summed;
    int stage = 0;
    const auto begin_copy = [&](int n) {
      if (n < terms) copy_source(machine::known_anew(block), current, n, n % 2);
      machine::commit_copies();
    };
    begin_copy(0);
    for (int n = 0; n < terms; ++n) {
      stage = n % 2;
      machine::wait_for_copies<0>();
      block.sync();  // this term has landed, and the previous one has been read
      begin_copy(n + 1);
      multiply_guarded(block, current, n, stage, sum);
    }
    block.sync();
    write(machine::known_anew(block), current, stage, sum);
  }
};

/// z~ = m z or, as its adjoint, dz = m^T dz~, of rows of one plane, aligned to 16 bytes. A thread
/// block computes a tile of one result: a thread one column of eight rows, as many threads side by
/// side as there are columns.
struct MixKeySums {
  static constexpr int threads = 128;
  static constexpr int rows_of_thread = 8;
  static constexpr int staged_weights = 1024;
  static constexpr int shared_bytes = 4 * staged_weights;
  static constexpr int min_blocks_per_sm = 4;
  static constexpr int step = 8;  // inner rows loaded at once

  MixingWork work;  // `width` is that of a key sum, a multiple of 4
  MixingMatrices matrices;
  SummaryRows<float> source;
  SummaryRows<float> result;
  Index units;
  int columns;  // of a tile, whole warps
  int rows;
  int column_tiles;
  int row_tiles;

  MixKeySums(const MixingShape& shape, bool adjoint, const MixingMatrices& mixing,
             const SummaryRows<float>& from, const SummaryRows<float>& to)
      : work(shape, adjoint),
        matrices(mixing),
        source(from),
        result(to),
        units(shape.units),
        columns(std::clamp((work.width + 31) / 32 * 32, 32, threads)),
        rows(threads / columns * rows_of_thread),
        column_tiles((work.width + columns - 1) / columns),
        row_tiles((work.rows + rows - 1) / rows) {}

  Index blocks() const {
    return checked_mul(checked_mul(units, work.outputs), Index{row_tiles} * column_tiles);
  }

  MHLA_DEVICE void operator()(const Block& block) const {
    machine::wait_for_earlier_kernels();
    BlockIndices index(block);
    const int first_column = index.next(column_tiles) * columns;
    const int first_row = index.next(row_tiles) * rows;
    const int output = index.next(work.outputs);
    const auto unit = static_cast<int>(index.rest);

    const int group = block.thread / columns;  // of rows
    const int row = first_row + group * rows_of_thread;
    const int column = first_column + block.thread % columns;
    const int end_row = first_row + rows < work.rows ? first_row + rows : work.rows;
    const bool idle = row >= end_row || column >= work.width;
    const int begin = work.inner_begin(first_row);
    const int end = work.inner_end(end_row);
    const int staged = staged_weights / rows;
    float sum[std::size_t{rows_of_thread}] = {};
    for (int matrix = 0; matrix < work.summed; ++matrix) {
      const int head = unit % work.kv_heads * work.matrices + output + matrix;
      const float* const from = source.at(unit, 0, matrix) + column;
      for (int first = begin; first < end; first += staged) {
        const int last = end < first + staged ? end : first + staged;
        block.sync();
        stage(block, matrices.data + head * matrices.head_stride, first_row, first, last - first);
        block.sync();
        if (idle) continue;
        if (work.past_only) {
          add<true>(from, row, group, first, last, sum);
        } else {
          add<false>(from, row, group, first, last, sum);
        }
      }
    }
    if (idle) return;
    float* const to = result.at(unit, row, output) + column;
    MHLA_DEVICE_UNROLL
    for (int r = 0; r < rows_of_thread; ++r)
      if (row + r < work.rows) machine::store_to(to + r * result.row_stride, sum[r]);
  }

  /// Weights of `count` inner rows from `first` on, and up to whole steps, one after the other; 0
  /// where unseen.
  MHLA_DEVICE void stage(const Block& block, const float* matrix, int first_row, int first,
                         int count) const {
    const int inner = (count + step - 1) / step * step;
    for (int n = block.thread; n < inner * rows; n += threads) {
      // Threads follow memory order.
      const int r = work.adjoint ? n % rows : n / inner;
      const int k = work.adjoint ? n / rows : n % inner;
      const int row = first_row + r;
      const int at = first + k;
      const Index offset =
          work.adjoint ? at * matrices.row_stride + row : row * matrices.row_stride + at;
      machine::write(static_cast<Shared>((k * rows + r) * 4),
                     work.sees(row, at) ? machine::load_from(matrix + offset) : 0.0f);
    }
  }

  /// Adds inner rows [first, end). What a row does not see may be NaN, so it is not even multiplied
  /// by 0.
  template <bool past_only>
  MHLA_DEVICE void add(const float* from, int row, int group, int first, int end,
                       float (&sum)[std::size_t{rows_of_thread}]) const {
    for (int k = 0; first + k < end; k += step) {
      float value[std::size_t{step}];
      MHLA_DEVICE_UNROLL
      for (int e = 0; e < step; ++e) {
        const int at = first + k + e;
        value[e] = at < end ? machine::load_from(from + at * source.row_stride) : 0.0f;
      }
      MHLA_DEVICE_UNROLL
      for (int e = 0; e < step; ++e) {
        const auto weights = static_cast<Shared>(((k + e) * rows + group * rows_of_thread) * 4);
        MHLA_DEVICE_UNROLL
        for (int r = 0; r < rows_of_thread; r += 4) {
          const auto four = machine::read<Vector<float, 4>>(weights + static_cast<Shared>(r * 4));
          MHLA_DEVICE_UNROLL
          for (int x = 0; x < 4; ++x)
            if (!past_only || work.sees(row + r + x, first + k + e))
              sum[r + x] += four.element[x] * value[e];
        }
      }
    }
  }
};

/// S~ = m S, in place if mixes_in_place(), or, if `adjoint`, dS = m^T dS~.
template <class T>
void mix(const CudaDevice& device, const MixingShape& shape, bool adjoint,
         const MixingMatrices& mixing, const SummaryRows<T>& source, const SummaryRows<T>& result,
         Index max_blocks = resident_thread_blocks) {
  const MixingWork work(shape, adjoint, max_blocks);
  if (source.data == result.data && !(work.keeps && work.rows <= work.inner && work.outputs == 1))
    throw ShapeError(
        {"mhla: summaries of ", work.inner, " blocks cannot be mixed to ", work.rows, " in place"});
  const auto run = [&](const auto& body) { machine::run(device, work.blocks, body); };
  const auto run_of_planes = [&]<int Planes>() {
    if (!work.keeps)
      run(MixBlocks<T, Planes, 128, false>{work, mixing, source, result});
    else if (work.side == 32)
      run(MixBlocks<T, Planes, 32, true>{work, mixing, source, result});
    else
      run(MixBlocks<T, Planes, 128, true>{work, mixing, source, result});
  };
  if (source.planes == 1)
    run_of_planes.template operator()<1>();
  else
    run_of_planes.template operator()<2>();
}

/// z~ = m z or, if `adjoint`, dz = m^T dz~; the width of `shape` is that of a key sum.
inline void mix_key_sums(const CudaDevice& device, const MixingShape& shape, bool adjoint,
                         const MixingMatrices& mixing, const SummaryRows<float>& source,
                         const SummaryRows<float>& result) {
  const MixKeySums body(shape, adjoint, mixing, source, result);
  machine::run(device, body.blocks(), body);
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
