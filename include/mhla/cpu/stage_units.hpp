// SPDX-License-Identifier: MIT
// A unit of a stage (mhla/stages.hpp): some blocks of one, whose sums are in rows of the caller's.
// Of a recurrence, the products of its list (policy/recurrent_mixing.hpp) whose sums are states,
// and the adjoint of all of them:
//
//   H = states before, S   ->   states after
//   dH after, dS~         ->   dH before, dS, dC
#pragma once

#include <mhla/cpu/units.hpp>
#include <mhla/stages/blocks.hpp>
#include <mhla/stages/calls.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// A view by which a Unit, whose sums are not const, holds sums that its stage only reads.
template <class A>
TensorView<A, 2> read_only(const TensorView<const A, 2>& rows) {
  return {const_cast<A*>(rows.data),
          {rows.extent[0], rows.extent[1]},
          {rows.stride[0], rows.stride[1]}};
}

/// Copies sums, block by block; rows of `to` that `from` lacks become 0.
template <class A>
void copy_sums(const SummaryRows<A>& from, const SummaryRows<A>& to) {
  for (Index b = 0; b < from.summaries.rows; ++b) {
    copy_row(to.summaries.row(b), from.summaries.row(b), from.summaries.cols);
    copy_row(to.key_sums.row(b), from.key_sums.row(b), from.key_sums.cols);
  }
  for (Index b = from.summaries.rows; b < to.summaries.rows; ++b)
    set_zero(to.summary(b), to.key_sum(b));
}

/// Whether a recurrence has states before a stage's first block, also where the stage has no
/// blocks.
inline bool has_states_before(const Problem& problem) {
  const Index first = problem.queries.first;
  return first > 0 && first < problem.query_grid.num_blocks();
}

/// Unit `at` of a stage: kv head at % kv_heads of an item.
template <class L, class T>
struct StageUnit {
  using A = Accumulator<T>;
  const Operands<L, T>& operands;
  const StageMasks& masks;
  Index at;
  const UnitMemory<A>& memory;
  const Plan<L, A>& plan = operands.plan;

  /// The unit's sums, in `rows` [blocks, (sums of every unit)].
  template <class Sum>
  SummaryRows<Sum> sums(const TensorView<Sum, 2>& rows, Orientation orientation) const {
    return sums_at(at, rows, orientation);
  }
  /// A function from a matrix to the unit's sums by it, in `rows` [blocks, (units, matrices)].
  template <class Sum>
  auto matrix_sums(const TensorView<Sum, 2>& rows, Orientation orientation) const {
    return [this, rows, orientation](Index matrix) {
      return sums_at(at * plan.extents.matrices + matrix, rows, orientation);
    };
  }

  /// The unit's blocks, with `summaries`.
  Unit<L, T> with_rows(const SummaryRows<A>& summaries) const {
    const Problem& problem = plan.problem;
    const Index item = at / problem.shape.kv_heads;
    const auto used_of = [&](Span<const Index> blocks, const Grid& grid) {
      return blocks.size > 0 ? blocks[item] : grid.num_blocks();
    };
    const Index all = used_of(masks.query_blocks, problem.query_grid);
    const Index queries = std::clamp(all - problem.queries.first, Index{0}, problem.query_blocks);
    const bool reads_all = !is_structured<L> && (problem.stage == Stage::read_out ||
                                                 problem.stage == Stage::read_out_gradient);
    const auto blocks_of = [&](const BlockTable& table, Index blocks) {
      return UnitBlocks{{item, table.sequences[item].first_block, blocks}, table};
    };
    return {operands,
            blocks_of(plan.tables.queries, queries),
            blocks_of(plan.tables.keys,
                      reads_all ? used_of(masks.key_blocks, problem.key_grid) : problem.key_blocks),
            at % problem.shape.kv_heads,
            memory,
            summaries,
            {},
            all - queries};
  }
  /// The unit with the caller's sums, where they are, and states.
  Unit<L, T> with(const Sums<A>& of) const {
    return with_states(of, with_rows(sums(read_only(of.summaries), Orientation::not_transposed)));
  }
  /// The unit with the caller's sums transposed into its own memory, and states.
  Unit<L, T> with_transposed(const Sums<A>& of, const ExecutorRef& loop) const {
    const Unit<L, T> unit = with_rows(summary_rows<L>(
        plan.extents, plan.problem.key_blocks, memory.summaries.data, Orientation::transposed));
    take_up_summaries(unit, sums(of.summaries, Orientation::not_transposed), loop);
    for (Index b = of.summaries.extent[0]; b < unit.keys.blocks; ++b)  // that are not seen
      set_zero(unit.summaries.summary(b), unit.summaries.key_sum(b));
    return with_states(of, unit);
  }

  /// Calls visit(in its memory, in the row, tokens) for den and its gradient of every tile of the
  /// unit's queries; rows [query blocks, (units, group_size, 2, block tokens)].
  template <class B, class Visit>
  void for_each_denominator(const Unit<L, T>& unit, const TensorView<B, 2>& rows,
                            const Visit& visit) const {
    const Extents& e = plan.extents;
    for (Index i = 0; i < unit.queries.blocks; ++i) {
      for (Index g = 0; g < e.group_size; ++g) {
        B* const row =
            rows.data + i * rows.stride[0] + (at * e.group_size + g) * 2 * e.block_tokens;
        for (const TokenTile& tile : unit.queries.tiles_of(i)) {
          visit(tile_offsets(e, memory.denominators, g, i, tile).data, row + tile.offset,
                tile.tokens);
          visit(tile_offsets(e, memory.grad_denominators, g, i, tile).data,
                row + e.block_tokens + tile.offset, tile.tokens);
        }
      }
    }
  }

 private:
  template <class Sum>
  SummaryRows<Sum> sums_at(Index place, const TensorView<Sum, 2>& rows,
                           Orientation orientation) const {
    if (rows.extent[0] == 0) return {};
    const Extents& e = plan.extents;
    Sum* const data = rows.data + place * (e.summary_size() + (normalizes<L> ? e.feature_dim : 0));
    SummaryRows<Sum> sums(data, data + e.summary_size(), e, orientation, 0, rows.extent[0],
                          normalizes<L>);
    sums.summaries.stride = sums.key_sums.stride = rows.stride[0];
    return sums;
  }
  /// Of a recurrence, adds the states before the unit and, if the stage advances them, those after.
  Unit<L, T> with_states(const Sums<A>& of, Unit<L, T> unit) const {
    if constexpr (is_structured<L>) {
      const Problem& problem = plan.problem;
      if (has_states_before(problem))
        unit.states = matrix_sums(read_only(of.states), Orientation::not_transposed)(0);
      unit.keys.blocks = unit.queries.blocks;
      unit.states_after =
          (problem.stage == Stage::advance || problem.stage == Stage::advance_gradient) &&
          unit.queries.blocks + unit.other_queries > problem.queries.first + problem.query_blocks;
      unit.products =
          plan.structure.products(unit.queries.blocks, unit.states_after, memory.mixing_products);
    }
    return unit;
  }
};

/// dS and dz of the unit's key blocks, where from(matrix) is dS~ and dz~ of its query blocks.
template <class L, class T, class A, class From>
void mix_stage_gradient(const Unit<L, T>& unit, const SummaryRows<A>& grad, const From& from,
                        const ExecutorRef& loop) {
  const RowGroups groups = shared_row_groups<L>(
      unit.extents(), unit.keys.blocks, unit.queries.blocks,
      unit.extents().matrices > 1 ? Into::add : Into::overwrite, loop.num_slots());
  loop.parallel_for(groups.count, [&](Index group, Index) {
    const Index first = groups.begin(group);
    mix_blocks_gradient(unit, first, grad.row_range(first, groups.size(group)), from);
  });
}

/// dk and dv of the unit's key blocks from their dS and dz; under Causal also dmix's diagonal.
template <class L, class T, class A>
void summarize_stage_gradient(const Unit<L, T>& unit, const BackwardRequest<L, T>& request,
                              const SummaryRows<A>& grad, const ExecutorRef& loop) {
  loop.parallel_for(unit.keys.blocks, [&](Index b, Index slot) {
    summarize_block_gradient(exact::Backward<L, T>{{unit}, request}, b, {grad},
                             unit.plan().scratch[slot]);
  });
}

/// All states of the unit by matrix `matrix`; S~ is not formed. The last are those after it.
template <class L, class T, class A = Accumulator<T>>
SummaryRows<A> mix_states(const Unit<L, T>& unit, Index matrix, const ExecutorRef& loop) {
  return mix_unit(unit, matrix, loop, true, 2 * unit.queries.blocks);
}

/// The rows of a work array from S~ on that have the states before the unit, or after it.
template <class L, class T, class A>
SummaryRows<A> states_before(const Unit<L, T>& unit, const SummaryRows<A>& others) {
  return others.row_range(unit.queries.blocks,
                          unit.queries.blocks > 0 ? unit.states.summaries.rows : 0);
}
template <class L, class T, class A>
SummaryRows<A> states_after(const Unit<L, T>& unit, const SummaryRows<A>& others) {
  const Index rows = num_rows(unit.products) - unit.queries.blocks;
  const Index states = unit.states_after ? unit.plan().structure.num_states() : 0;
  return others.row_range(rows - states, states);
}

/// The states after the unit; 0 if no blocks there have tokens. after(matrix) takes them.
template <class L, class T, class After>
void advance_unit(const Unit<L, T>& unit, const After& after, const ExecutorRef& loop) {
  for (Index matrix = 0; matrix < unit.extents().matrices; ++matrix)
    copy_sums(states_after(unit, mix_states(unit, matrix, loop)), after(matrix));
}

/// The adjoint of the unit's mixing and of advance_unit: dS and dz in `grad`, those of states
/// before the unit in before(matrix), of dS~ left(matrix) and of states after it, after(matrix).
/// Adds the coefficients' if they are wanted.
template <class L, class T, class A, class Rows>
void advance_unit_gradient(const Unit<L, T>& unit, const Rows& left, const Rows& after,
                           const Rows& before, const SummaryRows<A>& grad, bool mixing_wanted,
                           const ExecutorRef& loop) {
  const StructuredGradients<A> all = structured_gradients(unit);
  const Index blocks = unit.queries.blocks;
  for (Index matrix = 0; matrix < unit.extents().matrices; ++matrix) {
    if (mixing_wanted) mix_states(unit, matrix, loop);
    copy_sums(left(matrix).row_range(0, blocks), all.mixed.row_range(0, blocks));
    const SummaryRows<A> to = states_after(unit, all.mixed);
    copy_sums(after(matrix).row_range(0, to.summaries.rows), to);
    mix_unit_gradient(unit, matrix, mixing_wanted, loop);
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
