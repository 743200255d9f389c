// SPDX-License-Identifier: MIT
// Stages (mhla/stages.hpp) on the CPU: each lays its plan out, then runs its part of a pass on some
// blocks of every unit, whose sums are in rows of the caller's. A recurrence's stages also run the
// products of its list (policy/recurrent_mixing.hpp) whose sums are states, and the adjoint of all:
//
//   H = states before, S   ->   states after
//   dH after, dS~         ->   dH before, dS, dC
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

/// Runs one stage on some blocks; its views have been checked.
template <class V, class T>
class StageRun {
  using A = Accumulator<T>;
  using L = LoweredOf<V>;
  using Unit = cpu::Unit<L, T>;
  static constexpr bool recurs = is_structured<V>;

 public:
  StageRun(const stages::Part<V>& part, const ExecutorRef& executor)
      : part_(part), executor_(executor) {
    if constexpr (requires { part.attention.masks; }) require_masks();
  }

  static void require_room(WorkspaceView workspace, Index bytes) {
    require_workspace(workspace, bytes, "mhla::Stages",
                      "Stages::workspace_size says how many a stage takes");
  }
  Index workspace_size() const {
    Arena arena;
    lay_out(arena);
    return arena.used();
  }

  template <class Call>
  void run(const Call& call, WorkspaceView workspace) const {
    Arena arena(workspace);
    std::optional<Plan<L, A>> plan = lay_out(arena);
    require_room(workspace, arena.used());
    if constexpr (Call::stage == Stage::advance_gradient) clear_parameters(call);
    if (!plan) return;
    if (recurs && problem_.key_blocks == 0) return pass_on(call);
    const Operands<L, T> operands = packed_operands(attention_, *plan, call.x);
    const auto run_one = [&](Index index, const auto& memory, const ExecutorRef& loop) {
      Unit unit = unit_at(operands, index, memory);
      if constexpr (requires { call.sums; }) take_up_sums(unit, call.sums, loop);
      run_unit(call, unit, loop);
    };
    if constexpr (requires { call.dmix; }) {
      Update update = Update::accumulate;
      if constexpr (Call::stage == Stage::read_out_gradient) update = call.mix_update;
      run_units(*plan, executor_, call.dmix.wanted, run_one);
      write_mixing_gradient(*plan, call.x.mix, call.dmix, update, executor_);
    } else {
      run_units(*plan, executor_, false, run_one);
    }
  }

 private:
  auto lay_out(Arena& arena) const {
    const Stage stage = *problem_.stage;
    const bool backward = stage == Stage::read_out_gradient || stage == Stage::summarize_gradient ||
                          stage == Stage::advance_gradient;
    return Call<V, T>(arena, attention_, problem_, executor_, backward).plan;
  }

  // Whether a recurrence has states before the first block, also where there are no blocks.
  bool has_states_before() const {
    return GridBlocks{problem_.query_grid}.block_in_sequence(problem_.queries.first) > 0;
  }

  // Unit `index`, kv head index % kv_heads of an item, without sums.
  Unit unit_at(const Operands<L, T>& operands, Index index, const UnitMemory<A>& memory) const {
    Unit unit = unit_of(operands, index, memory);
    const auto used_of = [&](Span<const Index> blocks, const Grid& grid) {
      return blocks.size > 0 ? blocks[unit.queries.batch] : grid.num_blocks();
    };
    const Index all = used_of(part_.masks.query_blocks, problem_.query_grid);
    const bool reads_all = !recurs && (problem_.stage == Stage::read_out ||
                                       problem_.stage == Stage::read_out_gradient);
    unit.queries.blocks = std::clamp(all - problem_.queries.first, Index{0}, problem_.query_blocks);
    unit.keys.blocks =
        reads_all ? used_of(part_.masks.key_blocks, problem_.key_grid) : problem_.key_blocks;
    unit.other_queries = all - unit.queries.blocks;
    return unit;
  }
  Index index_of(const Unit& unit) const {
    return unit.queries.batch * problem_.shape.kv_heads + unit.kv_head;
  }

  // The unit's sums in `rows` [blocks, (units)] or, by one matrix, [blocks, (units, matrices)], as
  // the unit stores sums unless told otherwise. They are not const, since a Unit's sums are not; a
  // stage writes only into rows that its call passes as results.
  SummaryRows<A> sums_of(const Unit& unit, const TensorView<const A, 2>& rows, Index matrix = 0,
                         std::optional<Orientation> orientation = {}) const {
    if (rows.extent[0] == 0) return {};
    const Extents& e = unit.extents();
    const Index size_of_unit = rows.extent[1] / num_units(problem_);
    const Index size = e.summary_size() + (normalizes<L> ? e.feature_dim : 0);
    A* const data = const_cast<A*>(rows.data) + index_of(unit) * size_of_unit + matrix * size;
    SummaryRows<A> sums(data, data + e.summary_size(), e, orientation.value_or(unit.orientation()),
                        0, rows.extent[0], normalizes<L>);
    sums.summaries.stride = sums.key_sums.stride = rows.stride[0];
    return sums;
  }

  // Gives the unit the caller's sums: where they are or, in a backward pass, transposed into its
  // own memory. A recurrence also gets its products, and states.
  void take_up_sums(Unit& unit, const Sums<A>& of, const ExecutorRef& loop) const {
    const SummaryRows<A> given = sums_of(unit, of.summaries, 0, Orientation::not_transposed);
    unit.summaries = given;
    if (unit.plan.is_backward) {
      unit.summaries = summary_rows<L>(unit.extents(), problem_.key_blocks,
                                       unit.memory.summaries.data, unit.orientation());
      take_up_summaries(unit, given, loop);
      for (Index b = given.summaries.rows; b < unit.keys.blocks; ++b)  // that are not seen
        set_zero(unit.summaries.summary(b), unit.summaries.key_sum(b));
    }
    if constexpr (recurs) {
      if (has_states_before())
        unit.states = sums_of(unit, of.states, 0, Orientation::not_transposed);
      unit.keys.blocks = unit.queries.blocks;
      unit.states_after =
          (problem_.stage == Stage::advance || problem_.stage == Stage::advance_gradient) &&
          unit.queries.blocks + unit.other_queries > problem_.queries.first + problem_.query_blocks;
      unit.products = unit.plan.structure.products(unit.queries.blocks, unit.states_after,
                                                   unit.memory.mixing_products);
    }
  }

  // The rows of a work array from S~ on that have the states after the unit.
  static SummaryRows<A> states_after(const Unit& unit, const SummaryRows<A>& others) {
    const Index rows = num_rows(unit.products) - unit.queries.blocks;
    const Index states = unit.states_after ? unit.plan.structure.num_states() : 0;
    return others.row_range(rows - states, states);
  }

  // Copies den and its gradient of the unit's queries to rows [query blocks, (units, group_size, 2,
  // block tokens)] or, if these are const, from them.
  template <class B>
  void copy_denominators(const Unit& unit, const TensorView<B, 2>& rows) const {
    const Extents& e = unit.extents();
    for (Index i = 0; i < unit.queries.blocks; ++i)
      for (Index g = 0; g < e.group_size; ++g) {
        const Index place = (index_of(unit) * e.group_size + g) * 2 * e.block_tokens;
        B* row = rows.data + i * rows.stride[0] + place;
        const Span<A> arrays[] = {unit.memory.denominators, unit.memory.grad_denominators};
        for (const Span<A>& array : arrays) {
          for (const TokenTile& tile : unit.queries.tiles_of(i)) {
            auto* const kept = tile_offsets(e, array, g, i, tile).data;
            if constexpr (std::is_const_v<B>)
              copy_row(kept, row + tile.offset, tile.tokens);
            else
              copy_row(row + tile.offset, kept, tile.tokens);
          }
          row += e.block_tokens;
        }
      }
  }

  // What advance_gradient overwrites of dmix.
  void clear_parameters(const auto& call) const {
    if (!call.dmix.wanted || call.mix_update == Update::accumulate) return;
    const auto& [first, count] = call.blocks;
    const TensorView<A, 3>& view = call.dmix.view;
    const bool shared = problem_.shape.mix_query_blocks == 1;
    for (Index h = 0; h < view.extent[0]; ++h)
      for (Index i = 0; i < view.extent[1]; ++i)
        for (Index c = 0; c < view.extent[2]; ++c)
          if (shared || (c <= attention_.mixing.states ? i < count : i > 0 || first == 0))
            view(h, i, c) = A(0);
  }

  // States that no block changes, where there are no blocks.
  void pass_on(const auto& call) const {
    const bool begun = has_states_before();
    if constexpr (requires { call.after; }) {
      if (begun)
        HostKernels::copy_tensor(executor_, call.sums.states, call.after);
      else
        HostKernels::clear_tensor(executor_, call.after);
    } else if constexpr (requires { call.states; }) {
      if (begun) HostKernels::copy_tensor(executor_, call.states.after, call.states.before);
    }
  }

  // A stage of one unit, which has taken up the sums that the stage reads.
  void run_unit(const stages::Summarize<T>& call, Unit& unit, const ExecutorRef& loop) const {
    unit.summaries = sums_of(unit, call.summaries);
    summarize_for_float_mixing(unit, loop);
  }

  void run_unit(const stages::ReadOut<T>& call, Unit& unit, const ExecutorRef& loop) const {
    read_out_by_float_mixing(unit, call.y, loop);
  }

  void run_unit(const stages::ReadOutGradient<T>& call, Unit& unit, const ExecutorRef& loop) const {
    BackwardRequest<L, T> request{call.dy, {call.dq, skip, skip, call.dmix}, call.update};
    request.gradients.key.wanted = request.gradients.value.wanted = true;  // by later stages
    const auto hand_over = [&](Index matrix) {
      copy_sums(mixed_gradients(unit, matrix).row_range(0, unit.queries.blocks),
                sums_of(unit, call.left.mixtures, matrix));
    };
    const exact::Backward<L, T> by{{unit}, request};
    read_out_unit_gradient(by, loop, hand_over);
    if constexpr (!recurs) {
      if (request.mixing()) add_mixing_gradient(by, loop);
      for (Index matrix = 0; matrix < unit.extents().matrices; ++matrix) hand_over(matrix);
    }
    if constexpr (keeps_denominators<L>) copy_denominators(unit, call.left.denominators);
  }

  void run_unit(const stages::MixGradient<T>& call, Unit& unit, const ExecutorRef& loop) const {
    const SummaryRows<A> grad = sums_of(unit, call.summary_gradients);
    const auto mixtures = [&](Index matrix) { return sums_of(unit, call.mixtures, matrix); };
    const Into into = unit.extents().matrices > 1 ? Into::add : Into::overwrite;
    const RowGroups groups = shared_row_groups<L>(
        unit.extents(), unit.keys.blocks, unit.queries.blocks, into, loop.num_slots(), false);
    loop.parallel_for(groups.count, [&](Index group, Index) {
      const Index first = groups.begin(group);
      mix_blocks_gradient(unit, first, grad.row_range(first, groups.size(group)), mixtures);
    });
  }

  // Of dmix only the diagonal, which is added.
  void run_unit(const stages::SummarizeGradient<T>& call, Unit& unit,
                const ExecutorRef& loop) const {
    const BackwardRequest<L, T> request{call.dy, {skip, call.dk, call.dv, call.dmix}, call.update};
    if constexpr (keeps_denominators<L>) copy_denominators(unit, call.denominators);
    const SummaryRows<A> grad = sums_of(unit, call.summary_gradients);
    loop.parallel_for(unit.keys.blocks, [&](Index b, Index slot) {
      summarize_block_gradient(exact::Backward<L, T>{{unit}, request}, b, grad,
                               unit.plan.scratch[slot]);
    });
  }

  void run_unit(const stages::Advance<T>& call, Unit& unit, const ExecutorRef& loop) const {
    for (Index matrix = 0; matrix < unit.extents().matrices; ++matrix) {
      const auto states = mix_unit(unit, matrix, loop, true, 2 * unit.queries.blocks);  // not S~
      copy_sums(states_after(unit, states), sums_of(unit, call.after, matrix));
    }
  }

  // The adjoint of the unit's mixing and of what advance makes.
  void run_unit(const stages::AdvanceGradient<T>& call, Unit& unit, const ExecutorRef& loop) const {
    const StructuredGradients<A> all = structured_gradients(unit);
    const Index blocks = unit.queries.blocks;
    const SummaryRows<A> own = all.mixed.row_range(0, blocks);
    const SummaryRows<A> before =
        all.mixed.row_range(blocks, blocks > 0 ? unit.states.summaries.rows : 0);
    const SummaryRows<A> after = states_after(unit, all.mixed);
    for (Index matrix = 0; matrix < unit.extents().matrices; ++matrix) {
      if (call.dmix.wanted) mix_unit(unit, matrix, loop, true, 2 * blocks);
      copy_sums(sums_of(unit, call.mixtures, matrix).row_range(0, blocks), own);
      copy_sums(sums_of(unit, call.states.after, matrix).row_range(0, after.summaries.rows), after);
      mix_unit_gradient(unit, matrix, call.dmix.wanted, loop);
      if (has_states_before()) copy_sums(before, sums_of(unit, call.states.before, matrix));
    }
    copy_sums(all.keys.row_range(0, blocks), sums_of(unit, call.summary_gradients));
  }

  // Throws unless the masks fit the blocks of which a stage has tokens.
  void require_masks() const {
    const auto& [masks, query_blocks, key_blocks] = part_.masks;
    if (is_causal_within_block<V> && problem_.queries.count > 0) masks.require_one();
    const auto require_side = [&](MaskedBlocks of, Span<const Index> used) {
      if (of.mask.data == nullptr && used.size == 0) return;
      if (of.blocks.count == 0) of.mask = {};
      require_used(of, problem_.shape.batch, used);
    };
    require_side({"masks.query", "masks.query_blocks", problem_.query_grid, problem_.queries,
                  problem_.held_queries, masks.query},
                 query_blocks);
    require_side({"masks.key", "masks.key_blocks", problem_.key_grid, problem_.keys,
                  problem_.held_keys, masks.key},
                 key_blocks);
  }

  const stages::Part<V>& part_;
  const ExecutorRef& executor_;
  const V& attention_ = part_.attention;
  const Problem& problem_ = part_.problem;
};

/// The CPU as what BasicStages run on.
struct StageBackend {
  template <class E>
  static constexpr bool runs_on = Executor<E>;
  static constexpr Borrowed compared = Borrowed::contents;
  template <class V, class T>
  static constexpr bool rounds = std::is_same_v<T, BFloat16>&& sight_of<V> != Sight::past_blocks;

  template <class V, class T>
  using Kernels = HostKernels;
  template <class V, class T>
  using Run = StageRun<V, T>;

  template <class V, class T>
  class Blocks : public StageBlocks<V, T> {
   public:
    using StageBlocks<V, T>::StageBlocks;

    /// Raises used[item], at first 0, to the blocks of the sequence up to the last of `queries`
    /// with a token that `mask` [batch, tokens of the blocks] keeps: over all blocks, what
    /// StageMasks takes.
    /// \throws ShapeError if blocks, mask or `used` [batch] do not fit.
    void count_used_queries(const BlockRange& queries,
                            const TensorView<const std::uint8_t, 2>& mask, Span<Index> used) const {
      count(this->problem_.query_grid, queries, mask, used);
    }
    /// Counts the tokens of key blocks.
    void count_used_keys(const BlockRange& keys, const TensorView<const std::uint8_t, 2>& mask,
                         Span<Index> used) const {
      count(this->problem_.key_grid, keys, mask, used);
    }

   private:
    void count(const Grid& grid, const BlockRange& blocks,
               const TensorView<const std::uint8_t, 2>& mask, Span<Index> used) const {
      this->require_blocks("blocks", blocks, grid.num_blocks());
      count_used({"mask", "used", grid, blocks, blocks, mask}, this->problem_.shape.batch, used);
    }
  };

  static void require_device(const ExecutorRef&) {}
  template <class View>
  static void require_layout(Stage, const char*, stages::Holds, const View&) {}
};

}  // namespace cpu

MHLA_NAMESPACE_END
