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
  const Index states = unit.states_after ? unit.plan.structure.num_states() : 0;
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

/// Runs one stage on some blocks; its views have been checked.
template <class V, class T>
class StageRun {
  using A = Accumulator<T>;
  using L = LoweredOf<V>;
  using ForwardPlan = Plan<L, A>;
  using BackwardPlan = cpu::BackwardPlan<L, A>;
  using At = StageUnit<L, T>;
  static constexpr bool recurs = is_structured<V>;
  static constexpr bool masked = requires(const V& v) { v.masks; };

 public:
  StageRun(const stages::Part<V>& part, const ExecutorRef& executor)
      : attention_(part.attention),
        problem_(part.problem),
        masks_(part.masks),
        executor_(executor) {
    if constexpr (masked) require_masks();
  }

  static void require_room(WorkspaceView workspace, Index bytes) {
    require_workspace(workspace, bytes, "mhla::Stages",
                      "Stages::workspace_size says how many a stage takes");
  }
  Index workspace_size() const {
    Arena arena;
    const bool backward = problem_.stage == Stage::read_out_gradient ||
                          problem_.stage == Stage::summarize_gradient ||
                          problem_.stage == Stage::advance_gradient;
    if (problem_.shape.empty()) return 0;
    if (backward)
      lay_out<BackwardPlan>(arena);
    else
      lay_out<ForwardPlan>(arena);
    return arena.used();
  }

  void run(const stages::Summarize<T>& call, WorkspaceView workspace) const {
    in<ForwardPlan>(workspace, [&](ForwardPlan& plan) {
      const Operands<L, T> operands{{{}, call.k, call.v, {}}, lower(attention_), plan};
      for_each_unit(operands, [&](const At& at, const ExecutorRef& loop) {
        summarize_for_float_mixing(at.with(at.sums(call.summaries)), loop);
      });
    });
  }

  void run(const stages::ReadOut<T>& call, WorkspaceView workspace) const {
    in<ForwardPlan>(workspace, [&](ForwardPlan& plan) {
      const Operands<L, T> operands = packed_operands(plan, call.x);
      for_each_unit(operands, [&](const At& at, const ExecutorRef& loop) {
        read_out_by_float_mixing(at.with(call.sums, loop), call.y, loop);
      });
    });
  }

  void run(const stages::ReadOutGradient<T>& call, WorkspaceView workspace) const {
    BackwardRequest<L, T> request{call.dy, {call.dq, skip, skip, call.dmix}, call.update};
    request.gradients.key.wanted = request.gradients.value.wanted = true;  // by later stages
    in<BackwardPlan>(workspace, [&](BackwardPlan& backward) {
      ForwardPlan& plan = backward.plan;
      const Operands<L, T> operands = packed_operands(plan, call.x);
      for_each_unit(operands, request, backward, [&](const At& at, const ExecutorRef& loop) {
        const Unit<L, T> unit = at.with(call.sums, loop);
        const auto mixtures = at.matrix_sums(call.left.mixtures);
        const auto hand_over = [&](Index matrix) {
          copy_sums(mixed_gradients(unit, matrix).row_range(0, unit.queries.blocks),
                    mixtures(matrix));
        };
        read_out_unit_gradient(exact::Backward<L, T>{{unit}, request}, loop, hand_over);
        if constexpr (!recurs) {
          if (request.mixing()) mix_unit_matrix_gradient(unit, loop);
          for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix) hand_over(matrix);
        }
        if constexpr (is_causal_within_block<V> && normalizes<V>)
          at.copy_denominators(unit, call.left.denominators);
      });
      request.update = call.mix_update;
      write_mixing_gradient(operands, request, backward, executor_);
    });
  }

  void run(const stages::MixGradient<T>& call, WorkspaceView workspace) const {
    in<ForwardPlan>(workspace, [&](ForwardPlan& plan) {
      const Operands<L, T> operands = packed_operands(plan, {{}, {}, {}, call.mix});
      for_each_unit(operands, [&](const At& at, const ExecutorRef& loop) {
        const Unit<L, T> unit = at.with({});
        const SummaryRows<A> grad = at.sums(call.summary_gradients);
        const auto mixtures = at.matrix_sums(call.mixtures);
        const RowGroups groups = shared_row_groups<L>(
            plan.extents, unit.keys.blocks, unit.queries.blocks,
            plan.extents.matrices > 1 ? Into::add : Into::overwrite, loop.num_slots());
        loop.parallel_for(groups.count, [&](Index group, Index) {
          const Index first = groups.begin(group);
          mix_blocks_gradient(unit, first, grad.row_range(first, groups.size(group)), mixtures);
        });
      });
    });
  }

  void run(const stages::SummarizeGradient<T>& call, WorkspaceView workspace) const {
    const BackwardRequest<L, T> request{call.dy, {skip, call.dk, call.dv, call.dmix}, call.update};
    in<BackwardPlan>(workspace, [&](BackwardPlan& backward) {
      ForwardPlan& plan = backward.plan;
      const Operands<L, T> operands = packed_operands(plan, call.x);
      // Only the diagonal of dmix comes from here; what it is added to stays.
      BackwardRequest<L, T> to_mix = request;
      to_mix.update = Update::accumulate;
      for_each_unit(operands, to_mix, backward, [&](const At& at, const ExecutorRef& loop) {
        const Unit<L, T> unit = at.with({});
        if constexpr (is_causal_within_block<V> && normalizes<V>)
          at.copy_denominators(unit, call.denominators);
        const SummaryRows<A> grad = at.sums(call.summary_gradients);
        loop.parallel_for(unit.keys.blocks, [&](Index b, Index slot) {
          summarize_block_gradient(exact::Backward<L, T>{{unit}, request}, b, {grad},
                                   plan.scratch[slot]);
        });
      });
      if constexpr (!recurs) {
        write_mixing_gradient(operands, to_mix, backward, executor_);
      } else if (request.mixing()) {
        write_own_gradient(backward, call.dmix.view, executor_);
      }
    });
  }

  void run(const stages::Advance<T>& call, WorkspaceView workspace) const requires recurs {
    in<ForwardPlan>(workspace, [&](ForwardPlan& plan) {
      const Operands<L, T> operands = packed_operands(plan, {{}, {}, {}, call.mix});
      for_each_unit(operands, [&](const At& at, const ExecutorRef& loop) {
        const Unit<L, T> unit = at.with(call.sums, loop);
        const auto after = at.matrix_sums(call.after);  // 0 if no blocks there have tokens
        for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix)
          copy_sums(states_after(unit, mix_states(unit, matrix, loop)), after(matrix));
      });
    });
    pass_on(call.sums.states, call.after);
  }

  void run(const stages::AdvanceGradient<T>& call, WorkspaceView workspace) const requires recurs {
    const bool overwrites = call.mix_update == Update::overwrite;
    in<BackwardPlan>(workspace, [&](BackwardPlan& backward) {
      ForwardPlan& plan = backward.plan;
      const Operands<L, T> operands = packed_operands(plan, {{}, {}, {}, call.mix});
      const BackwardRequest<L, T> request{{}, {skip, skip, skip, call.dmix}, Update::accumulate};
      for_each_unit(operands, request, backward, [&](const At& at, const ExecutorRef& loop) {
        advance_unit_gradient(at, call, loop);
      });
      if (overwrites) clear_parameters(call);
      write_mixing_gradient(operands, request, backward, executor_);
    });
    if (has_states_before(problem_)) pass_on(call.states.after, call.states.before);
    if (overwrites && (call.blocks.count == 0 || problem_.shape.empty())) clear_parameters(call);
  }

 private:
  // Whether tokens' products are rounded: in stages of a forward pass, whose mixing is not.
  InPairs<T> in_pairs() const {
    if (problem_.stage != Stage::summarize && problem_.stage != Stage::read_out) return {};
    return multiplies_pairs<T>(attention_, problem_);
  }

  Index units() const { return checked_mul(problem_.shape.batch, problem_.shape.kv_heads); }
  template <class PlanType>
  PlanType lay_out(Arena& arena) const {
    if constexpr (std::is_same_v<PlanType, BackwardPlan>)
      return PlanType(arena, attention_, problem_, executor_, std::false_type{});
    else
      return PlanType(arena, attention_, problem_, executor_, units(), false, false, in_pairs());
  }
  // Calls body(plan) if there is anything to compute.
  template <class PlanType, class Body>
  void in(WorkspaceView workspace, const Body& body) const {
    if (problem_.shape.empty()) return;
    Arena arena(workspace);
    PlanType plan = lay_out<PlanType>(arena);
    require_room(workspace, arena.used());
    if (!recurs || problem_.key_blocks > 0) body(plan);
  }
  Operands<L, T> packed_operands(ForwardPlan& plan, const OperandViews<T>& x) const {
    return cpu::packed_operands(attention_, plan, x);
  }
  template <class Run>
  void for_each_unit(const Operands<L, T>& operands, const Run& run) const {
    run_units(operands.plan, units(), executor_, run_of(operands, run));
  }
  template <class Run>
  void for_each_unit(const Operands<L, T>& operands, const BackwardRequest<L, T>& request,
                     const BackwardPlan& backward, const Run& run) const {
    run_backward_units(request, backward, executor_, run_of(operands, run));
  }
  template <class Run>
  auto run_of(const Operands<L, T>& operands, const Run& run) const {
    return [&](Index at, const UnitMemory<A>& memory, const ExecutorRef& loop) {
      run(At{operands, masks_, at, memory}, loop);
    };
  }

  // States that no block changes, where there are no blocks.
  void pass_on(const TensorView<const A, 2>& from, const TensorView<A, 2>& to) const {
    if (problem_.shape.empty() || problem_.key_blocks > 0) return;
    for (Index i = 0; i < to.size(); ++i)
      to.element(i) = has_states_before(problem_) ? from.element(i) : A(0);
  }
  // What advance_gradient writes of dmix.
  void clear_parameters(const stages::AdvanceGradient<T>& call) const {
    if (!call.dmix.wanted) return;
    const auto& view = call.dmix.view;
    const BlockRange& blocks = call.blocks;
    const bool shared = problem_.shape.mix_query_blocks == 1;
    const Index states = attention_.mixing.states;
    for (Index h = 0; h < view.extent[0]; ++h)
      for (Index i = 0; i < view.extent[1]; ++i)
        for (Index c = 0; c < view.extent[2]; ++c)
          if (shared || (c <= states ? i < blocks.count : i > 0 || blocks.first == 0))
            view(h, i, c) = A(0);
  }

  // Throws unless the masks fit the blocks of which a stage has tokens.
  void require_masks() const {
    const TokenMasks& masks = masks_.tokens;
    if (is_causal_within_block<V> && problem_.queries.count > 0) masks.require_one();
    const auto of = [](const BlockRange& blocks, const TensorView<const std::uint8_t, 2>& mask) {
      return blocks.count > 0 ? mask : TensorView<const std::uint8_t, 2>{};
    };
    const Index batch = problem_.shape.batch;
    if (masks.query.data != nullptr || masks_.query_blocks.size > 0)
      require_used({"masks.query", "masks.query_blocks", problem_.query_grid, problem_.queries,
                    problem_.held_queries, of(problem_.queries, masks.query)},
                   batch, masks_.query_blocks);
    if (masks.key.data != nullptr || masks_.key_blocks.size > 0)
      require_used({"masks.key", "masks.key_blocks", problem_.key_grid, problem_.keys,
                    problem_.held_keys, of(problem_.keys, masks.key)},
                   batch, masks_.key_blocks);
  }

  const V& attention_;
  const Problem& problem_;
  const StageMasks& masks_;
  const ExecutorRef& executor_;
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
