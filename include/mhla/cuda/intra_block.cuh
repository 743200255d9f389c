// SPDX-License-Identifier: MIT
// The own block of a causal query (arXiv 2601.07832, section 4.2, with the mask its text leaves
// out) and its adjoint, in slabs of queries of all blocks at once: a slab sees its block's keys up
// to its own last one. Inside block i the coefficient m_ii is constant.
//
//   num += m_ii tril(Q^r K^r^T) V              den_t += m_ii <Q_t, p_t>, p_t = sum_{j <= t} K_j
//
// Adjoint, U = dy / den, c the gradient of den:
//   dQ^r += m_ii tril(U V^T) K^r               dQ_t += m_ii c_t p_t
//   dK^r += m_ii tril(U V^T)^T Q^r             dK_j += m_ii sum_{t >= j} c_t Q_t
//   dV   += m_ii tril(Q^r K^r^T)^T U
//   dm_ii += sum_{j <= t} (Q^r K^r^T)_tj (U V^T)_tj + sum_t c_t <Q_t, p_t>
//
// No entry above the diagonal is ever multiplied, so that a NaN does not reach earlier tokens.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/block_summary.cuh>
#include <mhla/cuda/chip/launch.cuh>
#include <mhla/cuda/gemm.cuh>
#include <mhla/cuda/plan.hpp>
#include <mhla/cuda/readout.cuh>
#include <mhla/cuda/token_block.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// The diagonal of the mixing matrices, for rows of panels.
template <class A>
struct OwnWeights {
  PanelRows rows;  // of the queries
  RowFinder finder;
  const A* mixing;  // [1 | heads, blocks, blocks]
  Index mix_heads;
  Index mix_blocks;

  /// m_ii of query head g in a block, the n-th of all units.
  MHLA_HOST_DEVICE A operator()(std::uint32_t n, Index g) const {
    std::uint32_t unit = n;
    const std::uint32_t block = finder.blocks.divide(unit);
    return (*this)(unit, block, g);
  }
  MHLA_HOST_DEVICE A operator()(std::uint32_t unit, Index block, Index g) const {
    const Index head = mix_heads == 1 ? 0 : finder.kv_heads.divide(unit) * rows.group_size + g;
    const Index i = rows.table.mix_rows[block];
    return mixing[(head * mix_blocks + i) * mix_blocks + i];
  }

  /// A row's m_ii, and the row of the same token among the keys.
  struct Row {
    A weight;
    Index key;
  };
  MHLA_HOST_DEVICE Row operator[](Index r) const {
    const auto at = finder.indices(static_cast<std::uint32_t>(r));
    const Index block = at.unit * rows.table.blocks + at.block;
    return {(*this)(at.unit, at.block, at.g), block * rows.table.block_tokens + at.entry};
  }
};

/// p_t of every token of a block.                                     // [key rows, feature_dim]
template <class A>
struct RunningKeySums {
  Panels<const A> keys;
  A* sums;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index n = i / keys.cols;
    const Index c = i % keys.cols;
    LongSum<A> sum;
    for (Index t = 0; t < keys.rows; ++t) {
      sum.add(keys.row(n, t)[c]);
      sums[(n * keys.rows + t) * keys.cols + c] = sum.value();
    }
  }
};

/// den_t += m_ii <Q_t, p_t>
template <class A>
struct AddOwnDenominators {
  OwnWeights<A> weights;
  const A* features;  // [query rows, feature_dim]
  const A* sums;      // p
  Index feature_dim;
  A* denominators;

  MHLA_DEVICE void operator()(Index r) const {
    const auto row = weights[r];
    denominators[r] += row.weight * inner_product(feature_dim, features + r * feature_dim,
                                                  sums + row.key * feature_dim);
  }
};

/// The slab of query head g that begins at token `first`, of every block of every unit.
template <class A>
Panels<A> query_slab(const PanelRows& rows, A* panel, Index dim, Index g, Index first,
                     Index tokens) {
  return {panel + (g * rows.table.block_tokens + first) * dim,
          rows.units() * rows.table.blocks,
          tokens,
          dim,
          dim,
          rows.of_block() * dim};
}

/// scores *= m_ii
template <class A>
struct ScaleScores {
  OwnWeights<A> weights;
  Panels<A> scores;
  Index g;
  Divisor rows;
  RowUnits<A, false> units;

  MHLA_DEVICE void operator()(std::uint32_t n, const RowShare& share) const {
    const std::uint32_t r = rows.divide(n);
    A* const row = scores.row(n, r);
    const A weight = weights(n, g);
    units.for_each(share, [&](const auto unit) {
      A value[unit.count];
      unit.load(row, 1, value);
      for (A& x : value) x *= weight;
      unit.store(row, 1, value);
    });
  }
};
template <class A>
void scale_scores(const CudaDevice& device, const OwnWeights<A>& weights, const Panels<A>& scores,
                  Index g) {
  const RowUnits<A, false> units(scores.cols, is_aligned(scores.data));
  launch_rows(device, scores.count * scores.rows, units.count,
              ScaleScores<A>{weights, scores, g, Divisor(scores.rows), units});
}

/// num += m_ii tril(Q^r K^r^T) V of every query; `scores` is scratch.
template <class A>
void read_out_own_block(const CudaDevice& device, const OwnWeights<A>& weights, A* rotated_queries,
                        const Panels<A>& rotated_keys, const Panels<A>& values, A* scores,
                        A* numerators) {
  const PanelRows& rows = weights.rows;
  const Index block_tokens = rows.table.block_tokens;
  for (Index g = 0; g < rows.group_size; ++g)
    for (Index first = 0; first < block_tokens; first += slab_tokens) {
      const Index end = first + slab_tokens < block_tokens ? first + slab_tokens : block_tokens;
      const Index tokens = end - first;
      const Panels<A> p = panels(scores, rotated_keys.count, tokens, end);
      multiply_right_transposed(
          device, p, query_slab(rows, rotated_queries, rotated_keys.cols, g, first, tokens),
          rotated_keys.row_range(0, end));
      scale_scores(device, weights, p, g);
      multiply_lower(device, query_slab(rows, numerators, values.cols, g, first, tokens), p,
                     values.row_range(0, end), LowerTriangle{first, 0}, Into::add);
    }
}

/// products_t = sum_{j <= t} P_tj T_tj: row t's part of dm_ii.
template <class A>
struct LowerRowProducts {
  Panels<const A> p;
  Panels<const A> t;
  LowerTriangle triangle;
  Panels<A> products;  // one column

  MHLA_DEVICE void operator()(Index i) const {
    const Index r = i % p.rows;
    const Index n = i / p.rows;
    *products.row(n, r) = inner_product(triangle.columns_of(r), p.row(n, r), t.row(n, r));
  }
};

/// Destinations of the own blocks' gradients, which are added to dQ^r, dK^r and dV.
template <class A>
struct OwnBlockGradients {
  A* queries;
  Panels<A> keys;
  Panels<A> values;
  A* products;  // each query's part of dm_ii
};

/// `scores` and `grad_scores` are scratch.
template <class A>
void read_out_own_block_gradient(const CudaDevice& device, const OwnWeights<A>& weights,
                                 A* rotated_queries, A* grad_numerators,
                                 const Panels<A>& rotated_keys, const Panels<A>& values, A* scores,
                                 A* grad_scores, const OwnBlockGradients<A>& grad) {
  const PanelRows& rows = weights.rows;
  const Index block_tokens = rows.table.block_tokens;
  for (Index g = 0; g < rows.group_size; ++g)
    for (Index first = 0; first < block_tokens; first += slab_tokens) {
      const Index end = first + slab_tokens < block_tokens ? first + slab_tokens : block_tokens;
      const Index tokens = end - first;
      const LowerTriangle triangle{first, 0};
      const Panels<A> p = panels(scores, rotated_keys.count, tokens, end);
      const Panels<A> t = panels(grad_scores, rotated_keys.count, tokens, end);
      const Panels<A> q = query_slab(rows, rotated_queries, rotated_keys.cols, g, first, tokens);
      const Panels<A> u = query_slab(rows, grad_numerators, values.cols, g, first, tokens);
      multiply_right_transposed(device, p, q, rotated_keys.row_range(0, end));
      multiply_right_transposed(device, t, u, values.row_range(0, end));
      launch(device, p.count * p.rows,
             LowerRowProducts<A>{p, t, triangle,
                                 query_slab(rows, grad.products, 1, g, first, tokens)});
      scale_scores(device, weights, p, g);
      scale_scores(device, weights, t, g);
      multiply_lower(device, query_slab(rows, grad.queries, rotated_keys.cols, g, first, tokens), t,
                     rotated_keys.row_range(0, end), triangle, Into::add);
      multiply_lower_transposed(device, grad.keys.row_range(0, end), t, q, triangle, Into::add);
      multiply_lower_transposed(device, grad.values.row_range(0, end), p, u, triangle, Into::add);
    }
}

/// dQ_t += m_ii c_t p_t, and c_t <Q_t, p_t> to row t's part of dm_ii.
template <class A>
struct AddOwnKeySumQueryGradient {
  OwnWeights<A> weights;
  const A* features;  // Q
  const A* sums;      // p
  const A* grad_denominators;
  Index feature_dim;
  A* grad_queries;
  A* products;

  MHLA_DEVICE void operator()(Index r) const {
    const auto row = weights[r];
    const A* const p = sums + row.key * feature_dim;
    const A factor = row.weight * grad_denominators[r];
    products[r] += grad_denominators[r] * inner_product(feature_dim, features + r * feature_dim, p);
    for (Index c = 0; c < feature_dim; ++c) grad_queries[r * feature_dim + c] += factor * p[c];
  }
};

/// dK_j += m_ii sum_{t >= j} c_t Q_t
template <class A>
struct AddOwnKeySumKeyGradient {
  OwnWeights<A> weights;
  const A* features;  // Q
  const A* grad_denominators;
  Panels<A> grad_keys;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const PanelRows& rows = weights.rows;
    const Index n = i / grad_keys.cols;
    const Index c = i % grad_keys.cols;
    A sum = A(0);
    for (Index t = rows.table.block_tokens - 1; t >= 0; --t) {
      for (Index g = 0; g < rows.group_size; ++g) {
        const Index r = n * rows.of_block() + g * rows.table.block_tokens + t;
        sum += weights(static_cast<std::uint32_t>(n), g) * grad_denominators[r] *
               features[r * grad_keys.cols + c];
      }
      grad_keys.row(n, t)[c] += sum;
    }
  }
};

/// Sums the queries' parts of dm_ii, of all blocks of a unit with this row of mix: one per
/// sequence.
template <class A>
struct AddOwnMixingGradient {
  PanelRows rows;
  const A* products;
  Index matrices;
  Index mix_blocks;
  A* parts;  // [units, matrices, blocks of mix]

  MHLA_HOST_DEVICE void operator()(Index at) const {
    const Index i = at % mix_blocks;
    const Index matrix = at / mix_blocks % matrices;
    const Index part = at / mix_blocks / matrices;
    const Index tokens = rows.table.block_tokens;
    const Index heads = rows.group_size / matrices;
    A sum = A(0);
    for (Index b = 0; b < rows.table.blocks; ++b) {
      if (rows.table.mix_rows[b] != i) continue;
      const Index first = part * rows.of_unit() + b * rows.of_block() + matrix * heads * tokens;
      for (Index r = 0; r < heads * tokens; ++r) sum += products[first + r];
    }
    parts[at] += sum;
  }
};

}  // namespace cuda

MHLA_NAMESPACE_END
