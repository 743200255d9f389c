// SPDX-License-Identifier: MIT
// Units of a stage (mhla/stages.hpp): some blocks of one, whose sums are rows of the caller's.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/stage.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/backward_unit.hpp>
#include <mhla/cpu/exact/backward.hpp>
#include <mhla/cpu/memory.hpp>
#include <mhla/cpu/partition.hpp>
#include <mhla/cpu/plan.hpp>
#include <mhla/cpu/readout.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/stages/blocks.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Units hold sums that one stage writes and the others read: a view for those that read.
template <class A>
TensorView<A, 2> read_only(const TensorView<const A, 2>& rows) {
  return {const_cast<A*>(rows.data),
          {rows.extent[0], rows.extent[1]},
          {rows.stride[0], rows.stride[1]}};
}

/// The sums that begin at element `first` of every row.
template <class L, class A>
SummaryRows<A> sums_in_rows(const Extents& e, const TensorView<A, 2>& rows, Index first,
                            Orientation orientation) {
  if (rows.extent[0] == 0) return {};
  A* const data = rows.data + first;
  SummaryRows<A> sums(data, data + e.summary_size(), e, orientation, 0, rows.extent[0],
                      normalizes<L>);
  sums.summaries.stride = sums.key_sums.stride = rows.stride[0];
  return sums;
}

/// Rows that `from` lacks are 0.
template <class A>
void copy_sums(const SummaryRows<A>& from, const SummaryRows<A>& to) {
  for (Index b = 0; b < from.summaries.rows; ++b) {
    copy_row(to.summaries.row(b), from.summaries.row(b), from.summaries.cols);
    copy_row(to.key_sums.row(b), from.key_sums.row(b), from.key_sums.cols);
  }
  for (Index b = from.summaries.rows; b < to.summaries.rows; ++b)
    set_zero(to.summary(b), to.key_sum(b));
}

/// Unit `at` of a stage: kv head at % kv_heads of an item.
template <class L, class A>
Unit<A> stage_unit(const Plan<L, A>& plan, Index at, const StageMasks& masks,
                   const UnitMemory<A>& memory, const SummaryRows<A>& summaries,
                   Orientation orientation) {
  const Problem& problem = plan.problem;
  const Index item = at / problem.shape.kv_heads;
  const auto used_of = [&](Span<const Index> blocks, const Grid& grid) {
    return blocks.size > 0 ? blocks[item] : grid.num_blocks();
  };
  const Index all = used_of(masks.query_blocks, problem.query_grid);
  const Index queries = std::clamp(all - problem.queries.first, Index{0}, problem.query_blocks);
  const bool reads_all = !is_structured<L> && (problem.stage == Stage::read_out ||
                                               problem.stage == Stage::read_out_gradient);
  return {{item, plan.tables.queries.sequences[item].first_block, queries},
          {item, plan.tables.keys.sequences[item].first_block,
           reads_all ? used_of(masks.key_blocks, problem.key_grid) : problem.key_blocks},
          at % problem.shape.kv_heads,
          memory,
          summaries,
          orientation,
          {},
          all - queries};
}

/// dS and dz of the unit's key blocks, where from(matrix) is dS~ and dz~ of its query blocks.
template <class L, class A, class From>
void mix_stage_gradient(const Plan<L, A>& plan, const Unit<A>& unit, const SummaryRows<A>& grad,
                        const From& from, const ExecutorRef& loop) {
  const RowGroups groups = shared_row_groups<L>(
      plan.extents, unit.keys.blocks, unit.queries.blocks,
      plan.extents.matrices > 1 ? Into::add : Into::overwrite, loop.num_slots());
  loop.parallel_for(groups.count, [&](Index group, Index) {
    const Index first = groups.begin(group);
    const Index count = groups.size(group);
    mix_group_gradient(plan, unit, first, grad.summaries.row_range(first, count),
                       [&](Index matrix) { return from(matrix).summaries; });
    if constexpr (mixes_key_sums<L>)
      mix_group_gradient(plan, unit, first, grad.key_sums.row_range(first, count),
                         [&](Index matrix) { return from(matrix).key_sums; });
  });
}

/// dk and dv of the unit's key blocks from their dS and dz; under Causal also dmix's diagonal.
template <class L, class T, class A>
void summarize_stage_gradient(const Operands<L, T>& operands, const BackwardRequest<L, T>& request,
                              const Unit<A>& unit, const SummaryRows<A>& grad,
                              const ExecutorRef& loop) {
  loop.parallel_for(unit.keys.blocks, [&](Index b, Index slot) {
    summarize_block_gradient(exact::Backward<L, T>{{operands, unit}, request}, b, {grad},
                             operands.plan.scratch[slot]);
  });
}

/// Calls visit(memory, row, tokens) for den and its gradient of every tile of the unit's queries:
/// in its memory, and in rows [query blocks, (units, group_size, 2, block tokens)].
template <class L, class A, class B, class Visit>
void for_each_denominator(const Plan<L, A>& plan, const Unit<A>& unit, Index at,
                          const TensorView<B, 2>& rows, const Visit& visit) {
  const Extents& e = plan.extents;
  for (Index i = 0; i < unit.queries.blocks; ++i) {
    const BlockSpan& block = plan.tables.queries.blocks[unit.queries.first_block + i];
    for (Index g = 0; g < e.group_size; ++g) {
      B* const row = rows.data + i * rows.stride[0] + (at * e.group_size + g) * 2 * e.block_tokens;
      for (Index t = block.first_tile; t < block.first_tile + block.tiles; ++t) {
        const TokenTile& tile = plan.tables.queries.tiles[t];
        visit(tile_offsets(e, unit.memory.denominators, g, i, tile).data, row + tile.offset,
              tile.tokens);
        visit(tile_offsets(e, unit.memory.grad_denominators, g, i, tile).data,
              row + e.block_tokens + tile.offset, tile.tokens);
      }
    }
  }
}
template <class L, class A>
void leave_denominators(const Plan<L, A>& plan, const Unit<A>& unit, Index at,
                        const TensorView<A, 2>& rows) {
  for_each_denominator(plan, unit, at, rows,
                       [](A* memory, A* row, Index tokens) { copy_row(row, memory, tokens); });
}
template <class L, class A>
void take_up_denominators(const Plan<L, A>& plan, const Unit<A>& unit, Index at,
                          const TensorView<const A, 2>& rows) {
  for_each_denominator(plan, unit, at, rows, [](A* memory, const A* row, Index tokens) {
    copy_row(memory, row, tokens);
  });
}

}  // namespace cpu

MHLA_NAMESPACE_END
