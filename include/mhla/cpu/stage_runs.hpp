// SPDX-License-Identifier: MIT
// Stages (mhla/stages.hpp) on the CPU: each lays its plan out, then runs its part of a pass on
// every unit.
#pragma once

#include <mhla/cpu/host_kernels.hpp>
#include <mhla/cpu/stage_units.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

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
      const Operands<L, T> operands = packed(plan, call.x);
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
      const Operands<L, T> operands = packed(plan, call.x);
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
      const Operands<L, T> operands = packed(plan, {{}, {}, {}, call.mix});
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
      const Operands<L, T> operands = packed(plan, call.x);
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
      const Operands<L, T> operands = packed(plan, {{}, {}, {}, call.mix});
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
      const Operands<L, T> operands = packed(plan, {{}, {}, {}, call.mix});
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
  Operands<L, T> packed(ForwardPlan& plan, const OperandViews<T>& x) const {
    return cpu::packed(attention_, plan, x);
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
