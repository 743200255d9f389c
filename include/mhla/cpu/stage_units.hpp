// SPDX-License-Identifier: MIT
// A unit of a stage (mhla/stages.hpp): some blocks of one, whose sums are in rows of the caller's.
// Of a recurrence, the products of its list (policy/recurrent_mixing.hpp) whose sums are states,
// and the adjoint of all of them:
//
//   H = states before, S   ->   states after
//   dH after, dS~         ->   dH before, dS, dC
#pragma once

#include <mhla/cpu/units.hpp>
#include <mhla/stages/calls.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

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
  return GridBlocks{problem.query_grid}.block_in_sequence(problem.queries.first) > 0;
}

/// Unit `at` of a stage: kv head at % kv_heads of an item.
template <class L, class T>
struct StageUnit {
  using A = Accumulator<T>;
  using Rows = TensorView<const A, 2>;
  const Operands<L, T>& operands;
  const StageMasks& masks;
  Index at;
  const UnitMemory<A>& memory;
  const Plan<L, A>& plan = operands.plan;

  /// The unit's sums, in `rows` [blocks, (sums of every unit)].
  SummaryRows<A> sums(const Rows& rows) const { return sums_at(at, rows, plan.orientation()); }
  /// A function from a matrix to the unit's sums by it, in `rows` [blocks, (units, matrices)].
  auto matrix_sums(const Rows& rows) const {
    return [this, rows](Index matrix) {
      return sums_at(at * plan.extents.matrices + matrix, rows, plan.orientation());
    };
  }

  /// The unit's blocks, with `summaries`.
  Unit<L, T> with(const SummaryRows<A>& summaries) const {
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
  /// The unit with the caller's sums, and states: where they are or, in a backward pass, transposed
  /// into its own memory.
  Unit<L, T> with(const Sums<A>& of, const ExecutorRef& loop) const {
    const SummaryRows<A> given = sums_at(at, of.summaries, Orientation::not_transposed);
    if (!plan.is_backward) return with_states(of, with(given));
    const Unit<L, T> unit = with(summary_rows<L>(plan.extents, plan.problem.key_blocks,
                                                 memory.summaries.data, Orientation::transposed));
    take_up_summaries(unit, given, loop);
    for (Index b = given.summaries.rows; b < unit.keys.blocks; ++b)  // that are not seen
      set_zero(unit.summaries.summary(b), unit.summaries.key_sum(b));
    return with_states(of, unit);
  }

  /// Copies den and its gradient of the unit's queries to rows [query blocks, (units, group_size,
  /// 2, block tokens)] or, if these are const, from them.
  template <class B>
  void copy_denominators(const Unit<L, T>& unit, const TensorView<B, 2>& rows) const {
    const Extents& e = plan.extents;
    const auto copy = [](A* kept, B* row, Index tokens) {
      if constexpr (std::is_const_v<B>)
        copy_row(kept, row, tokens);
      else
        copy_row(row, kept, tokens);
    };
    for (Index i = 0; i < unit.queries.blocks; ++i) {
      for (Index g = 0; g < e.group_size; ++g) {
        B* const row =
            rows.data + i * rows.stride[0] + (at * e.group_size + g) * 2 * e.block_tokens;
        for (const TokenTile& tile : unit.queries.tiles_of(i)) {
          copy(tile_offsets(e, memory.denominators, g, i, tile).data, row + tile.offset,
               tile.tokens);
          copy(tile_offsets(e, memory.grad_denominators, g, i, tile).data,
               row + e.block_tokens + tile.offset, tile.tokens);
        }
      }
    }
  }

 private:
  /// The sums at `place` in every row. They are not const, since a Unit's sums are not; a stage
  /// writes only into rows that its call passes as results.
  SummaryRows<A> sums_at(Index place, const Rows& rows, Orientation orientation) const {
    if (rows.extent[0] == 0) return {};
    const Extents& e = plan.extents;
    A* const data = const_cast<A*>(rows.data) +
                    place * (e.summary_size() + (normalizes<L> ? e.feature_dim : 0));
    SummaryRows<A> sums(data, data + e.summary_size(), e, orientation, 0, rows.extent[0],
                        normalizes<L>);
    sums.summaries.stride = sums.key_sums.stride = rows.stride[0];
    return sums;
  }
  /// Of a recurrence, adds the states before the unit and, if the stage advances them, those after.
  Unit<L, T> with_states(const Sums<A>& of, Unit<L, T> unit) const {
    if constexpr (is_structured<L>) {
      const Problem& problem = plan.problem;
      if (has_states_before(problem))
        unit.states = sums_at(at * plan.extents.matrices, of.states, Orientation::not_transposed);
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

/// The adjoint of the unit's mixing and of what advance makes: dS and dz, and the gradients of the
/// states before the unit. Adds the coefficients' if they are wanted.
template <class L, class T, class A = Accumulator<T>>
void advance_unit_gradient(const StageUnit<L, T>& at, const stages::AdvanceGradient<T>& call,
                           const ExecutorRef& loop) {
  const Plan<L, A>& plan = at.plan;
  const Unit<L, T> unit = at.with(call.sums, loop);
  const StructuredGradients<A> all = structured_gradients(unit);
  const Index blocks = unit.queries.blocks;
  const auto left = at.matrix_sums(call.mixtures);
  const auto after = at.matrix_sums(call.states.after);
  const auto before =
      at.matrix_sums(has_states_before(plan.problem) ? call.states.before : TensorView<A, 2>{});
  for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix) {
    if (call.dmix.wanted) mix_states(unit, matrix, loop);
    copy_sums(left(matrix).row_range(0, blocks), all.mixed.row_range(0, blocks));
    const SummaryRows<A> to = states_after(unit, all.mixed);
    copy_sums(after(matrix).row_range(0, to.summaries.rows), to);
    mix_unit_gradient(unit, matrix, call.dmix.wanted, loop);
    copy_sums(states_before(unit, all.mixed), before(matrix));
  }
  copy_sums(all.keys.row_range(0, blocks), at.sums(call.summary_gradients));
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
