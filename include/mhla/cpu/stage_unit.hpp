// SPDX-License-Identifier: MIT
// A unit of a stage: some blocks of a kv head of an item, whose sums, and a recurrence's states,
// are in rows of the caller's.
#pragma once

#include <mhla/cpu/units.hpp>
#include <mhla/stages/calls.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Copies sums, block by block; rows of `to` that `from` lacks become 0.
void copy_sums(const auto& from, const auto& to) {
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

/// Unit `index` of a stage, kv head index % kv_heads of an item, without sums.
template <class L, class T, class A>
Unit<L, T> stage_unit(const Operands<L, T>& operands, const StageMasks& masks, Index index,
                      const UnitMemory<A>& memory) {
  const Problem& problem = operands.plan.problem;
  Unit<L, T> unit = unit_of(operands, index, memory);
  const auto used_of = [&](Span<const Index> blocks, const Grid& grid) {
    return blocks.size > 0 ? blocks[unit.queries.batch] : grid.num_blocks();
  };
  const Index all = used_of(masks.query_blocks, problem.query_grid);
  const bool reads_all = !is_structured<L> && (problem.stage == Stage::read_out ||
                                               problem.stage == Stage::read_out_gradient);
  unit.queries.blocks = std::clamp(all - problem.queries.first, Index{0}, problem.query_blocks);
  unit.keys.blocks = reads_all ? used_of(masks.key_blocks, problem.key_grid) : problem.key_blocks;
  unit.other_queries = all - unit.queries.blocks;
  return unit;
}

/// Which unit of its stage it is.
Index index_of(const auto& unit) {
  return unit.queries.batch * unit.plan.problem.shape.kv_heads + unit.kv_head;
}

/// The unit's sums in `rows` [blocks, (units)] or, by one matrix, [blocks, (units, matrices)]. They
/// are not const, since a Unit's sums are not; a stage writes only into rows that its call passes
/// as results.
template <class L, class T, class A = Accumulator<T>>
SummaryRows<A> sums_of(const Unit<L, T>& unit, const TensorView<const Accumulator<T>, 2>& rows,
                       Orientation orientation, Index matrix = 0) {
  if (rows.extent[0] == 0) return {};
  const Extents& e = unit.extents();
  const Index size_of_unit = rows.extent[1] / num_units(unit.plan.problem);
  const Index size = e.summary_size() + (normalizes<L> ? e.feature_dim : 0);
  A* const data = const_cast<A*>(rows.data) + index_of(unit) * size_of_unit + matrix * size;
  SummaryRows<A> sums(data, data + e.summary_size(), e, orientation, 0, rows.extent[0],
                      normalizes<L>);
  sums.summaries.stride = sums.key_sums.stride = rows.stride[0];
  return sums;
}
template <class L, class T>
auto sums_of(const Unit<L, T>& unit, const TensorView<const Accumulator<T>, 2>& rows,
             Index matrix = 0) {
  return sums_of(unit, rows, unit.orientation(), matrix);
}

/// Gives the unit the caller's sums: where they are or, in a backward pass, transposed into its own
/// memory. A recurrence also gets its products, and states.
template <class L, class T>
void take_up_sums(Unit<L, T>& unit, const Sums<Accumulator<T>>& of, const ExecutorRef& loop) {
  const auto& plan = unit.plan;
  const Problem& problem = plan.problem;
  const auto given = sums_of(unit, of.summaries, Orientation::not_transposed);
  unit.summaries = given;
  if (plan.is_backward) {
    unit.summaries = summary_rows<L>(plan.extents, problem.key_blocks, unit.memory.summaries.data,
                                     Orientation::transposed);
    take_up_summaries(unit, given, loop);
    for (Index b = given.summaries.rows; b < unit.keys.blocks; ++b)  // that are not seen
      set_zero(unit.summaries.summary(b), unit.summaries.key_sum(b));
  }
  if constexpr (is_structured<L>) {
    if (has_states_before(problem))
      unit.states = sums_of(unit, of.states, Orientation::not_transposed);
    unit.keys.blocks = unit.queries.blocks;
    unit.states_after =
        (problem.stage == Stage::advance || problem.stage == Stage::advance_gradient) &&
        unit.queries.blocks + unit.other_queries > problem.queries.first + problem.query_blocks;
    unit.products = plan.structure.products(unit.queries.blocks, unit.states_after,
                                            unit.memory.mixing_products);
  }
}

/// The rows of a work array from S~ on that have the states after the unit.
auto states_after(const auto& unit, const auto& others) {
  const Index rows = num_rows(unit.products) - unit.queries.blocks;
  const Index states = unit.states_after ? unit.plan.structure.num_states() : 0;
  return others.row_range(rows - states, states);
}

/// Copies den and its gradient of the unit's queries to rows [query blocks, (units, group_size, 2,
/// block tokens)] or, if these are const, from them.
template <class B>
void copy_denominators(const auto& unit, const TensorView<B, 2>& rows) {
  const Extents& e = unit.extents();
  const auto copy = [](auto* kept, B* row, Index tokens) {
    if constexpr (std::is_const_v<B>)
      copy_row(kept, row, tokens);
    else
      copy_row(row, kept, tokens);
  };
  for (Index i = 0; i < unit.queries.blocks; ++i)
    for (Index g = 0; g < e.group_size; ++g) {
      const Index place = (index_of(unit) * e.group_size + g) * 2 * e.block_tokens;
      B* const row = rows.data + i * rows.stride[0] + place;
      for (const TokenTile& tile : unit.queries.tiles_of(i)) {
        copy(tile_offsets(e, unit.memory.denominators, g, i, tile).data, row + tile.offset,
             tile.tokens);
        copy(tile_offsets(e, unit.memory.grad_denominators, g, i, tile).data,
             row + e.block_tokens + tile.offset, tile.tokens);
      }
    }
}

}  // namespace cpu

MHLA_NAMESPACE_END
