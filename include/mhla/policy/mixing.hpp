// SPDX-License-Identifier: MIT
/// \defgroup mixings Mixings
/// \ingroup variant
/// How the mixed summaries S~_i come from the block summaries S_b: S~_i = sum_b m_ib S_b
/// (arXiv 2601.07832, eq. 4) by a matrix m of which every entry is a parameter, or by one that
/// fewer parameters make. Key sums are mixed by the same matrix. Parameters take mix's place in
/// every call: [1 | heads | batch * heads, rows, columns], so that they may be shared, or belong to
/// a head, or to a head of a batch item and be computed from the call's input.
///
/// A structured mixing says nothing to a backend but a list of small dense products
/// (mhla::MixingProduct) that together are m, and how their coefficients come from its parameters.
#pragma once

#include <algorithm>
#include <concepts>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/causality.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

/// \addtogroup mixings
/// \{

/// The blocks that a mixing maps from and to, along the axes of the geometry.
struct MixingLayout {
  int rank = 1;                  ///< axes of the geometry: the last ones of three
  Index queries[3] = {1, 1, 1};  ///< query blocks along each axis
  Index keys[3] = {1, 1, 1};     ///< key blocks along each axis
  Sight sight = Sight::all;      ///< past_tokens: S~ lacks the own block, which is read apart

  /// Between the blocks of two grids.
  static constexpr MixingLayout of(int rank, const Grid& query, const Grid& key, Sight sight) {
    return {rank,
            {query.layout(0), query.layout(1), query.layout(2)},
            {key.layout(0), key.layout(1), key.layout(2)},
            sight};
  }
  /// All query blocks.
  constexpr Index query_blocks() const { return queries[0] * queries[1] * queries[2]; }
  /// All key blocks.
  constexpr Index key_blocks() const { return keys[0] * keys[1] * keys[2]; }
};

/// One step of a structured mixing: out (+)= (1_outer x C x 1_inner) in, x the Kronecker product,
/// on consecutive rows of a work array. Row r of it is S_r of a key block, then come S~ of the
/// query blocks, then whatever the steps need in between. C [rows, columns] is
/// coefficients[coefficient + r * stride + c].
///
/// A step reads no row of S~, and rows that earlier ones have written; the first to write a row
/// overwrites it; no two share a coefficient.
struct MixingProduct {
  Index coefficient;        ///< of row 0, column 0
  Index stride;             ///< from row to row of C
  Index out;                ///< first row that is written, of outer * rows * inner
  Index in;                 ///< first row that is read, of outer * columns * inner
  Index rows;               ///< of C
  Index columns;            ///< of C
  bool add = false;         ///< to what out holds
  bool triangular = false;  ///< row r lacks the last rows - 1 - r columns
  Index outer = 1;          ///< copies of all that
  Index inner = 1;          ///< neighbouring rows that C treats alike

  /// Entries of C that count.
  constexpr Index terms() const {
    const Index missing = triangular ? rows * (rows - 1) / 2 : 0;
    return (rows * columns - missing) * outer * inner;
  }
};

/// Every entry of m is a parameter: mix [.., query blocks, key blocks]. Under Blocks1D mix may be
/// larger: the leading corner is used.
struct DenseMixing {
  /// \cond INTERNAL
  static void require_parameters(const MixingLayout& layout, Index rows, Index columns) {
    const bool larger = layout.rank == 1;
    const char* rule =
        larger ? "mix needs a row per query block and a column per key block (of a larger matrix "
                 "the leading corner is used)"
               : "mix needs exactly a row per query block and a column per key block";
    const auto fits = [&](Index extent, Index blocks) {
      return larger ? extent >= blocks : extent == blocks;
    };
    if (!fits(rows, layout.query_blocks()))
      throw_shape_error("mix", "query blocks", rows, layout.query_blocks(), rule);
    if (!fits(columns, layout.key_blocks()))
      throw_shape_error("mix", "key blocks", columns, layout.key_blocks(), rule);
  }
  /// \endcond
};

/// A recurrence of `states` summaries H^r, for Causal and BlockCausal: with S~_i read from states
/// that have seen all earlier blocks, and the own block by a weight of its own,
///
///     H_i^r = g_ir H_(i-1)^r + b_ir S_(i-1)        H_0 = 0
///     S~_i  = sum_r a_ir H_i^r + m_ii S_i          Causal: the own block token by token
///
/// so that m_ij = sum_r a_ir (prod_(k = j+2..i) g_kr) b_(j+1)r for j < i. The cost is linear in the
/// blocks, and a decoder keeps the states in place of all summaries.
///
/// mix [.., blocks or 1, 3 states + 1]: row i is m_ii, then a_i1 .., b_i1 .., g_i1 ..; a single row
/// serves all blocks, so that a sequence may have any number of them. Of more rows than blocks the
/// leading ones are used. b and g of row 0 are not read and have gradient 0.
struct RecurrentMixing {
  Index states = 1;  ///< R

  static constexpr bool causal = true;  ///< any number of blocks, of which each sees earlier ones

  /// Columns of mix.
  constexpr Index columns() const { return 3 * states + 1; }

  /// \cond INTERNAL
  // Blocks that are mixed by one product; only states cross from chunk to chunk.
  static constexpr Index chunk = 16;

  void require_parameters(const MixingLayout& layout, Index rows, Index parameter_columns) const {
    if (states < 1) throw ShapeError("mhla: mixing.states is ", states, " but must be at least 1");
    require_extent("mix", "columns", parameter_columns, checked_add(checked_mul(3, states), 1),
                   "a row of RecurrentMixing's mix is the own weight, then read, write and decay "
                   "factors of every state");
    if (rows != 1 && rows < layout.query_blocks())
      throw_shape_error("mix", "rows", rows, layout.query_blocks(),
                        "RecurrentMixing's mix has a row per block, of which the leading ones are "
                        "used, or a single row for all blocks");
  }

  // Of a chunk: m_ii [chunk]; what rows i read of the chunk's S_j [chunk, chunk] and of the states
  // at its begin [chunk, states]; what the states at its end hold of S_j [states, chunk] and of
  // those at its begin [states, states], of which only the diagonal is not 0.
  struct ChunkCoefficients {
    Index own, blocks, read, write, decay, end;
    ChunkCoefficients(Index of, Index states)
        : own(of * ((chunk + states) * (chunk + states) + chunk)),
          blocks(own + chunk),
          read(blocks + chunk * chunk),
          write(read + chunk * states),
          decay(write + states * chunk),
          end(decay + states * states) {}
  };

  Index num_coefficients(const MixingLayout& layout) const {
    const Index side = checked_add(chunk, states);
    return checked_mul(ceil_div(layout.query_blocks(), chunk),
                       checked_add(checked_mul(side, side), chunk));
  }
  Index num_rows(const MixingLayout& layout) const {
    const Index blocks = layout.query_blocks();
    const Index between = std::max(Index{0}, ceil_div(blocks, chunk) - 1);
    return checked_add(checked_mul(2, blocks), checked_mul(between, states));
  }
  Index own_coefficient(Index block) const {
    return ChunkCoefficients(block / chunk, states).own + block % chunk;
  }

  template <class Visit>
  void for_each_product(const MixingLayout& layout, Visit&& visit) const {
    const Index blocks = layout.query_blocks();
    const Index lag = lag_of(layout.sight);
    for (Index first = 0; first < blocks; first += chunk) {
      const ChunkCoefficients at(first / chunk, states);
      const Index rows = std::min(chunk, blocks - first);
      const Index next = 2 * blocks + first / chunk * states;  // states at the chunk's end
      const Index begin = next - states;
      visit(MixingProduct{at.blocks, chunk, blocks + first, first, rows, rows - lag, false, true});
      if (first > 0)
        visit(MixingProduct{at.read, states, blocks + first, begin, rows, states, true});
      if (first + rows == blocks) return;
      visit(MixingProduct{at.write, chunk, next, first, states, rows});
      if (first > 0) visit(MixingProduct{at.decay, states, next, begin, states, states, true});
    }
  }

  template <class A>
  void coefficients(const MixingLayout& layout, const TensorView<const A, 2>& mix,
                    const Span<A>& to) const {
    std::fill_n(to.data, to.size, A(0));
    for (Index i = 0; i < layout.query_blocks(); ++i)
      to[own_coefficient(layout, i)] = mix(row_of(mix, i), 0);
    for_each_path(layout, [&](const Path& path) {
      A weight = seed(path, mix);
      for (Index i = path.begin; i <= path.last; ++i) {
        if (i > path.begin) weight *= decay(path, mix, i);
        to[path.entry(i)] += read(path, mix, i) * weight;
      }
    });
  }

  template <class A>
  void vjp(const MixingLayout& layout, const TensorView<const A, 2>& mix, const Span<const A>& grad,
           const TensorView<A, 2>& grad_mix) const {
    for (Index i = 0; i < layout.query_blocks(); ++i)
      grad_mix(row_of(mix, i), 0) += grad[own_coefficient(layout, i)];
    for_each_path(layout, [&](const Path& path) {
      A weights[chunk + 1];
      for (Index i = path.begin; i <= path.last; ++i)
        weights[i - path.begin] =
            i == path.begin ? seed(path, mix) : weights[i - path.begin - 1] * decay(path, mix, i);
      A grad_weight = A(0);
      for (Index i = path.last; i >= path.begin; --i) {
        const A entry = grad[path.entry(i)];
        if (i < path.chunk_end())
          grad_mix(row_of(mix, i), 1 + path.state) += entry * weights[i - path.begin];
        grad_weight += entry * read(path, mix, i);
        if (i == path.begin) break;
        grad_mix(row_of(mix, i), 1 + 2 * states + path.state) +=
            grad_weight * weights[i - path.begin - 1];
        grad_weight *= decay(path, mix, i);
      }
      if (path.from >= 0) grad_mix(row_of(mix, path.begin), 1 + states + path.state) += grad_weight;
    });
  }

 private:
  // What a state carries through a chunk: of the chunk's S_from, from the next row on, or of what
  // the state holds at the chunk's begin (from is -1). Its weight is multiplied by g at every
  // further row and read by a; whatever it is at the end of the chunk stays in the state.
  struct Path {
    ChunkCoefficients at;
    Index chunk_begin;
    Index state;
    Index states;
    Index from;
    Index begin;  // first row that reads it
    Index last;   // the chunk's end if there are blocks behind it

    Index chunk_end() const { return chunk_begin + chunk; }
    Index entry(Index i) const {
      const Index row = i - chunk_begin;
      if (i == chunk_end())
        return from < 0 ? at.decay + state * (states + 1) : at.write + state * chunk + from;
      return from < 0 ? at.read + row * states + state : at.blocks + row * chunk + from;
    }
  };

  template <class Run>
  void for_each_path(const MixingLayout& layout, const Run& run) const {
    const Index blocks = layout.query_blocks();
    for (Index first = 0; first < blocks; first += chunk)
      for (Index state = 0; state < states; ++state)
        for (Index from = first == 0 ? 0 : -1; from < chunk; ++from) {
          const Path path{ChunkCoefficients(first / chunk, states),
                          first,
                          state,
                          states,
                          from,
                          first + from + 1,
                          std::min(first + chunk, blocks - 1)};
          if (path.begin <= path.last) run(path);
        }
  }
  Index own_coefficient(const MixingLayout& layout, Index block) const {
    return layout.sight == Sight::past_tokens
               ? own_coefficient(block)
               : ChunkCoefficients(block / chunk, states).blocks + block % chunk * (chunk + 1);
  }
  template <class A>
  static Index row_of(const TensorView<A, 2>& mix, Index block) {
    return mix.extent[0] == 1 ? 0 : block;
  }
  template <class A>
  A seed(const Path& path, const TensorView<const A, 2>& mix) const {
    return path.from < 0 ? A(1) : mix(row_of(mix, path.begin), 1 + states + path.state);
  }
  template <class A>
  A decay(const Path& path, const TensorView<const A, 2>& mix, Index i) const {
    return mix(row_of(mix, i), 1 + 2 * states + path.state);
  }
  template <class A>
  A read(const Path& path, const TensorView<const A, 2>& mix, Index i) const {
    return i == path.chunk_end() ? A(1) : mix(row_of(mix, i), 1 + path.state);
  }
  /// \endcond
};

/// A sum of `rank` Kronecker products with a factor for each axis of the geometry, for
/// Bidirectional. Factor F_ra is [query blocks along axis a, key blocks along it]:
///
///     m = sum_r F_r0 x F_r1 x F_r2          (of Blocks2D F_r0 x F_r1, of Blocks1D F_r0)
///
/// mix [.., rank, sum over axes of query blocks * key blocks along the axis]: row r holds the
/// factors F_ra one after the other, each row-major.
struct SeparableMixing {
  Index rank = 1;  ///< K

  static constexpr bool causal = false;  ///< maps between whole grids

  /// \cond INTERNAL
  Index columns(const MixingLayout& layout) const {
    Index sum = 0;
    for (int axis = 3 - layout.rank; axis < 3; ++axis)
      sum = checked_add(sum, checked_mul(layout.queries[axis], layout.keys[axis]));
    return sum;
  }

  void require_parameters(const MixingLayout& layout, Index rows, Index parameter_columns) const {
    if (rank < 1) throw ShapeError("mhla: mixing.rank is ", rank, " but must be at least 1");
    require_extent("mix", "rows", rows, rank,
                   "SeparableMixing's mix has a row for each of `rank` "
                   "Kronecker products");
    require_extent(
        "mix", "columns", parameter_columns, columns(layout),
        "a row of SeparableMixing's mix holds, for every axis of the blocks, a factor of "
        "a row per query block and a column per key block along it");
  }

  Index num_coefficients(const MixingLayout& layout) const {
    return checked_mul(rank, columns(layout));
  }
  Index num_rows(const MixingLayout& layout) const {
    Index rows = 0;
    for (int axis = 3 - layout.rank + 1; axis < 3; ++axis)
      rows = checked_add(rows, rows_after(layout, axis));
    return checked_add(checked_add(layout.query_blocks(), layout.key_blocks()),
                       checked_mul(rank, rows));
  }

  // From the last axis to the first: outer axes still have key blocks, inner ones query blocks.
  template <class Visit>
  void for_each_product(const MixingLayout& layout, Visit&& visit) const {
    const Index output = layout.key_blocks();
    const int first = 3 - layout.rank;
    Index free = output + layout.query_blocks();
    for (Index r = 0; r < rank; ++r) {
      Index end = (r + 1) * columns(layout);
      Index in = 0;
      for (int axis = 2; axis >= first; --axis) {
        const Index queries = layout.queries[axis];
        const Index keys = layout.keys[axis];
        Index outer = 1;
        Index inner = 1;
        for (int a = first; a < axis; ++a) outer *= layout.keys[a];
        for (int a = axis + 1; a < 3; ++a) inner *= layout.queries[a];
        end -= queries * keys;
        const Index out = axis == first ? output : free;
        visit(MixingProduct{end, keys, out, in, queries, keys, axis == first && r > 0, false, outer,
                            inner});
        if (axis > first) free += rows_after(layout, axis);
        in = out;
      }
    }
  }

  template <class A>
  void coefficients(const MixingLayout& layout, const TensorView<const A, 2>& mix,
                    const Span<A>& to) const {
    const Index count = columns(layout);
    for (Index r = 0; r < rank; ++r)
      for (Index c = 0; c < count; ++c) to[r * count + c] = mix(r, c);
  }
  template <class A>
  void vjp(const MixingLayout& layout, const TensorView<const A, 2>&, const Span<const A>& grad,
           const TensorView<A, 2>& grad_mix) const {
    const Index count = columns(layout);
    for (Index r = 0; r < rank; ++r)
      for (Index c = 0; c < count; ++c) grad_mix(r, c) += grad[r * count + c];
  }

 private:
  // Rows of the work array once `axis` has query blocks.
  static Index rows_after(const MixingLayout& layout, int axis) {
    Index rows = 1;
    for (int a = 0; a < 3; ++a)
      rows = checked_mul(rows, a < axis ? layout.keys[a] : layout.queries[a]);
    return rows;
  }
  /// \endcond
};

/// A mixing by fewer parameters than m has entries: RecurrentMixing, SeparableMixing, or a type of
/// yours, trivially copyable, with
///  - `causal`: true for Causal and BlockCausal, of sequences of any number of blocks; false for
///    Bidirectional;
///  - `require_parameters(layout, rows, columns)`, which throws ShapeError unless mix is
///    [.., rows, columns];
///  - `num_coefficients(layout)`, `num_rows(layout)`, the latter of the work array, and
///    `for_each_product(layout, visit)`, which calls visit(MixingProduct) in order;
///  - `coefficients(layout, mix, to)` for a TensorView<const A, 2> and a Span<A>, and its adjoint
///    `vjp(layout, mix, grad, grad_mix)`, which adds to grad_mix;
///  - if it is causal, `own_coefficient(i)`, the coefficient that is m_ii under Causal. A shorter
///    sequence has fewer products, with coefficients of the longer one.
template <class M>
concept StructuredMixing = std::is_trivially_copyable_v<M> &&
    requires(const M& mixing, const MixingLayout& layout, Index extent,
             const TensorView<const double, 2>& mix, const Span<double>& to,
             const Span<const double>& grad, const TensorView<double, 2>& grad_mix,
             void (*visit)(const MixingProduct&)) {
  { M::causal } -> std::convertible_to<bool>;
  mixing.require_parameters(layout, extent, extent);
  { mixing.num_coefficients(layout) } -> std::same_as<Index>;
  { mixing.num_rows(layout) } -> std::same_as<Index>;
  mixing.for_each_product(layout, visit);
  mixing.coefficients(layout, mix, to);
  mixing.vjp(layout, mix, grad, grad_mix);
};

/// DenseMixing or a StructuredMixing.
template <class M>
concept Mixing = std::same_as<M, DenseMixing> || StructuredMixing<M>;

/// \cond INTERNAL
// One of mix's matrices.
template <class A>
TensorView<A, 2> matrix_view(const TensorView<A, 3>& mix, Index matrix) {
  return {mix.data + matrix * mix.stride[0],
          {mix.extent[1], mix.extent[2]},
          {mix.stride[1], mix.stride[2]}};
}

template <class M>
constexpr bool mixing_fits(Sight sight) {
  if constexpr (StructuredMixing<M>) return M::causal == (sight != Sight::all);
  return true;
}

// A borrowed structured mixing of any type with the layout of a call, so that what uses it is
// compiled once for all of them.
template <class A>
class MixingRef {
 public:
  MixingRef() = default;
  template <StructuredMixing M>
  MixingRef(const M& mixing, const MixingLayout& layout)
      : mixing_(&mixing),
        layout_(layout),
        own_coefficient_([](const void* object, Index block) {
          if constexpr (M::causal) return static_cast<const M*>(object)->own_coefficient(block);
          return Index{0};
        }),
        products_([](const void* object, const MixingLayout& of, MixingProduct* to) {
          Index count = 0;
          static_cast<const M*>(object)->for_each_product(of, [&](const MixingProduct& product) {
            if (to != nullptr) to[count] = product;
            ++count;
          });
          return count;
        }),
        coefficients_(
            [](const void* object, const MixingLayout& of, const TensorView<const A, 2>& mix,
               const Span<A>& to) { static_cast<const M*>(object)->coefficients(of, mix, to); }),
        vjp_([](const void* object, const MixingLayout& of, const TensorView<const A, 2>& mix,
                const Span<const A>& grad, const TensorView<A, 2>& grad_mix) {
          static_cast<const M*>(object)->vjp(of, mix, grad, grad_mix);
        }),
        causal_(M::causal),
        num_coefficients_(mixing.num_coefficients(layout)),
        num_rows_(mixing.num_rows(layout)) {}

  Index num_coefficients() const { return num_coefficients_; }
  Index num_rows() const { return num_rows_; }
  Index num_products() const { return products_(mixing_, layout_, nullptr); }
  // m_ii under Causal.
  Index own_coefficient(Index block) const { return own_coefficient_(mixing_, block); }
  // Blocks that a sequence of `blocks` blocks takes part with.
  MixingLayout layout_of(Index blocks) const {
    MixingLayout layout = layout_;
    if (causal_) layout.queries[2] = layout.keys[2] = blocks;
    return layout;
  }
  // The products of a sequence, in memory for num_products() of them.
  Span<const MixingProduct> products(Index blocks, Span<MixingProduct> memory) const {
    return {memory.data, products_(mixing_, layout_of(blocks), memory.data)};
  }
  void coefficients(const TensorView<const A, 2>& mix, const Span<A>& to) const {
    coefficients_(mixing_, layout_, mix, to);
  }
  void vjp(const TensorView<const A, 2>& mix, const Span<const A>& grad,
           const TensorView<A, 2>& grad_mix) const {
    vjp_(mixing_, layout_, mix, grad, grad_mix);
  }

 private:
  const void* mixing_ = nullptr;
  MixingLayout layout_;
  Index (*own_coefficient_)(const void*, Index) = nullptr;
  Index (*products_)(const void*, const MixingLayout&, MixingProduct*) = nullptr;
  void (*coefficients_)(const void*, const MixingLayout&, const TensorView<const A, 2>&,
                        const Span<A>&) = nullptr;
  void (*vjp_)(const void*, const MixingLayout&, const TensorView<const A, 2>&,
               const Span<const A>&, const TensorView<A, 2>&) = nullptr;
  bool causal_ = false;
  Index num_coefficients_ = 0;
  Index num_rows_ = 0;
};
/// \endcond

/// \}

MHLA_NAMESPACE_END
