// SPDX-License-Identifier: MIT
// The readout of queries on panels, besides its products, and its adjoint: key sums and
// denominators, row by row, and own blocks of causal queries. Q: s phi(q), Q^r: the same rotated,
// c the gradient of den:
//
//   MixedKeySum:    den = Q z~ + epsilon
//                   c_t = -<Q^r_t, dQ^r_t> / den_t     dQ += c z~^T     dz~ = Q^T c
//
// MixedProduct, of the released vision, DiT and video code: all blocks have n tokens, p is a
// token's offset in its block; arrays of query heads are [units, blocks, heads of the kv head, n].
//
//   R_bp = <Q_bp, z_b>           den_ip = sum_b m_ib R_bp + epsilon
//   dm += C R^T    dR = m^T C    dQ_bp += dR_bp z_b    dz_b = sum_p dR_bp Q_bp
//
// The own block of a causal query (arXiv 2601.07832, section 4.2, with the mask its text leaves
// out) in slabs of queries of all blocks at once: a slab sees its block's keys up to its own last
// one. Inside block i the coefficient m_ii is constant, U = dy / den:
//
//   num += m_ii tril(Q^r K^r^T) V              den_t += m_ii <Q_t, p_t>, p_t = sum_{j <= t} K_j
//
//   dQ^r += m_ii tril(U V^T) K^r               dQ_t += m_ii c_t p_t
//   dK^r += m_ii tril(U V^T)^T Q^r             dK_j += m_ii sum_{t >= j} c_t Q_t
//   dV   += m_ii tril(Q^r K^r^T)^T U
//   dm_ii += sum_{j <= t} (Q^r K^r^T)_tj (U V^T)_tj + sum_t c_t <Q_t, p_t>
//
// No entry above the diagonal is ever multiplied, so that a NaN does not reach earlier tokens.
#pragma once

#include <mhla/cuda/plan.hpp>
#include <mhla/cuda/token_block.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// A compensated sum: its error does not grow with the number of terms. Zeros change nothing.
template <class A>
class CompensatedSum {
 public:
  MHLA_HOST_DEVICE void add(A term) {
    const A before = sum_;
    sum_ += term;
    const A added = sum_ - before;
    lost_ += (before - (sum_ - added)) + (term - added);
  }
  MHLA_HOST_DEVICE A value() const { return sum_ + lost_; }

 private:
  A sum_ = A(0);
  A lost_ = A(0);
};

/// sum = the weighted sum of the rows of a panel, in order; without weights all are 1. If it is
/// `running`, also after each row: p_t of every token of a block.
template <class A, bool running = false>
struct WeightedRowSum {
  Panels<A> rows;
  const A* weights;  // [panels, rows]
  A* sums;           // [panels, cols]; running [panels, rows, cols]

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index n = i / rows.cols;
    const Index c = i % rows.cols;
    CompensatedSum<A> sum;
    for (Index r = 0; r < rows.rows; ++r) {
      sum.add(weights != nullptr ? weights[n * rows.rows + r] * rows.row(n, r)[c]
                                 : rows.row(n, r)[c]);
      if constexpr (running) sums[(n * rows.rows + r) * rows.cols + c] = sum.value();
    }
    if constexpr (!running) sums[i] = sum.value();
  }
};
template <class A>
void weighted_row_sums(const CudaDevice& device, const Panels<A>& rows, const A* weights, A* sums) {
  launch(device, rows.count * rows.cols, WeightedRowSum<A>{rows, weights, sums});
}

/// The diagonal of the mixing matrices, for rows of panels.
template <class A>
struct OwnWeights {
  PanelRows rows;  // of the queries
  RowFinder finder;
  const A* weights;   // of the first matrix
  Index matrix_step;  // from matrix to matrix; 0: all share one
  Index block_step;   // from block to block
  Divisor units;      // that have matrices of their own, one for each query head

  /// m_ii of query head g in a block, the n-th of all units.
  MHLA_HOST_DEVICE A operator()(std::uint32_t n, Index g) const {
    std::uint32_t unit = n;
    const std::uint32_t block = finder.blocks.divide(unit);
    return (*this)(unit, block, g);
  }
  MHLA_HOST_DEVICE A operator()(std::uint32_t unit, Index block, Index g) const {
    const Index head = units.divide(unit) * rows.group_size + g;
    return weights[head * matrix_step + rows.table.mix_rows[block] * block_step];
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

/// den = Q z~ + epsilon, z~ the sum of WeightedRow, and of causal queries m_ii <Q_t, p_t>.
template <class A, bool adds_own>
struct MixedKeySumDenominators {
  const A* features;  // [rows, feature_dim]
  Index feature_dim;
  WeightedRow<A> key_sums;
  A epsilon;
  A* denominators;
  OwnWeights<A> weights;
  const A* own_sums;  // p

  MHLA_DEVICE void operator()(Index r) const {
    const A* const q = features + r * feature_dim;
    A den = inner_product(feature_dim, q,
                          key_sums.of(static_cast<std::uint32_t>(r), feature_dim).sums) +
            epsilon;
    if constexpr (adds_own) {
      const auto row = weights[r];
      den += row.weight * inner_product(feature_dim, q, own_sums + row.key * feature_dim);
    }
    denominators[r] = den;
  }
};

/// c_t; 0 where den_t is 0 or the token absent.
template <class A>
struct DenominatorGradient {
  RowFinder rows;
  const A* rotated;
  const A* grad_rotated;
  Index feature_dim;
  const A* denominators;
  A* gradient;

  MHLA_DEVICE void operator()(Index r) const {
    const A den = denominators[r];
    const Index at = r * feature_dim;
    gradient[r] = den == A(0) || !rows[static_cast<std::uint32_t>(r)].present()
                      ? A(0)
                      : -inner_product(feature_dim, rotated + at, grad_rotated + at) / den;
  }
};

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

/// products_t = sum_{j <= t} P_tj T_tj: row t's part of dm_ii.
template <class A>
struct LowerRowProducts {
  Panels<A> p;
  Panels<A> t;
  LowerTriangle triangle;
  Panels<A> products;  // one column

  MHLA_DEVICE void operator()(Index i) const {
    const Index r = i % p.rows;
    const Index n = i / p.rows;
    *products.row(n, r) = inner_product(triangle.columns_of(r), p.row(n, r), t.row(n, r));
  }
};

/// Tokens [first, end) of query head g of every block of every unit, which see keys below `end`.
template <class A>
struct Slab {
  const PanelRows& rows;
  Index g;
  Index first;
  Index end;

  Panels<A> of(const Span<A>& panel, Index dim) const {
    return {panel.data + (g * rows.table.block_tokens + first) * dim,
            rows.units() * rows.table.blocks,
            end - first,
            dim,
            dim,
            rows.of_block() * dim};
  }
  Panels<A> seen(const Panels<A>& keys) const { return keys.row_range(0, end); }
  Panels<A> scores(const Span<A>& scratch) const {
    return panels(scratch.data, rows.units() * rows.table.blocks, end - first, end);
  }
  LowerTriangle triangle() const { return {first, 0}; }
};
/// Calls f(slab) for those of all queries.
template <class A, class F>
void for_each_slab(const PanelRows& rows, const F& f) {
  const Index tokens = rows.table.block_tokens;
  for (Index g = 0; g < rows.group_size; ++g)
    for (Index first = 0; first < tokens; first += slab_tokens)
      f(Slab<A>{rows, g, first, (std::min)(first + slab_tokens, tokens)});
}

/// dQ_t += m_ii c_t p_t, and c_t <Q_t, p_t> to row t's part of dm_ii; a stage has only one of them.
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
    if (products != nullptr)
      products[r] +=
          grad_denominators[r] * inner_product(feature_dim, features + r * feature_dim, p);
    if (grad_queries == nullptr) return;
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

}  // namespace cuda

MHLA_NAMESPACE_END
