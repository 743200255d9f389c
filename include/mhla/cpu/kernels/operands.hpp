// SPDX-License-Identifier: MIT
// Operands of kernels.hpp's kernels, the same for every instruction set.
#pragma once

#include <array>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Rows of a matrix in memory: row r is at data + places[r] * stride, or, without places, at data +
/// r * stride.
template <class T>
struct Rows {
  T* data = nullptr;
  Index stride = 0;
  const Index* places = nullptr;

  T* operator[](Index r) const { return data + (places != nullptr ? places[r] : r) * stride; }
  template <class U, class = std::enable_if_t<std::is_same_v<U, const T> && !std::is_const_v<T>>>
  operator Rows<U>() const {  // NOLINT: adds const, loses nothing
    return {data, stride, places};
  }
};

/// g_r + weight_r h_r: weights are 1 if they are null, and h may be absent.
template <class T>
struct RowGradients {
  Rows<const T> rows;
  const T* weights;
  Rows<const T> weighted;
};

/// Maximum rows of a product's factors that need not be contiguous.
inline constexpr Index max_placed_rows = 128;

/// Places of consecutive rows.
inline constexpr std::array<Index, std::size_t{max_placed_rows}> consecutive_places = [] {
  std::array<Index, std::size_t{max_placed_rows}> places{};
  for (std::size_t r = 0; r < places.size(); ++r) places[r] = static_cast<Index>(r);
  return places;
}();

/// Memory that is needed soon: rows of up to four tensors at the same places, and then contiguous
/// memory. A product prefetches one cache line with every term of its sums: no burst that would
/// stall the product, and no wait later.
class Prefetch {
 public:
  /// Empty until tensors are added.
  Prefetch() = default;
  /// Without places, row r is in place r.
  Prefetch(const Index* places, Index rows) : places_(places), rows_(rows) {}

  /// Row r at data + places[r] * stride; `stride` and `length` of a row in bytes.
  void add(const void* data, Index stride, Index length) { add(data, stride, length, rows_); }
  /// Adds the first `rows` rows only; the first tensor has all of them.
  void add(const void* data, Index stride, Index length, Index rows) {
    if (rows == 0 || length == 0) return;
    tensors_[count_++] = {static_cast<const char*>(data), stride, length, rows};
    if (count_ == 1) lines_ = row();
  }
  /// `bytes` contiguous bytes, after the last row of the tensors.
  void add_piece(const void* data, Index bytes) {
    if (count_ == 0 || bytes == 0) return;
    const char* const begin = static_cast<const char*>(data);
    piece_ = {begin, begin + bytes, line_bytes};
  }

  /// Lines from here to the end of a row: what a loop keeps in registers. After the last line,
  /// one line repeats.
  struct Lines {
    const char* next;
    const char* end;
    Index step;
  };
  const Lines& lines() const { return lines_; }
  void set_lines(const Lines& lines) { lines_ = lines; }

  /// The lines of the next row.
  __attribute__((always_inline)) Lines next_row() {
    if (++tensor_ >= count_ || row_ >= tensors_[tensor_].rows) {
      tensor_ = 0;
      if (++row_ >= rows_) {
        const Lines last = piece_;
        piece_.step = 0;
        return last;
      }
    }
    return row();
  }

 private:
  static constexpr Index line_bytes = 64;
  static constexpr int max_tensors = 4;
  static constexpr char here[1] = {};

  __attribute__((always_inline)) Lines row() const {
    const Tensor& tensor = tensors_[tensor_];
    const char* const begin =
        tensor.data + (places_ != nullptr ? places_[row_] : row_) * tensor.stride;
    return {begin, begin + tensor.length, line_bytes};
  }

  struct Tensor {
    const char* data;
    Index stride;
    Index length;
    Index rows;
  };
  Lines lines_{here, here + 1, 0};
  Lines piece_{here, here + 1, 0};
  const Index* places_ = nullptr;
  Index rows_ = 0;
  Index row_ = 0;
  int tensor_ = 0;
  int count_ = 0;
  Tensor tensors_[max_tensors];
};

// Maximum length of a row of any tile, and of any vector.
inline constexpr Index max_tile_bytes = 256;
inline constexpr Index max_vector_bytes = 64;
// Terms summed at once; times the columns of a tile at most 32 KB, on the stack.
inline constexpr Index max_terms = max_placed_rows;

/// c [rows, cols] (+)= a b or a^T b, each row times its scale.
template <class T>
struct Product {
  Index rows;
  Index cols;
  Index depth;
  Rows<const T> a;  // [rows, depth], without places; or [depth, rows]
  bool a_transposed = false;
  Rows<const T> b;  // [depth, cols]; without places unless a is transposed
  Rows<T> c;
  bool add = false;
  const T* scale = nullptr;      // [rows]; null: 1
  Prefetch* prefetch = nullptr;  // memory to prefetch meanwhile, or null
  // If set, the product is summed separately and then added to c, so that the error of many
  // products does not grow with all their terms; otherwise c's sum is continued, and has the same
  // bits wherever it is cut.
  bool in_parts = false;
};

/// sum += weight times the rows of a; running_r, unless null, is sum after row r. With `rest`,
/// which carries each part's rounding error to the next, errors of sums of many parts do not
/// accumulate.
template <class T>
struct RowSum {
  Index rows;
  Index cols;
  T weight;
  const T* a;
  Index a_stride;
  T* sum;
  T* rest = nullptr;
  T* running = nullptr;
  Index running_stride = 0;
};

/// Products of rows, c (+)= a b^T, summed lane by lane: for rows much longer than a tile is wide.
/// Element (i, j) of c at c[i * c_stride + j * c_step].
template <class T>
using DotTile = void(Index depth, const T* a, Index a_stride, const T* b, Index b_stride, T* c,
                     Index c_stride, Index c_step);
template <class T>
struct DotTiles {
  Index rows;          // of a in the largest tile
  DotTile<T>* tile;    // [rows, 4]
  DotTile<T>* row;     // [1, 4]
  DotTile<T>* single;  // [1, 1]
};

/// Of the gradients of rows of scores.
template <class T>
struct ScoreGradientKernels {
  T (*weighted_sums)(Index count, const T* w, const T* e, const T* p, const T* g, T* other);
  void (*score_gradients)(Index count, const T* w, T scale, T c, T* p, T* g, T* by_weight);
  void (*add_scaled)(Index count, T factor, const T* from, T* to);
};

/// Rows of a triangle that are processed together.
inline constexpr Index triangle_rows = 8;

/// Which terms the rows of a product have: all of them; or, past, row i all but the last
/// rows - 1 - i; or, future, all but the first i.
enum class Terms { all, past, future };

// Products whose factors are bfloat16, two terms side by side as the instructions want them.

/// Two bfloat16: term 2 k of a product in the lower half, term 2 k + 1 in the upper.
using Pair = std::uint32_t;

/// Pairs of that many terms, of which an odd last one has no partner.
inline constexpr Index pairs_of(Index terms) { return ceil_div(terms, Index{2}); }

/// Columns of a panel of pairs: whole vectors of any instruction set.
inline constexpr Index whole_columns(Index cols) { return ceil_div(cols, Index{16}) * 16; }

/// A left factor [rows, terms]: rows as they are, or the transpose of a panel.
struct LeftFactor {
  const Pair* data;
  Index rows;
  Index pairs;
  Index row_stride;
  Index pair_stride;

  /// Some of the rows, and pairs [begin, end).
  LeftFactor range(Index first, Index count, Index begin, Index end) const {
    return {data + first * row_stride + begin * pair_stride, count, end - begin, row_stride,
            pair_stride};
  }
  /// One row of ones.
  static LeftFactor ones(Index terms) {
    static constexpr Pair one = 0x3f803f80;
    return {&one, 1, pairs_of(terms), 0, 0};
  }
};

/// Pairs of rows, [pairs of terms, cols], which are read in whole vectors. Borrowed.
struct VnniPanel {
  Pair* data = nullptr;
  Index pairs = 0;
  Index cols = 0;
  Index stride = 0;

  Pair* row(Index pair) const { return data + pair * stride; }
  VnniPanel range(Index begin, Index end) const { return {row(begin), end - begin, cols, stride}; }
  LeftFactor transposed() const { return {data, cols, pairs, 1, stride}; }
};

/// Rows of pairs, [rows, pairs of columns]. Borrowed.
struct PairedRows {
  Pair* data = nullptr;
  Index rows = 0;
  Index cols = 0;
  Index stride = 0;

  Pair* row(Index r) const { return data + r * stride; }
  LeftFactor factor() const { return {data, rows, pairs_of(cols), stride, 1}; }
  operator LeftFactor() const { return factor(); }  // NOLINT: the same matrix
};

/// What becomes of the sums of a product.
enum class PairSums {
  floats,        // stored as they are
  lower_halves,  // rounded to bfloat16, the lower halves of pairs whose upper halves are 0
  upper_halves,  // the same, the upper halves of pairs that are there
  pairs,         // of two products with a in common: sums of b, and of b + next
  stored,        // times the scale of each row, rounded, to a tensor's rows
};

/// Sums [rows, cols] (+)= a b, in pairs of terms; `cols` are whole_columns.
struct PairProduct {
  Index rows = 0;
  Index cols = 0;
  Index depth = 0;          // pairs of terms
  const Pair* a = nullptr;  // [rows, depth]: pair k of row r at a[r * a_row + k * a_term]
  Index a_row = 0;
  Index a_term = 0;
  const Pair* b = nullptr;  // [depth, cols]
  Index b_stride = 0;
  Index next = 0;
  PairSums into = PairSums::floats;
  float* sums = nullptr;  // floats
  Index sums_stride = 0;  // of `add` too
  Pair* pairs = nullptr;  // lower_halves, upper_halves
  Index pairs_stride = 0;
  Rows<BFloat16> stored{};       // stored
  Index stored_cols = 0;         // of `cols`
  const float* scale = nullptr;  // [rows]; null: 1
  const float* add = nullptr;    // what the product is added to; null: 0
  Prefetch* prefetch = nullptr;
};

/// Kernels of an instruction set that read rows stored as Stored; T is float.
template <class T, class Stored>
struct PairFunctionsOf {
  void (*pair_rows)(VnniPanel to, Index rows, Rows<const Stored> from);
  void (*pair_columns)(PairedRows to, Rows<const Stored> from);
  void (*row_distances)(Rows<const Stored> from, Index rows, Span<const T> center, T* squares);
};
/// All kernels of it.
template <class T>
struct PairFunctions : PairFunctionsOf<T, T>, PairFunctionsOf<T, BFloat16> {
  void (*multiply)(const PairProduct&);
  void (*finish)(const PairProduct&);  // the result of a product whose sums are complete, `add`
  // Products of the halves of one row, and of two rows, of a with as many of b.
  void (*dot_one)(Index count, const Pair* a, Index a_stride, const Pair* b, Index b_stride, T* c,
                  Index c_stride);
  void (*dot_two)(Index count, const Pair* a, Index a_stride, const Pair* b, Index b_stride, T* c,
                  Index c_stride);
  void (*add_rows)(Span<T> sum, Rows<const BFloat16> from, Index rows);
  void (*transpose)(VnniPanel to, PairedRows from);
  void (*turn)(VnniPanel to, VnniPanel from);
  void (*pair_sums)(VnniPanel to, const T* lower, const T* upper, Index stride);
  void (*unpair)(VnniPanel from, T* lower, T* upper, Index stride);
  bool (*all_finite)(VnniPanel);
};

/// Rows of a tile register, and elements of 4 bytes of each.
inline constexpr int tile_side = 16;

/// The shapes of the eight tile registers, as LDTILECFG reads them.
struct TileShapes {
  std::uint8_t palette = 1;
  std::uint8_t begin = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  void set(int tile, Index height, Index width) {
    row_bytes[tile] = static_cast<std::uint16_t>(height == 0 ? 0 : 4 * width);
    rows[tile] = static_cast<std::uint8_t>(width == 0 ? 0 : height);
  }
};
static_assert(sizeof(TileShapes) == 64);

}  // namespace cpu

MHLA_NAMESPACE_END
