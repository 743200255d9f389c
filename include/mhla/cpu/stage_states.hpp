// SPDX-License-Identifier: MIT
// What a recurrence does with some of its blocks (mhla/stages.hpp): the products of its list
// (policy/recurrent_mixing.hpp) whose sums are states, and the adjoint of all of them.
//
//   H = states before, S   ->   states after
//   dH after, dS~         ->   dH before, dS, dC
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/factored_mixing.hpp>
#include <mhla/cpu/memory.hpp>
#include <mhla/cpu/partial_sums.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/cpu/plan.hpp>
#include <mhla/cpu/stage_units.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// The unit of a stage by a recurrence, with the states before it, not transposed, and if it
/// `advances` those after.
template <class L, class A>
Unit<A> with_states(const Plan<L, A>& plan, const Unit<A>& stage, const SummaryRows<A>& states,
                    bool advances) {
  const Index end = plan.problem.queries.first + plan.problem.query_blocks;
  Unit<A> unit = stage;
  unit.keys.blocks = unit.queries.blocks;
  unit.states = states;
  unit.states_after = advances && unit.queries.blocks + unit.other_queries > end;
  unit.products =
      plan.structure.products(unit.queries.blocks, unit.states_after, unit.memory.mixing_products);
  return unit;
}

/// All states of the unit by matrix `matrix`; S~ is not formed. The last are those after it.
template <class L, class A>
SummaryRows<A> mix_states(const Plan<L, A>& plan, const Unit<A>& unit, Index matrix,
                          const ExecutorRef& loop) {
  const SummaryRows<A> mixed = structured_mixtures(plan, unit);
  take_up_states(plan, unit, matrix, mixed);
  const auto mix = [&](const Panel<A>& from, const Panel<A>& to) {
    for_each_column_range(to.cols, loop, [&](Index first, Index count) {
      const MixingRows<A> rows = work_array(plan, unit, from, to).col_range(first, count);
      for (const MixingProduct& product : unit.products)
        if (product.out >= 2 * unit.queries.blocks)
          mix_by_products<A>({&product, 1}, plan.matrix(unit_matrix(plan, unit, matrix)), rows);
    });
  };
  mix(unit.summaries.summaries, mixed.summaries);
  if constexpr (mixes_key_sums<L>) mix(unit.summaries.key_sums, mixed.key_sums);
  return mixed;
}

/// The rows of a work array from S~ on that have the states before the unit, or after it.
template <class A>
SummaryRows<A> states_before(const Unit<A>& unit, const SummaryRows<A>& others) {
  return others.row_range(unit.queries.blocks,
                          unit.queries.blocks > 0 ? unit.states.summaries.rows : 0);
}
template <class L, class A>
SummaryRows<A> states_after(const Plan<L, A>& plan, const Unit<A>& unit,
                            const SummaryRows<A>& others) {
  const Index rows = num_rows(unit.products) - unit.queries.blocks;
  const Index states = unit.states_after ? plan.structure.num_states() : 0;
  return others.row_range(rows - states, states);
}

/// The states after the unit; 0 if no blocks there have tokens. after(matrix) takes them.
template <class L, class A, class After>
void advance_unit(const Plan<L, A>& plan, const Unit<A>& unit, const After& after,
                  const ExecutorRef& loop) {
  for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix)
    copy_sums(states_after(plan, unit, mix_states(plan, unit, matrix, loop)), after(matrix));
}

/// The adjoint of the unit's mixing and of advance_unit: dS and dz in `grad`, those of states
/// before the unit in before(matrix), of dS~ left(matrix) and of states after it, after(matrix).
/// Adds the coefficients' if they are wanted.
template <class L, class A, class Rows>
void advance_unit_gradient(const Plan<L, A>& plan, const Unit<A>& unit, const Rows& left,
                           const Rows& after, const Rows& before, const SummaryRows<A>& grad,
                           bool mixing_wanted, const ExecutorRef& loop) {
  const StructuredGradients<A> all = structured_gradients(plan, unit);
  const Index blocks = unit.queries.blocks;
  for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix) {
    if (mixing_wanted) mix_states(plan, unit, matrix, loop);
    copy_sums(left(matrix).row_range(0, blocks), all.mixed.row_range(0, blocks));
    const SummaryRows<A> to = states_after(plan, unit, all.mixed);
    copy_sums(after(matrix).row_range(0, to.summaries.rows), to);
    mix_unit_gradient(plan, unit, matrix, mixing_wanted, loop);
    copy_sums(states_before(unit, all.mixed), before(matrix));
  }
  copy_sums(all.keys.row_range(0, blocks), grad);
}

/// Adds the gradients of m_ii, from partial sums of coefficients, to column 0 of dmix (Causal).
template <class L, class A>
void write_own_gradient(const BackwardPlan<L, A>& backward, const TensorView<A, 3>& destination,
                        const ExecutorRef& executor) {
  const Plan<L, A>& plan = backward.plan;
  executor.parallel_for(destination.extent[0], [&](Index h, Index) {
    const A* const sums = add_up_partials(plan.problem.shape, backward.partials,
                                          backward.grad_mixing, h, 0, plan.matrix_size);
    for (Index i = 0; i < plan.problem.query_blocks && sums != nullptr; ++i)
      destination(h, destination.extent[1] == 1 ? 0 : i, 0) += sums[plan.own_entry(i)];
  });
}

}  // namespace cpu

MHLA_NAMESPACE_END
