// SPDX-License-Identifier: MIT
// MixedProduct, the normalizer of the released vision, DiT and video code: it mixes products
// already formed. All blocks have n tokens; p is a token's offset in its block; R, den, C and dR
// are [blocks, n].
//
//   R_bp = <Q_bp, z_b>           den_ip = sum_b m_ib R_bp + epsilon
//
// Adjoint, with C_ip the gradient of den_ip:
//   dm += C R^T    dR = m^T C    dQ_bp += dR_bp z_b    dz_b += sum_p dR_bp Q_bp
#pragma once

#include <mhla/cpu/token_block.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// R and den of every query head of the unit.
template <class L, class T, class A = Accumulator<T>>
void mixed_products_of_unit(const Unit<L, T>& unit, const ExecutorRef& loop) {
  const Extents& e = unit.extents();
  loop.parallel_for(e.group_size * unit.queries.blocks, [&](Index task, Index slot) {
    const Index g = task / unit.queries.blocks;
    const Index b = task % unit.queries.blocks;
    for (const TokenTile& tile : unit.queries.tiles_of(b)) {
      const FeaturePanels<A> q =
          pack_features(query_features(unit, g, tile), unit.plan.scratch[slot]);
      row_products<A>(tile_offsets(e, unit.memory.products, g, b, tile), q.features,
                      Span<const A>(unit.summaries.key_sum(b)));
    }
  });
  loop.parallel_for(e.group_size, [&](Index g, Index) {
    const Panel<A> denominators = head_offsets(e, unit.memory.denominators, g);
    multiply<A>(denominators, unit.mixing(g), head_offsets(e, unit.memory.products, g));
    for (Index b = 0; b < denominators.rows; ++b)
      for (Index p = 0; p < denominators.cols; ++p)
        denominators.row(b)[p] += static_cast<A>(unit.operands.variant.normalizer.epsilon);
  });
}

/// Where a query head's dQ^r of a tile waits until dR is known.
template <class L, class T, class A = Accumulator<T>>
Panel<A> waiting_query_features(const Unit<L, T>& unit, Index g, Index block,
                                const TokenTile& tile) {
  const Extents& e = unit.extents();
  const Index token = block * e.block_tokens + tile.offset;
  return panel(unit.memory.grad_features.data + (g * e.query_tokens + token) * e.feature_dim,
               tile.tokens, e.feature_dim);
}

/// dm += C R^T, for some columns of a matrix's gradient: key blocks from `first` on.
template <class L, class T, class A>
void mixed_products_matrix_gradient(const Unit<L, T>& unit, Index matrix, Index first,
                                    const Panel<A>& columns) {
  const Extents& e = unit.extents();
  const auto heads = unit.plan.heads_of(matrix);
  for (Index g = heads.first; g < heads.last; ++g)
    multiply_right_transposed<A>(
        columns, head_offsets(e, unit.memory.grad_denominators, g),
        head_offsets(e, unit.memory.products, g).row_range(first, columns.cols), Into::add);
}

/// The rest of the adjoint: dR, then dz_b and dq, which waited for dR.
template <class L, class T, class A = Accumulator<T>>
void mixed_products_of_unit_gradient(const Unit<L, T>& unit, const BackwardRequest<L, T>& request,
                                     const ExecutorRef& loop) {
  const Extents& e = unit.extents();
  const Span<A> grad_products = unit.memory.denominators;  // which are no longer needed
  loop.parallel_for(e.group_size, [&](Index g, Index) {
    multiply_left_transposed<A>(head_offsets(e, grad_products, g), unit.mixing(g),
                                head_offsets(e, unit.memory.grad_denominators, g));
  });
  loop.parallel_for(unit.queries.blocks, [&](Index i, Index slot) {
    const SlotScratch<A>& scratch = unit.plan.scratch[slot];
    const Span<A> grad_key_sum{unit.memory.grad_key_sums.data + i * e.feature_dim, e.feature_dim};
    std::fill_n(grad_key_sum.data, grad_key_sum.size, A(0));
    for (Index g = 0; g < e.group_size; ++g)
      for (const TokenTile& tile : unit.queries.tiles_of(i)) {
        const Span<A> weight = tile_offsets(e, grad_products, g, i, tile);
        if (request.gradients.key.wanted) {
          const FeaturePanels<A> q = pack_features(query_features(unit, g, tile), scratch);
          weighted_row_sum<A>(grad_key_sum, q.features, weight, Into::add);
        }
        unpack_query_gradient(unit, request, g, tile,
                              FeatureGradients<A>{waiting_query_features(unit, g, i, tile), weight,
                                                  every_row(unit.summaries.key_sum(i))},
                              scratch.row);
      }
  });
}

}  // namespace cpu

MHLA_NAMESPACE_END
