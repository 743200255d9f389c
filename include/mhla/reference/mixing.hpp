// SPDX-License-Identifier: MIT
// The matrix m that a mixing's parameters stand for, entry by entry from the formulas of
// policy/mixing.hpp, and the chain rule from dm to them.
#pragma once

#include <mhla/policy/problem.hpp>
#include <mhla/reference/token_matrix.hpp>

MHLA_NAMESPACE_BEGIN

namespace reference {

/// \cond INTERNAL
// Every m_ij is a sum of terms, each a product of entries of mix: for_each_term(...) calls
// term(factors) for each term, and factors(visit) calls visit(row, column) for each factor.
template <class Term>
void for_each_term(const DenseMixing&, const Problem&, const Index (&)[2], Index i, Index j,
                   const Term& term) {
  term([&](const auto& visit) { visit(i, j); });
}
template <class Term>
void for_each_term(const RecurrentMixing& mixing, const Problem&, const Index (&extent)[2], Index i,
                   Index j, const Term& term) {
  if (i < j) return;
  const auto row = [&](Index block) { return extent[0] == 1 ? 0 : block; };
  if (i == j) return term([&](const auto& visit) { visit(row(i), 0); });
  for (Index r = 0; r < mixing.states; ++r)
    term([&](const auto& visit) {
      visit(row(i), 1 + r);                                                         // a_ir
      for (Index k = j + 2; k <= i; ++k) visit(row(k), 1 + 2 * mixing.states + r);  // g_kr
      visit(row(j + 1), 1 + mixing.states + r);                                     // b_(j+1)r
    });
}
template <class Term>
void for_each_term(const SeparableMixing& mixing, const Problem& problem, const Index (&extent)[2],
                   Index i, Index j, const Term& term) {
  for (Index r = 0; r < mixing.rank; ++r)
    term([&](const auto& visit) {
      Index end = extent[1];  // axes that the geometry lacks come first, and have no factor
      for (int axis = 2; axis >= 0 && end > 0; --axis) {
        const Index keys = problem.key_grid.layout(axis);
        end -= problem.query_grid.layout(axis) * keys;
        visit(r, end + problem.query_grid.block_coordinate(i, axis) * keys +
                     problem.key_grid.block_coordinate(j, axis));
      }
    });
}

// m of one head, of all blocks of the call.
template <class V, class A>
Matrix<A> mixing_matrix(const V& attention, const Problem& problem,
                        const TensorView<const A, 2>& mix) {
  Matrix<A> m(problem.query_blocks, problem.key_blocks);
  for (Index i = 0; i < m.rows(); ++i)
    for (Index j = 0; j < m.columns(); ++j)
      for_each_term(attention.mixing, problem, {mix.extent[0], mix.extent[1]}, i, j,
                    [&](const auto& for_each) {
                      A product = A(1);
                      for_each([&](Index row, Index column) { product *= mix(row, column); });
                      m(i, j) += product;
                    });
  return m;
}

// Adds dm's part to the gradient of mix.
template <class V, class A>
void add_mixing_gradient(const V& attention, const Problem& problem,
                         const TensorView<const A, 2>& mix, const Matrix<A>& dm,
                         const TensorView<A, 2>& grad_mix) {
  for (Index i = 0; i < dm.rows(); ++i)
    for (Index j = 0; j < dm.columns(); ++j)
      for_each_term(attention.mixing, problem, {mix.extent[0], mix.extent[1]}, i, j,
                    [&](const auto& for_each) {
                      Index factor = 0;
                      for_each([&](Index row, Index column) {
                        A others = A(1);
                        Index other = 0;
                        for_each([&](Index r, Index c) {
                          if (other++ != factor) others *= mix(r, c);
                        });
                        ++factor;
                        grad_mix(row, column) += dm(i, j) * others;
                      });
                    });
}
/// \endcond

}  // namespace reference

MHLA_NAMESPACE_END
