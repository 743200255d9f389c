// SPDX-License-Identifier: MIT
// A call on the CPU: its checks, its units of work, what each does, and how slots share them.
#pragma once

#include <mhla/core/forward_state.hpp>
#include <mhla/cpu/host_kernels.hpp>
#include <mhla/cpu/pairs/backward.hpp>
#include <mhla/cpu/quadratic/unit.hpp>
#include <mhla/policy/fingerprint.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// The operands of a call that is laid out, the mixing matrix packed.
template <class T, class V, class A>
Operands<LoweredOf<V>, T> packed_operands(const V& attention, Plan<LoweredOf<V>, A>& plan,
                                          const OperandViews<T>& x) {
  plan.pack_mixing(x.mix);
  if constexpr (std::is_same_v<InPairs<T>, bool>)
    if (plan.mixes_pairs()) plan.rounded.template pack<sight_of<LoweredOf<V>>>(plan.mixing);
  return {x, {attention.feature_map, attention.normalizer, attention.scale}, plan};
}

/// Elements of all summaries of a call: what a forward state keeps.
template <class A, class V>
MHLA_ONCE_A_CALL Index call_summary_size(const Problem& problem) {
  if (problem.shape.empty()) return 0;
  return checked_mul(num_units(problem),
                     SummaryRows<A>::size(Extents(problem), problem.key_blocks, normalizes<V>));
}

/// S and z of a sequence's key blocks, in the memory of a unit or of a forward state.
template <class L, class A>
SummaryRows<A> summary_rows(const Extents& e, Index blocks, A* summaries,
                            Orientation orientation = Orientation::not_transposed) {
  return SummaryRows<A>(summaries, summaries + e.key_blocks * e.summary_stride(), e, orientation, 0,
                        blocks, normalizes<L>);
}

/// Unit `head` of a call: kv head head % kv_heads of a sequence. Its S and z are in `summaries`,
/// its own memory or that of a forward state. Without any, as on the quadratic path or in a stage,
/// it has none, or if its summaries are in pairs z alone.
template <class L, class T, class A>
Unit<L, T> unit_of(const Operands<L, T>& operands, Index head, const UnitMemory<A>& memory,
                   std::type_identity_t<A>* summaries = nullptr) {
  const Plan<L, A>& plan = operands.plan;
  const Index kv_heads = plan.problem.shape.kv_heads;
  const auto& [query_table, key_table] = plan.tables;
  const UnitBlocks queries{query_table.sequences[head / kv_heads], query_table};
  const UnitBlocks keys{key_table.sequences[head / kv_heads], key_table};
  Unit<L, T> unit{operands, queries, keys, head % kv_heads, memory, {}};
  unit.in_pairs = plan.mixes_pairs() && summaries == nullptr;
  if (summaries != nullptr)
    unit.summaries = summary_rows<L>(plan.extents, keys.blocks, summaries, unit.orientation());
  else if (unit.in_pairs)
    unit.summaries = SummaryRows<A>(nullptr, memory.summaries.data, plan.extents,
                                    unit.orientation(), 0, keys.blocks, normalizes<L>);
  if constexpr (is_structured<L>)
    if (!plan.problem.stage)
      unit.products = plan.structure.products(keys.blocks, false, memory.mixing_products);
  return unit;
}

/// Calls run(index, memory, loop) for every unit, in a forward pass for every part of one: on one
/// slot, or on all of them together. In a backward pass the units of one partial sum follow one
/// another; if dmix is wanted, memory.grad_mixing is that sum, at first 0.
MHLA_ONCE_A_CALL void run_units(const auto& plan, const ExecutorRef& executor, bool dmix_wanted,
                                const auto& run) {
  const auto run_task = [&](Index task, auto& memory, const ExecutorRef& loop) MHLA_ONCE_A_CALL {
    const Index kv_heads = plan.problem.shape.kv_heads;
    Index index = task;
    Index end = task + 1;
    if (plan.is_backward) {
      const auto& partials = plan.partials;
      memory.grad_mixing = panel(partials.sums.data + task * partials.size,
                                 dmix_wanted ? plan.extents.matrices : 0, partials.matrix_size);
      set_zero(memory.grad_mixing);
      const auto first_of = [&](Index group) {
        return even_split(plan.problem.sequences, partials.sequence_groups, group) * kv_heads;
      };
      index = first_of(task / kv_heads) + task % kv_heads;
      end = first_of(task / kv_heads + 1);
    }
    for (; index < end; index += kv_heads) run(index, memory, loop);
  };
  const Index tasks = plan.num_tasks();
  const Index whole = tasks - plan.shared_units(tasks, executor.num_slots());
  executor.parallel_for(
      whole, [&](Index task, Index slot) { run_task(task, plan.units[slot], OneSlot{slot}); });
  for (Index task = whole; task < tasks; ++task) run_task(task, plan.units[0], executor);
}

/// S and z of a unit, and y from them, by mixing in float, even if tokens' products are in pairs.
template <class L, class T>
void summarize_for_float_mixing(const Unit<L, T>& unit, const ExecutorRef& loop) {
  if constexpr (std::is_same_v<T, BFloat16>)
    if (unit.plan.mixes_in_float)
      return pairs::summarize_unit(unit, nullptr, {unit.summaries, 0, true}, loop);
  summarize_unit(unit, loop);
}
template <class L, class T>
void read_out_by_float_mixing(const Unit<L, T>& unit, const TensorView<T, 4>& y,
                              const ExecutorRef& loop) {
  if constexpr (std::is_same_v<T, BFloat16>)
    if (unit.plan.mixes_in_float) return read_out_unit(pairs::Forward<L>{unit}, y, loop);
  read_out_unit(exact::Forward<L, T>{unit}, y, loop);
}

/// One unit of a forward call with Precision::fast. Whether it was run: not if rounding would show.
template <class L>
bool forward_in_pairs(const Unit<L, BFloat16>& unit, const KeptSummaries<float>& kept,
                      const TensorView<BFloat16, 4>& y, const ExecutorRef& loop) {
  const Span<float> mean = unit.memory.centers.value;
  std::fill_n(mean.data, mean.size, 0.0f);
  pairs::summarize_unit(unit, nullptr, kept, loop);
  // Under a causality the choice would be of later tokens as well.
  if constexpr (!is_causal<L>)
    if (pairs::rounding_shows(unit)) return false;
  read_out_unit(pairs::Forward<L>{unit}, y, loop);
  return true;
}

/// All units of a forward call. Summaries are left in `saved` unless it is empty.
template <class L, class T, class A>
MHLA_ONCE_A_CALL void run_forward(const Operands<L, T>& operands, const TensorView<T, 4>& y,
                                  Span<A> saved, const ExecutorRef& executor) {
  const Plan<L, A>& plan = operands.plan;
  const Index columns = plan.extents.value_dim;
  const bool keeps = saved.size > 0;
  const bool in_place = keeps && plan.parts == 1;
  const auto run = [&](Index index, const auto& memory, const ExecutorRef& loop) MHLA_ONCE_A_CALL {
    const Index head = index / plan.parts;
    if constexpr (has_quadratic_path<L>)
      if (plan.quadratic)
        return quadratic::read_out_unit(
            quadratic::QuadraticUnit<L, T>(unit_of(operands, head, memory)), y, loop);
    KeptSummaries<A> kept{{}, index % plan.parts * columns};
    if (keeps) {
      Extents whole = plan.extents;
      whole.value_dim *= plan.parts;
      kept.whole = summary_rows<L>(whole, whole.key_blocks,
                                   saved.data + head * (saved.size / num_units(plan.problem)));
    }
    Operands<L, T> part = operands;
    part.v = unchecked_slice(operands.v, 3, kept.first_column, columns);
    const TensorView<T, 4> results = unchecked_slice(y, 3, kept.first_column, columns);
    if constexpr (std::is_same_v<T, BFloat16> && !is_structured<L>)
      if (plan.pairs && forward_in_pairs(unit_of(part, head, memory), kept, results, loop)) return;
    const Unit<L, T> unit =
        unit_of(part, head, memory, in_place ? kept.whole.summaries.data : memory.summaries.data);
    summarize_for_float_mixing(unit, loop);
    if (keeps && !in_place)
      for (Index b = 0; b < unit.keys.blocks; ++b)
        kept.keep(b, unit.summaries.summary(b), columns, unit.summaries.key_sum(b));
    read_out_by_float_mixing(unit, results, loop);
  };
  run_units(plan, executor, false, run);
}

/// S and z of a unit from where they were left, not transposed.
void take_up_summaries(const auto& unit, const auto& saved, const ExecutorRef& loop) {
  loop.parallel_for(saved.summaries.rows, [&](Index b, Index) {
    transpose(unit.summaries.summary(b), saved.summary(b));
    const auto key_sum = unit.summaries.key_sum(b);
    copy_row(key_sum.data, saved.key_sum(b).data, key_sum.size);
  });
}

/// One sequence and kv head of a backward call with Precision::fast. Returns which gradients are
/// left to the exact pass, since rounding would show.
template <class L>
BackwardRequest<L, BFloat16> backward_in_pairs(const Unit<L, BFloat16>& unit,
                                               const BackwardRequest<L, BFloat16>& request,
                                               const float* saved, const ExecutorRef& loop) {
  const pairs::Rounding rounding = pairs::center_unit(unit, loop);
  const Centers* const centers =
      rounding == pairs::Rounding::centered ? &unit.memory.centers : nullptr;
  BackwardRequest<L, BFloat16> here = request;
  BackwardRequest<L, BFloat16> left = request;
  (rounding == pairs::Rounding::nothing ? here : left).gradients = {skip, skip, skip, skip};
  // Under a causality later tokens, of which the choice is, must not show in dq.
  if (is_causal<L>) here.gradients.query = request.gradients.query;
  if (is_causal<L>) left.gradients.query = skip;
  if (!here.query() && !here.mixed_summaries()) return left;
  if constexpr (is_structured<L>) {
    if (saved == nullptr)
      summarize_for_float_mixing(unit, loop);
    else
      take_up_summaries(unit, summary_rows<L>(unit.extents(), unit.keys.blocks, saved), loop);
  } else if (saved == nullptr) {
    pairs::summarize_unit(unit, centers, {}, loop);
  } else {
    pairs::take_up_summaries(unit, saved, loop);
  }
  backward_unit(pairs::Backward<L>{{unit}, here, centers}, loop);
  return left;
}

/// Writes dmix, if it is wanted, from the partial sums of all units.
template <class L, class A>
MHLA_ONCE_A_CALL void write_mixing_gradient(const Plan<L, A>& plan,
                                            const TensorView<const A, 3>& mix,
                                            const GradientView<A, 3>& dmix, Update update,
                                            const ExecutorRef& executor) {
  if (!dmix.wanted) return;
  if constexpr (!is_structured<L>) {
    write_mixing_gradient(plan.problem, plan.partials, dmix.view, update, executor);
  } else {
    if (update == Update::overwrite) HostKernels::clear_tensor(executor, dmix.view);
    executor.parallel_for(dmix.view.extent[0], [&](Index h, Index) {
      const TensorView<A, 2> grad = matrix_view(dmix.view, h);
      const A* const sums = plan.partials.add_up(plan.problem.shape, h, 0, plan.matrix_size);
      if (sums == nullptr) return;
      if (plan.problem.stage != Stage::summarize_gradient)
        return plan.structure.vjp(matrix_view(mix, h), {sums, plan.matrix_size}, grad);
      // Own keys (Causal) leave the gradients of m_ii alone, which are in column 0.
      for (Index i = 0; i < plan.problem.query_blocks; ++i)
        grad(grad.extent[0] == 1 ? 0 : i, 0) += sums[plan.own_entry(i)];
    });
  }
}

/// All units of a backward call. Summaries are taken from `saved` unless it is empty.
template <class L, class T, class A>
MHLA_ONCE_A_CALL void run_backward(const Operands<L, T>& operands,
                                   const BackwardRequest<L, T>& request, Span<const A> saved,
                                   const ExecutorRef& executor) {
  const Plan<L, A>& plan = operands.plan;
  const Index heads = num_units(plan.problem);
  const auto run = [&](Index head, const auto& memory, const ExecutorRef& loop) MHLA_ONCE_A_CALL {
    if constexpr (has_quadratic_path<L>)
      if (plan.quadratic)
        return quadratic::BackwardUnit<L, T>(unit_of(operands, head, memory), request).run(loop);
    const A* kept = saved.size == 0 ? nullptr : saved.data + head * (saved.size / heads);
    BackwardRequest<L, T> left = request;
    if constexpr (std::is_same_v<T, BFloat16> && rounds_backward<L>) {
      if (plan.pairs) {
        const Unit<L, T> unit =
            unit_of(operands, head, memory, is_structured<L> ? memory.summaries.data : nullptr);
        left = backward_in_pairs(unit, request, kept, loop);
        if (!left.query() && !left.mixed_summaries()) return;
        kept = nullptr;  // rounded
      }
    }
    const Unit<L, T> unit = unit_of(operands, head, memory, memory.summaries.data);
    if (kept == nullptr)
      summarize_unit(unit, loop);
    else
      take_up_summaries(unit, summary_rows<L>(plan.extents, unit.keys.blocks, kept), loop);
    backward_unit(exact::Backward<L, T>{{unit}, left}, loop);
  };
  run_units(plan, executor, request.mixing(), run);
}

/// A call of a checked problem, or of a stage, with tensors of T, laid out for passes in one
/// direction. Refers to the attention.
template <class V, class T>
struct Call {
  using A = Accumulator<T>;
  using L = LoweredOf<V>;

  const V& attention;
  Problem problem;
  std::optional<Plan<L, A>> plan;  // none without an output

  MHLA_ONCE_A_CALL Call(Arena& arena, const V& variant, const Problem& checked,
                        const ExecutorRef& executor, auto backward)
      : attention(variant), problem(checked) {
    if (!problem.shape.empty())
      plan.emplace(arena, attention, problem, executor, backward,
                   multiplies_pairs<T>(attention, problem, backward));
  }

  /// With the number of slots that it was laid out for; views must be checked.
  MHLA_ONCE_A_CALL void run(const ExecutorRef& executor, const OperandViews<T>& x,
                            const TensorView<T, 4>& y, ForwardState<A>* save) {
    Span<A> saved;
    if (save != nullptr)
      saved = save->prepare(problem.shape, fingerprint(),
                            plan && plan->quadratic ? 0 : call_summary_size<A, V>(problem));
    if (plan) {
      run_forward(packed_operands(attention, *plan, x), y, saved, executor);
      if constexpr (requires { attention.masks; })
        HostKernels::clear_masked(executor, attention.masks.query, y);
    }
    if (save != nullptr) save->mark_filled();
  }
  /// Throws StateError, before anything is written, if `saved` is of another call.
  MHLA_ONCE_A_CALL void run(const ExecutorRef& executor, const OperandViews<T>& x,
                            const BackwardRequest<L, T>& request, const ForwardState<A>* saved) {
    Span<const A> kept;
    if (saved != nullptr) kept = saved->summaries(problem.shape, fingerprint());
    // An exact pass, or one with a normalizer, cannot use those of a rounded forward pass.
    if (multiplies_pairs<T>(attention, problem, false) &&
        (normalizes<L> || !multiplies_pairs<T>(attention, problem, true)))
      kept = {};
    if (plan) {
      run_backward(packed_operands(attention, *plan, x), request, kept, executor);
      write_mixing_gradient(*plan, x.mix, request.gradients.mix, request.update, executor);
    }
    if (request.update == Update::accumulate) return;
    if (!plan) {
      request.gradients.for_each([&](const auto& gradient, const char*) {
        HostKernels::clear_tensor(executor, gradient);
      });
    } else if constexpr (requires { attention.masks; }) {
      HostKernels::clear_masked(executor, attention.masks, request.gradients);
    }
  }

  std::uint64_t fingerprint() const {
    return fingerprint_of<T>(attention, problem, Borrowed::contents);
  }
};

/// Where a call of `function` is laid out: in the caller's workspace, else in memory of its own.
struct CallMemory {
  const char* function;
  std::optional<WorkspaceView> given{};
  std::vector<Workspace> own{};
  Arena arena = given ? Arena(*given) : Arena(own);
};

/// Checks a forward call, lays it out in `memory`, and runs it.
template <class V, class T>
MHLA_ONCE_A_CALL void checked_forward_into(const V& attention, const ExecutorRef& executor,
                                           const OperandViews<T>& x, const TensorView<T, 4>& y,
                                           CallMemory&& memory,
                                           ForwardState<Accumulator<T>>* save) {
  const Problem problem = checked_problem(attention, x.shape());
  const WorkspaceView workspace = memory.given.value_or(WorkspaceView());
  require_forward(attention, problem.shape, x, y, workspace, {}).require_addresses();
  Call<V, T> call(memory.arena, attention, problem, executor, std::false_type());
  if (memory.given) require_workspace(workspace, memory.arena.used(), memory.function);
  call.run(executor, x, y, save);
}

/// Likewise a backward call.
template <class V, class T>
MHLA_ONCE_A_CALL void checked_backward_into(const V& attention, const ExecutorRef& executor,
                                            const OperandViews<T>& x,
                                            const TensorView<const T, 4>& dy,
                                            const GradientViews<T>& gradients, Update update,
                                            CallMemory&& memory,
                                            const ForwardState<Accumulator<T>>* saved) {
  const Problem problem = checked_problem(attention, x.shape());
  const WorkspaceView workspace = memory.given.value_or(WorkspaceView());
  require_enumerator("update", update, Update::accumulate);
  require_backward(attention, problem.shape, x, dy, gradients, workspace, {}).require_addresses();
  Call<V, T> call(memory.arena, attention, problem, executor, std::true_type());
  if (memory.given) require_workspace(workspace, memory.arena.used(), memory.function);
  call.run(executor, x, {dy, gradients, update}, saved);
}

}  // namespace cpu

MHLA_NAMESPACE_END
