// SPDX-License-Identifier: MIT
// Stages (mhla/stages.hpp) on the CPU: each lays its plan out, then runs its part of a pass on some
// blocks of every unit (stage_unit.hpp). A recurrence's stages also run the products of its list
// (policy/recurrent_mixing.hpp) whose sums are states, and the adjoint of all:
//
//   H = states before, S   ->   states after
//   dH after, dS~         ->   dH before, dS, dC
#pragma once

#include <mhla/cpu/stage_unit.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Runs one stage on some blocks; its views have been checked.
template <class V, class T>
class StageRun {
  using A = Accumulator<T>;
  using L = LoweredOf<V>;
  using OptionalPlan = std::optional<Plan<L, A>>;
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

  void run(const auto& call, WorkspaceView workspace) const {
    Arena arena(workspace);
    OptionalPlan plan = lay_out(arena);
    require_room(workspace, arena.used());
    run_units(call, plan);
  }

 private:
  // None without outputs.
  OptionalPlan lay_out(Arena& arena) const {
    OptionalPlan plan;
    if (problem_.shape.empty()) return plan;
    const Stage stage = *problem_.stage;
    const bool backward = stage == Stage::read_out_gradient || stage == Stage::summarize_gradient ||
                          stage == Stage::advance_gradient;
    // Tokens' products are rounded in stages of a forward pass, whose mixing is not.
    const bool rounds = stage == Stage::summarize || stage == Stage::read_out;
    plan.emplace(arena, attention_, problem_, executor_, backward,
                 rounds ? multiplies_pairs<T>(attention_, problem_) : InPairs<T>{});
    return plan;
  }

  // Calls run(unit, loop) for every unit. In a backward pass, writes what they leave for dmix.
  void for_each_unit(OptionalPlan& plan, const OperandViews<T>& x, const auto& run,
                     const GradientView<A, 3>& dmix = skip,
                     Update update = Update::accumulate) const {
    if (!plan || (recurs && problem_.key_blocks == 0)) return;
    const Operands<L, T> operands = packed_operands(attention_, *plan, x);
    const auto run_unit = [&](Index index, const UnitMemory<A>& memory, const ExecutorRef& loop) {
      Unit<L, T> unit = stage_unit(operands, part_.masks, index, memory);
      run(unit, loop);
    };
    if (!plan->is_backward) return run_tasks(*plan, executor_, run_unit);
    const BackwardRequest<L, T> request{{}, {skip, skip, skip, dmix}, update};
    run_backward_units(request, *plan, executor_, run_unit);
    if (recurs && problem_.stage == Stage::summarize_gradient)
      add_own_gradient(*plan, dmix);
    else
      write_mixing_gradient(operands, request, executor_);
  }

  void run_units(const stages::Summarize<T>& call, OptionalPlan& plan) const {
    for_each_unit(plan, {{}, call.k, call.v, {}}, [&](Unit<L, T>& unit, const ExecutorRef& loop) {
      unit.summaries = sums_of(unit, call.summaries);
      summarize_for_float_mixing(unit, loop);
    });
  }

  void run_units(const stages::ReadOut<T>& call, OptionalPlan& plan) const {
    for_each_unit(plan, call.x, [&](Unit<L, T>& unit, const ExecutorRef& loop) {
      take_up_sums(unit, call.sums, loop);
      read_out_by_float_mixing(unit, call.y, loop);
    });
  }

  void run_units(const stages::ReadOutGradient<T>& call, OptionalPlan& plan) const {
    BackwardRequest<L, T> request{call.dy, {call.dq, skip, skip, call.dmix}, call.update};
    request.gradients.key.wanted = request.gradients.value.wanted = true;  // by later stages
    const auto read_out = [&](Unit<L, T>& unit, const ExecutorRef& loop) {
      take_up_sums(unit, call.sums, loop);
      const auto hand_over = [&](Index matrix) {
        copy_sums(mixed_gradients(unit, matrix).row_range(0, unit.queries.blocks),
                  sums_of(unit, call.left.mixtures, matrix));
      };
      const exact::Backward<L, T> by{{unit}, request};
      read_out_unit_gradient(by, loop, hand_over);
      if constexpr (!recurs) {
        if (request.mixing()) by.add_mixing_gradient(loop);
        for (Index matrix = 0; matrix < unit.extents().matrices; ++matrix) hand_over(matrix);
      }
      if constexpr (keeps_denominators<L>) copy_denominators(unit, call.left.denominators);
    };
    for_each_unit(plan, call.x, read_out, call.dmix, call.mix_update);
  }

  void run_units(const stages::MixGradient<T>& call, OptionalPlan& plan) const {
    for_each_unit(plan, {{}, {}, {}, call.mix}, [&](Unit<L, T>& unit, const ExecutorRef& loop) {
      const SummaryRows<A> grad = sums_of(unit, call.summary_gradients);
      const auto mixtures = [&](Index matrix) { return sums_of(unit, call.mixtures, matrix); };
      const RowGroups groups = shared_row_groups<L>(
          unit.extents(), unit.keys.blocks, unit.queries.blocks,
          unit.extents().matrices > 1 ? Into::add : Into::overwrite, loop.num_slots());
      loop.parallel_for(groups.count, [&](Index group, Index) {
        const Index first = groups.begin(group);
        mix_blocks_gradient(unit, first, grad.row_range(first, groups.size(group)), mixtures);
      });
    });
  }

  void run_units(const stages::SummarizeGradient<T>& call, OptionalPlan& plan) const {
    const BackwardRequest<L, T> request{call.dy, {skip, call.dk, call.dv, call.dmix}, call.update};
    const auto summarize = [&](Unit<L, T>& unit, const ExecutorRef& loop) {
      if constexpr (keeps_denominators<L>) copy_denominators(unit, call.denominators);
      const SummaryRows<A> grad = sums_of(unit, call.summary_gradients);
      loop.parallel_for(unit.keys.blocks, [&](Index b, Index slot) {
        summarize_block_gradient(exact::Backward<L, T>{{unit}, request}, b, grad,
                                 unit.plan.scratch[slot]);
      });
    };
    // Only the diagonal of dmix comes from here; what it is added to stays.
    for_each_unit(plan, call.x, summarize, call.dmix);
  }

  void run_units(const stages::Advance<T>& call, OptionalPlan& plan) const requires recurs {
    pass_on(call.sums.states, call.after);
    for_each_unit(plan, {{}, {}, {}, call.mix}, [&](Unit<L, T>& unit, const ExecutorRef& loop) {
      take_up_sums(unit, call.sums, loop);
      for (Index matrix = 0; matrix < unit.extents().matrices; ++matrix)
        copy_sums(states_after(unit, mix_states(unit, matrix, loop)),
                  sums_of(unit, call.after, matrix));
    });
  }

  // The adjoint of the units' mixing and of what advance makes.
  void run_units(const stages::AdvanceGradient<T>& call, OptionalPlan& plan) const requires recurs {
    clear_parameters(call);
    if (has_states_before(problem_)) pass_on(call.states.after, call.states.before);
    const auto advance = [&](Unit<L, T>& unit, const ExecutorRef& loop) {
      take_up_sums(unit, call.sums, loop);
      const StructuredGradients<A> all = structured_gradients(unit);
      const Index blocks = unit.queries.blocks;
      const SummaryRows<A> own = all.mixed.row_range(0, blocks);
      const SummaryRows<A> before =
          all.mixed.row_range(blocks, blocks > 0 ? unit.states.summaries.rows : 0);
      const SummaryRows<A> after = states_after(unit, all.mixed);
      for (Index matrix = 0; matrix < unit.extents().matrices; ++matrix) {
        if (call.dmix.wanted) mix_states(unit, matrix, loop);
        copy_sums(sums_of(unit, call.mixtures, matrix).row_range(0, blocks), own);
        copy_sums(sums_of(unit, call.states.after, matrix).row_range(0, after.summaries.rows),
                  after);
        mix_unit_gradient(unit, matrix, call.dmix.wanted, loop);
        if (has_states_before(problem_))
          copy_sums(before, sums_of(unit, call.states.before, matrix));
      }
      copy_sums(all.keys.row_range(0, blocks), sums_of(unit, call.summary_gradients));
    };
    for_each_unit(plan, {{}, {}, {}, call.mix}, advance, call.dmix);
  }

  // All states of the unit by a matrix; S~ is not formed. The last are those after it.
  static SummaryRows<A> mix_states(const Unit<L, T>& unit, Index matrix, const ExecutorRef& loop) {
    return mix_unit(unit, matrix, loop, true, 2 * unit.queries.blocks);
  }
  // States that no block changes, where there are no blocks.
  void pass_on(const TensorView<const A, 2>& from, const TensorView<A, 2>& to) const {
    if (problem_.shape.empty() || problem_.key_blocks > 0) return;
    for (Index i = 0; i < to.size(); ++i)
      to.element(i) = has_states_before(problem_) ? from.element(i) : A(0);
  }
  // What advance_gradient overwrites of dmix.
  void clear_parameters(const stages::AdvanceGradient<T>& call) const {
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
  // Adds the gradients of m_ii, from partial sums of coefficients, to column 0 of dmix (Causal).
  void add_own_gradient(const Plan<L, A>& plan, const GradientView<A, 3>& dmix) const {
    if (!dmix.wanted) return;
    executor_.parallel_for(dmix.view.extent[0], [&](Index h, Index) {
      const A* const sums = plan.partials.add_up(problem_.shape, h, 0, plan.matrix_size);
      for (Index i = 0; i < problem_.query_blocks && sums != nullptr; ++i)
        dmix.view(h, dmix.view.extent[1] == 1 ? 0 : i, 0) += sums[plan.own_entry(i)];
    });
  }

  // Throws unless the masks fit the blocks of which a stage has tokens.
  void require_masks() const {
    const auto& [masks, query_blocks, key_blocks] = part_.masks;
    if (is_causal_within_block<V> && problem_.queries.count > 0) masks.require_one();
    const auto require = [&](MaskedBlocks of, Span<const Index> used) {
      if (of.mask.data == nullptr && used.size == 0) return;
      if (of.blocks.count == 0) of.mask = {};
      require_used(of, problem_.shape.batch, used);
    };
    require({"masks.query", "masks.query_blocks", problem_.query_grid, problem_.queries,
             problem_.held_queries, masks.query},
            query_blocks);
    require({"masks.key", "masks.key_blocks", problem_.key_grid, problem_.keys, problem_.held_keys,
             masks.key},
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
