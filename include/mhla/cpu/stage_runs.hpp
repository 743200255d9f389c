// SPDX-License-Identifier: MIT
// Stages (mhla/stages.hpp) on the CPU: each lays its plan out, then runs its part of a pass on
// every unit.
#pragma once

#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/stage.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/token_masks.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/block_table.hpp>
#include <mhla/cpu/stage_states.hpp>
#include <mhla/cpu/stage_units.hpp>
#include <mhla/cpu/units.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/fingerprint.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/traits.hpp>
#include <mhla/stages/blocks.hpp>
#include <mhla/stages/calls.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

namespace cpu {

inline void require_stage_workspace(WorkspaceView workspace, Index bytes) {
  require_workspace(workspace, bytes, "mhla::Stages",
                    "Stages::workspace_size says how many a stage takes");
}

/// A checked call of a stage.
template <class V, class T>
class StageRun {
  using A = Accumulator<T>;
  using L = LoweredOf<V>;
  using ForwardPlan = Plan<L, A>;
  using BackwardPlan = cpu::BackwardPlan<L, A>;
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
      for_each_unit(plan, [&](Index at, const UnitMemory<A>& memory, const ExecutorRef& loop) {
        summarize_for_float_mixing(operands, unit_at(plan, at, memory, call.summaries), loop);
      });
    });
  }

  void run(const stages::ReadOut<T>& call, WorkspaceView workspace) const {
    in<ForwardPlan>(workspace, [&](ForwardPlan& plan) {
      if (recurs && call.blocks.count == 0) return;
      const Operands<L, T> operands = packed(plan, call.x);
      for_each_unit(plan, [&](Index at, const UnitMemory<A>& memory, const ExecutorRef& loop) {
        const Unit<A> unit = unit_of(plan, at, memory, call.sums);
        read_out_by_float_mixing(operands, unit, call.y, loop);
      });
      if constexpr (masked) clear_masked(attention_.masks.query, call.y);
    });
  }

  void run(const stages::ReadOutGradient<T>& call, WorkspaceView workspace) const {
    BackwardRequest<L, T> request{call.dy, {call.dq, skip, skip, call.dmix}, call.update.query};
    request.gradients.key.wanted = request.gradients.value.wanted = true;  // by later stages
    in<BackwardPlan>(workspace, [&](BackwardPlan& backward) {
      if (recurs && call.blocks.count == 0) return;
      ForwardPlan& plan = backward.plan;
      const Operands<L, T> operands = packed(plan, call.x);
      for_each_unit(
          request, backward, [&](Index at, const UnitMemory<A>& memory, const ExecutorRef& loop) {
            const Unit<A> unit = transposed_unit_of(plan, at, memory, call.sums, loop);
            const auto mixtures = rows_for(plan, call.left.mixtures, at, Orientation::transposed);
            const auto hand_over = [&](Index matrix) {
              copy_sums(mixed_gradients(plan, unit, matrix).row_range(0, unit.queries.blocks),
                        mixtures(matrix));
            };
            read_out_unit_gradient(exact::Backward<L, T>{{operands, unit}, request}, loop,
                                   hand_over);
            if constexpr (!recurs) {
              if (request.mixing()) mix_unit_matrix_gradient(operands, unit, loop);
              for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix) hand_over(matrix);
            }
            if constexpr (is_causal_within_block<V> && normalizes<V>)
              leave_denominators(plan, unit, at, call.left.denominators);
          });
      request.update = call.update.mix;
      write_mixing_gradient(operands, request, backward, executor_);
      if constexpr (masked)
        if (call.update.query == Update::overwrite)
          clear_masked(attention_.masks.query, call.dq.view);
    });
    if (!problem_.shape.empty()) return;
    if (call.update.query == Update::overwrite) set_zero(call.dq.view);
    if (call.update.mix == Update::overwrite) set_zero(call.dmix.view);
  }

  void run(const stages::MixGradient<T>& call, WorkspaceView workspace) const {
    in<ForwardPlan>(workspace, [&](ForwardPlan& plan) {
      packed(plan, {{}, {}, {}, call.mix});
      for_each_unit(plan, [&](Index at, const UnitMemory<A>& memory, const ExecutorRef& loop) {
        const Unit<A> unit =
            stage_unit(plan, at, masks_, memory, SummaryRows<A>{}, Orientation::transposed);
        mix_stage_gradient<L>(plan, unit,
                              sums_at(plan, call.summary_gradients, at, Orientation::transposed),
                              rows_for(plan, call.mixtures, at, Orientation::transposed), loop);
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
      for_each_unit(
          to_mix, backward, [&](Index at, const UnitMemory<A>& memory, const ExecutorRef& loop) {
            const Unit<A> unit =
                stage_unit(plan, at, masks_, memory, SummaryRows<A>{}, Orientation::transposed);
            if constexpr (is_causal_within_block<V> && normalizes<V>)
              take_up_denominators(plan, unit, at, call.denominators);
            summarize_stage_gradient(
                operands, request, unit,
                sums_at(plan, read_only(call.summary_gradients), at, Orientation::transposed),
                loop);
          });
      if constexpr (!recurs) {
        write_mixing_gradient(operands, to_mix, backward, executor_);
      } else if (request.mixing()) {
        write_own_gradient(backward, call.dmix.view, executor_);
      }
      if constexpr (masked)
        if (call.update == Update::overwrite) clear_masked(attention_.masks, request.gradients);
    });
    if (!problem_.shape.empty() || call.update == Update::accumulate) return;
    set_zero(call.dk.view);
    set_zero(call.dv.view);
  }

  void run(const stages::Advance<T>& call, WorkspaceView workspace) const requires recurs {
    in<ForwardPlan>(workspace, [&](ForwardPlan& plan) {
      if (call.blocks.count == 0) return pass_on(call.sums.states, call.after);
      packed(plan, {{}, {}, {}, call.mix});
      for_each_unit(plan, [&](Index at, const UnitMemory<A>& memory, const ExecutorRef& loop) {
        advance_unit(plan, unit_of(plan, at, memory, call.sums),
                     rows_for(plan, call.after, at, Orientation::not_transposed), loop);
      });
    });
  }

  void run(const stages::AdvanceGradient<T>& call, WorkspaceView workspace) const requires recurs {
    const bool overwrites = call.update == Update::overwrite;
    in<BackwardPlan>(workspace, [&](BackwardPlan& backward) {
      if (call.blocks.count == 0) {
        if (is_begun()) pass_on(call.states.after, call.states.before);
        return;
      }
      ForwardPlan& plan = backward.plan;
      const Operands<L, T> operands = packed(plan, {{}, {}, {}, call.mix});
      const BackwardRequest<L, T> request{{}, {skip, skip, skip, call.dmix}, Update::accumulate};
      for_each_unit(request, backward,
                    [&](Index at, const UnitMemory<A>& memory, const ExecutorRef& loop) {
                      const auto rows = [&](const TensorView<A, 2>& of) {
                        return rows_for(plan, of, at, Orientation::transposed);
                      };
                      advance_unit_gradient(
                          plan, transposed_unit_of(plan, at, memory, call.sums, loop),
                          rows(read_only(call.mixtures)), rows(read_only(call.states.after)),
                          rows(is_begun() ? call.states.before : TensorView<A, 2>{}),
                          sums_at(plan, call.summary_gradients, at, Orientation::transposed),
                          request.mixing(), loop);
                    });
      if (overwrites) clear_parameters(call);
      write_mixing_gradient(operands, request, backward, executor_);
    });
    if (overwrites && (call.blocks.count == 0 || problem_.shape.empty())) clear_parameters(call);
  }

 private:
  static constexpr std::false_type exact{};
  // Whether tokens' products are rounded: in stages of a forward pass, whose mixing is not.
  auto in_pairs() const {
    return and_not(multiplies_pairs<T>(attention_, problem_),
                   problem_.stage != Stage::summarize && problem_.stage != Stage::read_out);
  }

  Index units() const { return checked_mul(problem_.shape.batch, problem_.shape.kv_heads); }
  // Whether it has states before its blocks, of which there may be none.
  bool is_begun() const {
    const Index first = problem_.queries.first;
    return first > 0 && first < problem_.query_grid.num_blocks();
  }

  template <class PlanType>
  PlanType lay_out(Arena& arena) const {
    if constexpr (std::is_same_v<PlanType, BackwardPlan>)
      return PlanType(arena, attention_, problem_, executor_, exact);
    else
      return PlanType(arena, attention_, problem_, executor_, units(), false, false, in_pairs());
  }
  // Calls body(plan) if there is anything to do.
  template <class PlanType, class Body>
  void in(WorkspaceView workspace, const Body& body) const {
    if (problem_.shape.empty()) return;
    Arena arena(workspace);
    PlanType plan = lay_out<PlanType>(arena);
    require_stage_workspace(workspace, arena.used());
    body(plan);
  }
  Operands<L, T> packed(ForwardPlan& plan, const OperandViews<T>& x) const {
    plan.pack_mixing(x.mix);
    return {x, lower(attention_), plan};
  }
  template <class Run>
  void for_each_unit(const ForwardPlan& plan, const Run& run_unit) const {
    run_units(plan, units(), executor_, run_unit);
  }
  template <class Run>
  void for_each_unit(const BackwardRequest<L, T>& request, const BackwardPlan& backward,
                     const Run& run_unit) const {
    run_backward_units(request, backward, executor_, run_unit);
  }

  // Sums `at` in rows that have those of many units.
  template <class Sum>
  static SummaryRows<Sum> sums_at(const ForwardPlan& plan, const TensorView<Sum, 2>& rows, Index at,
                                  Orientation orientation) {
    const Extents& e = plan.extents;
    const Index size = e.summary_size() + (normalizes<L> ? e.feature_dim : 0);
    return sums_in_rows<L>(e, rows, at * size, orientation);
  }
  // The rows of each of a unit's matrices.
  template <class Sum>
  static auto rows_for(const ForwardPlan& plan, const TensorView<Sum, 2>& rows, Index at,
                       Orientation orientation) {
    return [&plan, rows, orientation, first = at * plan.extents.matrices](Index matrix) {
      return sums_at(plan, rows, first + matrix, orientation);
    };
  }
  Unit<A> unit_at(const ForwardPlan& plan, Index at, const UnitMemory<A>& memory,
                  const TensorView<A, 2>& summaries) const {
    return stage_unit(plan, at, masks_, memory,
                      sums_at(plan, summaries, at, Orientation::not_transposed),
                      Orientation::not_transposed);
  }
  // The unit by RecurrentMixing, with states.
  Unit<A> unit_of(const ForwardPlan& plan, Index at, const UnitMemory<A>& memory,
                  const Sums<A>& sums) const {
    return with_states(plan, at, sums, unit_at(plan, at, memory, read_only(sums.summaries)));
  }
  // The unit with summaries of its own, transposed.
  Unit<A> transposed_unit_of(const ForwardPlan& plan, Index at, const UnitMemory<A>& memory,
                             const Sums<A>& sums, const ExecutorRef& loop) const {
    const Unit<A> unit = stage_unit(plan, at, masks_, memory,
                                    summary_rows<L>(plan.extents, plan.problem.key_blocks,
                                                    memory.summaries.data, Orientation::transposed),
                                    Orientation::transposed);
    const auto& summaries = sums.summaries;
    take_up_summaries(unit, sums_at(plan, summaries, at, Orientation::not_transposed), loop);
    for (Index b = summaries.extent[0]; b < unit.keys.blocks; ++b)  // that are not seen
      set_zero(unit.summaries.summary(b), unit.summaries.key_sum(b));
    return with_states(plan, at, sums, unit);
  }
  Unit<A> with_states(const ForwardPlan& plan, Index at, const Sums<A>& sums,
                      const Unit<A>& unit) const {
    if constexpr (!recurs) return unit;
    SummaryRows<A> before;
    if (is_begun())
      before = rows_for(plan, read_only(sums.states), at, Orientation::not_transposed)(0);
    return cpu::with_states(
        plan, unit, before,
        problem_.stage == Stage::advance || problem_.stage == Stage::advance_gradient);
  }

  // States that no block changes.
  void pass_on(const TensorView<const A, 2>& from, const TensorView<A, 2>& to) const {
    for (Index i = 0; i < to.size(); ++i) to.element(i) = is_begun() ? from.element(i) : A(0);
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

  template <class V, class T, class E>
  static void require_device(const E&, const Footprint& memory) {
    memory.require_addresses();
  }
  template <class View>
  static void require_layout(Stage, const char*, stages::Holds, const View&) {}
  template <class V, class T, class A>
  static void set_mix_zero(const ExecutorRef&, const TensorView<A, 3>& dmix) {
    set_zero(dmix);
  }
  static void require_room(WorkspaceView workspace, Index bytes) {
    require_stage_workspace(workspace, bytes);
  }
  template <class T, class V>
  static Index workspace_size(const stages::Part<V>& part, const ExecutorRef& executor) {
    return StageRun<V, T>(part, executor).workspace_size();
  }
  template <class T, class V, class Call>
  static void run(const stages::Part<V>& part, const ExecutorRef& executor, const Call& call,
                  WorkspaceView workspace) {
    StageRun<V, T>(part, executor).run(call, workspace);
  }
};

}  // namespace cpu

MHLA_NAMESPACE_END
