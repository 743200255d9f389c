// SPDX-License-Identifier: MIT
// RecurrentMixing: a recurrence over blocks, as products of chunks of them.
#pragma once

#include <mhla/core/shape.hpp>
#include <mhla/policy/mixing_product.hpp>

MHLA_NAMESPACE_BEGIN

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
/// \ingroup mixings
struct RecurrentMixing {
  Index states = 1;  ///< R

  static constexpr bool causal = true;  ///< any number of blocks, of which each sees earlier ones

  /// Columns of mix.
  constexpr Index columns() const { return checked_add(1, checked_mul(3, states)); }

  /// \cond INTERNAL
  // Blocks that are mixed by one product; only states cross from chunk to chunk.
  static constexpr Index chunk = 16;

  void require_valid() const { require_at_least("mixing.states", states, 1); }
  void require_columns(Index parameter_columns) const {
    require_valid();
    require_extent("mix", "columns", parameter_columns, columns(),
                   "a row of RecurrentMixing's mix is the own weight, then read, write and decay "
                   "factors of every state");
  }
  void require_parameters(const MixingLayout& layout, Index rows, Index parameter_columns) const {
    require_columns(parameter_columns);
    if (rows != 1 && rows < layout.query_blocks())
      throw_shape_error("mix", "rows", rows, layout.query_blocks(),
                        "RecurrentMixing's mix has a row per block, of which the leading ones are "
                        "used, or a single row for all blocks");
  }

  // Of a chunk: m_ii [chunk]; what rows i read of the chunk's S_j [chunk, chunk] and of the states
  // at its begin [chunk, states]; what the states at its end hold of S_j [states, chunk] and of
  // those at its begin [states, states], of which only the diagonal is not 0.
  struct ChunkCoefficients {
    Index own, blocks, reads, writes, decay;
    MHLA_HOST_DEVICE ChunkCoefficients(Index of, Index states)
        : own(of * ((chunk + states) * (chunk + states) + chunk)),
          blocks(own + chunk),
          reads(blocks + chunk * chunk),
          writes(reads + chunk * states),
          decay(writes + states * chunk) {}
  };

  Index num_coefficients(const MixingLayout& layout) const {
    const Index side = checked_add(chunk, states);
    return checked_mul(ceil_div(layout.query_blocks(), chunk),
                       checked_add(checked_mul(side, side), chunk));
  }
  Index num_rows(const MixingLayout& layout) const {
    const Index blocks = layout.query_blocks();
    const Index between = (std::max)(Index{0}, ceil_div(blocks, chunk) - 1);
    const Index at_ends = Index{layout.before} + Index{layout.after};
    return checked_add(checked_mul(2, blocks), checked_mul(between + at_ends, states));
  }
  MHLA_HOST_DEVICE Index own_coefficient(Index block) const {
    return ChunkCoefficients(block / chunk, states).own + block % chunk;
  }

  template <class Visit>
  void for_each_product(const MixingLayout& layout, Visit&& visit) const {
    const Index blocks = layout.query_blocks();
    const Index lag = lag_of(layout.sight);
    for (Index first = 0; first < blocks; first += chunk) {
      const ChunkCoefficients at(first / chunk, states);
      const Index rows = (std::min)(chunk, blocks - first);
      const bool begun = first > 0 || layout.before;
      // States at the chunk's end and, if any have begun, at its begin.
      const Index next = 2 * blocks + (first / chunk + Index{layout.before}) * states;
      const Index begin = next - states;
      visit(MixingProduct{at.blocks, chunk, blocks + first, first, rows, rows - lag, false, true});
      if (begun) visit(MixingProduct{at.reads, states, blocks + first, begin, rows, states, true});
      if (first + rows == blocks && !layout.after) return;
      visit(MixingProduct{at.writes, chunk, next, first, states, rows});
      if (begun) visit(MixingProduct{at.decay, states, next, begin, states, states, true});
    }
  }

  template <class A>
  void coefficients(const MixingLayout& layout, const TensorView<const A, 2>& mix,
                    const Span<A>& to) const {
    for (Index part = 0; part < num_parts(layout); ++part) coefficients(layout, mix, to, part);
  }
  template <class A>
  void vjp(const MixingLayout& layout, const TensorView<const A, 2>& mix, const Span<const A>& grad,
           const TensorView<A, 2>& grad_mix) const {
    for (Index part = 0; part < num_gradient_parts(layout, mix.extent[0]); ++part)
      vjp(layout, mix, grad, grad_mix, part);
  }

  // Of both what can be done side by side: the coefficients of a chunk; the gradients of a state's
  // parameters, if every block has its own, in a chunk.
  Index num_parts(const MixingLayout& layout) const {
    return ceil_div(layout.query_blocks(), chunk);
  }
  Index num_gradient_parts(const MixingLayout& layout, Index rows) const {
    return rows == 1 ? states : states * num_parts(layout);
  }
  template <class A>
  MHLA_HOST_DEVICE void coefficients(const MixingLayout& layout, const TensorView<const A, 2>& mix,
                                     const Span<A>& to, Index part) const {
    for (Index c = ChunkCoefficients(part, states).own; c < ChunkCoefficients(part + 1, states).own;
         ++c)
      to[c] = A(0);
    for_each_own(layout, part, [&](Index i, Index c) { to[c] = mix(row_of(mix, i), 0); });
    for (Index state = 0; state < states; ++state)
      for_each_path(layout, part, state, [&](const Path& path) {
        A weight = first_weight(path, mix);
        for (Index i = path.begin; i <= path.last; ++i) {
          if (i > path.begin) weight *= decay(path, mix, i);
          to[path.entry(i)] += read_weight(path, mix, i) * weight;
        }
      });
  }

  template <class A>
  MHLA_HOST_DEVICE void vjp(const MixingLayout& layout, const TensorView<const A, 2>& mix,
                            const Span<const A>& grad, const TensorView<A, 2>& grad_mix,
                            Index part) const {
    const bool shared = mix.extent[0] == 1;
    const Index chunks = ceil_div(layout.query_blocks(), chunk);
    for (Index c = shared ? 0 : part / states; c < (shared ? chunks : part / states + 1); ++c)
      chunk_vjp(layout, mix, grad, grad_mix, c, part % states);
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
    Index last;   // the chunk's end if there are blocks after it

    MHLA_HOST_DEVICE Index chunk_end() const { return chunk_begin + chunk; }
    MHLA_HOST_DEVICE Index entry(Index i) const {
      const Index row = i - chunk_begin;
      if (i == chunk_end())
        return from < 0 ? at.decay + state * (states + 1) : at.writes + state * chunk + from;
      return from < 0 ? at.reads + row * states + state : at.blocks + row * chunk + from;
    }
  };

  template <class A>
  MHLA_HOST_DEVICE void chunk_vjp(const MixingLayout& layout, const TensorView<const A, 2>& mix,
                                  const Span<const A>& grad, const TensorView<A, 2>& grad_mix,
                                  Index of, Index state) const {
    if (state == 0)
      for_each_own(layout, of, [&](Index i, Index c) { grad_mix(row_of(mix, i), 0) += grad[c]; });
    for_each_path(layout, of, state, [&](const Path& path) {
      A weights[chunk + 1];
      for (Index i = path.begin; i <= path.last; ++i)
        weights[i - path.begin] = i == path.begin
                                      ? first_weight(path, mix)
                                      : weights[i - path.begin - 1] * decay(path, mix, i);
      A grad_weight = A(0);
      for (Index i = path.last; i >= path.begin; --i) {
        const A entry = grad[path.entry(i)];
        if (i < path.chunk_end())
          grad_mix(row_of(mix, i), 1 + path.state) += entry * weights[i - path.begin];
        grad_weight += entry * read_weight(path, mix, i);
        if (i == path.begin) break;
        grad_mix(row_of(mix, i), 1 + 2 * states + path.state) +=
            grad_weight * weights[i - path.begin - 1];
        grad_weight *= decay(path, mix, i);
      }
      if (path.from >= 0) grad_mix(row_of(mix, path.begin), 1 + states + path.state) += grad_weight;
    });
  }

  // Calls run(block, coefficient) for the own weights of a chunk.
  template <class Run>
  MHLA_HOST_DEVICE void for_each_own(const MixingLayout& layout, Index of, const Run& run) const {
    const bool apart = layout.sight == Sight::past_tokens;
    const ChunkCoefficients at(of, states);
    for (Index r = 0; r < chunk && of * chunk + r < layout.query_blocks(); ++r)
      run(of * chunk + r, apart ? at.own + r : at.blocks + r * (chunk + 1));
  }
  template <class Run>
  MHLA_HOST_DEVICE void for_each_path(const MixingLayout& layout, Index of, Index state,
                                      const Run& run) const {
    const Index first = of * chunk;
    const Index final_row = layout.query_blocks() - 1 + Index{layout.after};
    for (Index from = first > 0 || layout.before ? -1 : 0; from < chunk; ++from) {
      const Path path{ChunkCoefficients(of, states),
                      first,
                      state,
                      states,
                      from,
                      first + from + 1,
                      first + chunk < final_row ? first + chunk : final_row};
      if (path.begin <= path.last) run(path);
    }
  }
  template <class A>
  MHLA_HOST_DEVICE static Index row_of(const TensorView<A, 2>& mix, Index block) {
    return mix.extent[0] == 1 ? 0 : block;
  }
  template <class A>
  MHLA_HOST_DEVICE A first_weight(const Path& path, const TensorView<const A, 2>& mix) const {
    return path.from < 0 ? A(1) : mix(row_of(mix, path.begin), 1 + states + path.state);
  }
  template <class A>
  MHLA_HOST_DEVICE A decay(const Path& path, const TensorView<const A, 2>& mix, Index i) const {
    return mix(row_of(mix, i), 1 + 2 * states + path.state);
  }
  template <class A>
  MHLA_HOST_DEVICE A read_weight(const Path& path, const TensorView<const A, 2>& mix,
                                 Index i) const {
    return i == path.chunk_end() ? A(1) : mix(row_of(mix, i), 1 + path.state);
  }
  /// \endcond
};

/// \cond INTERNAL
// A row of its parameters, as a decoder reads it.
template <class A>
struct RecurrentRow {
  const A* row;
  Index states;

  MHLA_HOST_DEVICE A own() const { return row[0]; }
  MHLA_HOST_DEVICE A read_weight(Index r) const { return row[1 + r]; }
  MHLA_HOST_DEVICE A write_weight(Index r) const { return row[1 + states + r]; }
  MHLA_HOST_DEVICE A decay(Index r) const { return row[1 + 2 * states + r]; }
  // m_i,i-1
  MHLA_HOST_DEVICE A closing() const {
    A sum = A(0);
    for (Index r = 0; r < states; ++r) sum += read_weight(r) * write_weight(r);
    return sum;
  }
};
/// \endcond

MHLA_NAMESPACE_END
