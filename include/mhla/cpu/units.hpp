// SPDX-License-Identifier: MIT
// A call on the CPU: its checks, its units of work, what each does, and how slots share them.
#pragma once

#include <mhla/core/forward_state.hpp>
#include <mhla/cpu/exact.hpp>
#include <mhla/cpu/host_kernels.hpp>
#include <mhla/cpu/pairs/backward.hpp>
#include <mhla/cpu/partial_sums.hpp>
#include <mhla/cpu/quadratic/choice.hpp>
#include <mhla/cpu/quadratic/unit.hpp>
#include <mhla/policy/fingerprint.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// A call on some of the value columns: its problem, operands and results.
inline Problem value_columns(Problem problem, Index columns) {
  problem.shape.value_dim = columns;
  return problem;
}
template <class T>
TensorView<T, 4> value_columns(TensorView<T, 4> tensor, Index first, Index columns) {
  tensor.data += first * tensor.stride[3];
  tensor.extent[3] = columns;
  return tensor;
}

/// The workspace of a forward call: a plan, and nothing else. A unit may have only some of a head's
/// value columns.
template <class L, class A>
struct ForwardPlan {
  bool quadratic;  // the path
  Index parts;     // of the value columns of a head
  Plan<L, A> plan;

  template <class V, class MayPair>
  MHLA_ONCE_A_CALL ForwardPlan(Arena& arena, const V& attention, const Problem& problem,
                               const ExecutorRef& executor, MayPair in_pairs)
      : quadratic(takes_quadratic_path(attention, problem, false, in_pairs)),
        parts(quadratic || decides_by_values(in_pairs)
                  ? 1
                  : value_parts<L>(problem, heads(problem), executor.num_slots())),
        plan(arena, attention, value_columns(problem, problem.shape.value_dim / parts), executor,
             checked_mul(heads(problem), parts), false, quadratic, in_pairs) {}

  Index units() const { return heads(plan.problem) * parts; }

 private:
  // Whether a unit is rounded or exact by all of its head's values.
  static bool decides_by_values(bool in_pairs) { return in_pairs && !is_causal<L>; }
  static Index heads(const Problem& problem) {
    return checked_mul(problem.sequences, problem.shape.kv_heads);
  }
};

/// The workspace of a backward call: a plan, and the partial sums of dmix.
template <class L, class A>
struct BackwardPlan {
  PartialSums partials;
  Plan<L, A> plan;
  Span<A> grad_mixing;  // [sequence groups, kv_heads, matrices, elements of a matrix]

  template <class V, class MayPair>
  MHLA_ONCE_A_CALL BackwardPlan(Arena& arena, const V& attention, const Problem& problem,
                                const ExecutorRef& executor, MayPair in_pairs)
      : partials(partial_sums(attention, problem)),
        plan(arena, attention, problem, executor, partials.count(), true,
             takes_quadratic_path(attention, problem, true, in_pairs), in_pairs),
        grad_mixing(arena.take<A>(checked_mul(partials.count(), partials.size))) {}

  template <class V>
  MHLA_ONCE_A_CALL static PartialSums partial_sums(const V& attention, const Problem& problem) {
    // Of a stage some rows, of a recurrence some chunks.
    Problem all = problem;
    all.queries.first = all.keys.first = 0;
    all.query_blocks = problem.query_grid.num_blocks();
    all.key_blocks = problem.key_grid.num_blocks();
    const auto elements = [&](const Problem& of) {
      return Plan<L, A>::matrix_size_of(structured_mixing<A>(attention, of), of);
    };
    return {problem, elements(problem), elements(all)};
  }
};

template <class V>
LoweredOf<V> lower(const V& attention) {
  return {attention.feature_map, attention.normalizer, attention.scale};
}

/// The operands of a call that is laid out, the mixing matrix packed.
template <class T, class V, class A>
Operands<LoweredOf<V>, T> packed_operands(const V& attention, Plan<LoweredOf<V>, A>& plan,
                                          const OperandViews<T>& x) {
  plan.pack_mixing(x.mix);
  if constexpr (std::is_same_v<InPairs<T>, bool>)
    if (plan.mixes_pairs()) plan.rounded.pack(plan.mixing, sight_of<LoweredOf<V>>);
  return {x, lower(attention), plan};
}

/// Elements of all summaries of a call: what a forward state keeps.
template <class A, class V>
MHLA_ONCE_A_CALL Index call_summary_size(const Problem& problem) {
  if (problem.shape.empty()) return 0;
  return checked_mul(checked_mul(problem.sequences, problem.shape.kv_heads),
                     SummaryRows<A>::size(Extents(problem), problem.key_blocks, normalizes<V>));
}

/// S and z of all key blocks of a sequence, transposed or not, in the memory of a unit or of a
/// forward state.
template <class L, class A>
SummaryRows<A> summary_rows(const Extents& e, Index blocks, A* summaries,
                            Orientation orientation = Orientation::not_transposed) {
  return SummaryRows<A>(summaries, summaries + e.key_blocks * e.summary_stride(), e, orientation, 0,
                        blocks, normalizes<L>);
}

/// Unit `head` of a call: kv head head % kv_heads of a sequence. Its S and z are in `summaries`,
/// its own memory or that of a forward state. Without any, as on the quadratic path, it has none,
/// or if its summaries are in pairs z alone.
template <class L, class T, class A>
Unit<L, T> unit_of(const Operands<L, T>& operands, Index head, const UnitMemory<A>& memory,
                   std::type_identity_t<A>* summaries = nullptr, bool in_pairs = false) {
  const Plan<L, A>& plan = operands.plan;
  const Index kv_heads = plan.problem.shape.kv_heads;
  const auto blocks_of = [&](const BlockTable& table) {
    return UnitBlocks{table.sequences[head / kv_heads], table};
  };
  const UnitBlocks keys = blocks_of(plan.tables.keys);
  Unit<L, T> unit{operands, blocks_of(plan.tables.queries), keys, head % kv_heads, memory, {}};
  unit.in_pairs = in_pairs;
  if (summaries != nullptr)
    unit.summaries = summary_rows<L>(plan.extents, keys.blocks, summaries, unit.orientation());
  else if (in_pairs)
    unit.summaries = SummaryRows<A>(nullptr, memory.summaries.data, plan.extents,
                                    unit.orientation(), 0, keys.blocks, normalizes<L>);
  if constexpr (is_structured<L>)
    unit.products = plan.structure.products(keys.blocks, false, memory.mixing_products);
  return unit;
}

/// Calls run(unit, memory, loop) for every unit: on one slot, or on all of them together.
template <class L, class A, class Run>
MHLA_ONCE_A_CALL void run_units(const Plan<L, A>& plan, Index units, const ExecutorRef& executor,
                                const Run& run) {
  const Index whole = units - plan.shared_units(units, executor.num_slots());
  executor.parallel_for(
      whole, [&](Index unit, Index slot) { run(unit, plan.units[slot], OneSlot{slot}); });
  for (Index unit = whole; unit < units; ++unit) run(unit, plan.units[0], executor);
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
                                  const ForwardPlan<L, A>& forward, Span<A> saved,
                                  const ExecutorRef& executor) {
  const Plan<L, A>& plan = forward.plan;
  const Index columns = plan.extents.value_dim;
  const Index heads = forward.units() / forward.parts;
  const auto run = [&](Index index, const UnitMemory<A>& memory,
                       const ExecutorRef& loop) MHLA_ONCE_A_CALL {
    const Index head = index / forward.parts;
    if constexpr (has_quadratic_path<L>)
      if (plan.quadratic)
        return quadratic::read_out_unit(
            quadratic::QuadraticUnit<L, T>(unit_of(operands, head, memory)), y, loop);
    const Index first_column = index % forward.parts * columns;
    A* const kept = saved.size > 0 ? saved.data + head * (saved.size / heads) : nullptr;
    KeptSummaries<A> to{{}, first_column};
    if (kept != nullptr) {
      Extents whole = plan.extents;
      whole.value_dim *= forward.parts;
      to.whole = summary_rows<L>(whole, whole.key_blocks, kept);
    }
    Operands<L, T> part = operands;
    part.v = value_columns(operands.v, first_column, columns);
    const TensorView<T, 4> results = value_columns(y, first_column, columns);
    if constexpr (std::is_same_v<T, BFloat16> && !is_structured<L>) {
      if (plan.pairs) {
        const Unit<L, T> unit = unit_of(part, head, memory, nullptr, true);
        if (forward_in_pairs(unit, to, results, loop)) return;
      }
    }
    A* const summaries = kept != nullptr && forward.parts == 1 ? kept : memory.summaries.data;
    const Unit<L, T> unit = unit_of(part, head, memory, summaries);
    summarize_for_float_mixing(unit, loop);
    if (kept != nullptr && forward.parts > 1)
      for (Index b = 0; b < unit.keys.blocks; ++b)
        to.keep(b, unit.summaries.summary(b), columns, unit.summaries.key_sum(b));
    read_out_by_float_mixing(unit, results, loop);
  };
  run_units(plan, forward.units(), executor, run);
}

/// S and z of a unit from where they were left, not transposed.
template <class L, class T, class Saved>
void take_up_summaries(const Unit<L, T>& unit, const SummaryRows<Saved>& saved,
                       const ExecutorRef& loop) {
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

/// Calls run_unit(head, memory, loop) for all units of a backward call.
template <class L, class T, class A, class Run>
void run_backward_units(const BackwardRequest<L, T>& request, const BackwardPlan<L, A>& backward,
                        const ExecutorRef& executor, const Run& run_unit) {
  const Plan<L, A>& plan = backward.plan;
  const PartialSums& partials = backward.partials;
  const Index kv_heads = plan.problem.shape.kv_heads;
  const Index sequences = plan.problem.sequences;
  // The units of one partial sum, one after another.
  const auto run = [&](Index task, UnitMemory<A> memory, const ExecutorRef& loop) {
    const Index kv_head = task % kv_heads;
    const Index group = task / kv_heads;
    if (request.mixing()) {
      A* const sums = backward.grad_mixing.data + task * partials.size;
      memory.grad_mixing = panel(sums, plan.extents.matrices, partials.matrix_size);
      std::fill_n(sums, partials.size, A(0));
    }
    const Index end = even_split(sequences, partials.sequence_groups, group + 1);
    for (Index s = even_split(sequences, partials.sequence_groups, group); s < end; ++s)
      run_unit(s * kv_heads + kv_head, memory, loop);
  };
  run_units(plan, partials.count(), executor, run);
}

/// Writes dmix, if it is wanted, from the partial sums of all units.
template <class L, class T, class A>
MHLA_ONCE_A_CALL void write_mixing_gradient(const Operands<L, T>& operands,
                                            const BackwardRequest<L, T>& request,
                                            const BackwardPlan<L, A>& backward,
                                            const ExecutorRef& executor) {
  if (!request.mixing()) return;
  const Plan<L, A>& plan = backward.plan;
  const PartialSums& partials = backward.partials;
  const TensorView<A, 3>& destination = request.gradients.mix.view;
  if constexpr (is_structured<L>) {
    write_mixing_gradient(plan.problem, partials, backward.grad_mixing, plan.structure,
                          operands.mix, destination, request.update, executor);
  } else {
    write_mixing_gradient(plan.problem, partials, backward.grad_mixing, destination, request.update,
                          executor);
  }
}

/// All units of a backward call. Summaries are taken from `saved` unless it is empty.
template <class L, class T, class A>
MHLA_ONCE_A_CALL void run_backward(const Operands<L, T>& operands,
                                   const BackwardRequest<L, T>& request,
                                   const BackwardPlan<L, A>& backward, Span<const A> saved,
                                   const ExecutorRef& executor) {
  const Plan<L, A>& plan = backward.plan;
  const Index heads = plan.problem.sequences * plan.problem.shape.kv_heads;
  const auto run = [&](Index head, const UnitMemory<A>& memory,
                       const ExecutorRef& loop) MHLA_ONCE_A_CALL {
    if constexpr (has_quadratic_path<L>)
      if (plan.quadratic)
        return quadratic::BackwardUnit<L, T>(unit_of(operands, head, memory), request).run(loop);
    const A* kept = saved.size == 0 ? nullptr : saved.data + head * (saved.size / heads);
    BackwardRequest<L, T> left = request;
    if constexpr (std::is_same_v<T, BFloat16> && rounds_backward<L>) {
      if (plan.pairs) {
        const Unit<L, T> unit =
            unit_of(operands, head, memory, is_structured<L> ? memory.summaries.data : nullptr,
                    !is_structured<L>);
        left = backward_in_pairs(unit, request, kept, loop);
        if (!left.query() && !left.mixed_summaries()) return;
        kept = nullptr;  // rounded
      }
    }
    const Unit<L, T> unit = unit_of(operands, head, memory, memory.summaries.data);
    if (kept == nullptr) {
      summarize_unit(unit, loop);
    } else {
      take_up_summaries(unit, summary_rows<L>(plan.extents, unit.keys.blocks, kept), loop);
    }
    backward_unit(exact::Backward<L, T>{{unit}, left}, loop);
  };
  run_backward_units(request, backward, executor, run);
}

/// A forward call of a checked problem with tensors of T, laid out; without an output it takes no
/// memory. Refers to the attention.
template <class V, class T>
class ForwardCall {
  using A = Accumulator<T>;
  using L = LoweredOf<V>;

 public:
  MHLA_ONCE_A_CALL ForwardCall(Arena& arena, const V& attention, const Problem& problem,
                               const ExecutorRef& executor)
      : attention_(attention), problem_(problem) {
    if (!problem.shape.empty())
      plan_.emplace(arena, attention, problem, executor, multiplies_pairs<T>(attention, problem));
  }

  /// With the number of slots that it was laid out for; views must be checked.
  MHLA_ONCE_A_CALL void run(const ExecutorRef& executor, const OperandViews<T>& x,
                            const TensorView<T, 4>& y, ForwardState<A>* save) {
    Span<A> saved;
    if (save != nullptr)
      saved =
          save->prepare(problem_.shape, fingerprint_of<T>(attention_, problem_, Borrowed::contents),
                        plan_ && plan_->plan.quadratic ? 0 : call_summary_size<A, V>(problem_));
    if (plan_) {
      run_forward(packed_operands(attention_, plan_->plan, x), y, *plan_, saved, executor);
      if constexpr (requires { attention_.masks; })
        HostKernels::clear_masked(executor, attention_.masks.query, y);
    }
    if (save != nullptr) save->mark_filled();
  }

 private:
  const V& attention_;
  Problem problem_;
  std::optional<ForwardPlan<L, A>> plan_;
};

/// A backward call likewise.
template <class V, class T>
class BackwardCall {
  using A = Accumulator<T>;
  using L = LoweredOf<V>;

 public:
  MHLA_ONCE_A_CALL BackwardCall(Arena& arena, const V& attention, const Problem& problem,
                                const ExecutorRef& executor)
      : attention_(attention), problem_(problem) {
    if (!problem.shape.empty())
      plan_.emplace(arena, attention, problem, executor,
                    multiplies_pairs_backward<T>(attention, problem));
  }

  /// The summaries that a forward call has left in `saved`, if this one can use them.
  Span<const A> summaries(const ForwardState<A>* saved) const {
    if (saved == nullptr) return {};
    const Span<const A> kept = saved->summaries(
        problem_.shape, fingerprint_of<T>(attention_, problem_, Borrowed::contents));
    const bool rounded = multiplies_pairs<T>(attention_, problem_);
    if (rounded && (!multiplies_pairs_backward<T>(attention_, problem_) || normalizes<L>))
      return {};
    return kept;
  }

  MHLA_ONCE_A_CALL void run(const ExecutorRef& executor, const OperandViews<T>& x,
                            const BackwardRequest<L, T>& request, Span<const A> kept) {
    if (plan_) {
      const Operands<L, T> operands = packed_operands(attention_, plan_->plan, x);
      run_backward(operands, request, *plan_, kept, executor);
      write_mixing_gradient(operands, request, *plan_, executor);
    }
    if (request.update == Update::accumulate) return;
    if (!plan_) {
      request.gradients.for_each([&](const auto& gradient, const char*) {
        HostKernels::clear_tensor(executor, gradient);
      });
    } else if constexpr (requires { attention_.masks; }) {
      HostKernels::clear_masked(executor, attention_.masks, request.gradients);
    }
  }

 private:
  const V& attention_;
  Problem problem_;
  std::optional<BackwardPlan<L, A>> plan_;
};

/// What a call of `function` is laid out in: the caller's workspace, or without one memory of its
/// own.
struct CallMemory {
  const char* function;
  const WorkspaceView* given;
  std::vector<Workspace> own{};
  Arena arena = given == nullptr ? Arena(own) : Arena(*given);

  /// The caller's.
  WorkspaceView workspace() const { return given == nullptr ? WorkspaceView{} : *given; }
  /// Once the call is laid out. \throws WorkspaceError.
  void require_enough() const {
    if (given != nullptr) require_workspace(*given, arena.used(), function);
  }
};

/// Checks a forward call, lays it out in `memory`, and runs it.
template <class V, class T>
MHLA_ONCE_A_CALL void checked_forward_into(const V& attention, const ExecutorRef& executor,
                                           const OperandViews<T>& x, const TensorView<T, 4>& y,
                                           CallMemory&& memory,
                                           ForwardState<Accumulator<T>>* save) {
  const Problem problem = checked_problem(attention, x.shape());
  require_forward(attention, problem.shape, x, y, memory.workspace(), {}).require_addresses();
  ForwardCall<V, T> call(memory.arena, attention, problem, executor);
  memory.require_enough();
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
  require_enumerator("update", update, Update::accumulate);
  require_backward(attention, problem.shape, x, dy, gradients, memory.workspace(), {})
      .require_addresses();
  BackwardCall<V, T> call(memory.arena, attention, problem, executor);
  const auto kept = call.summaries(saved);
  memory.require_enough();
  call.run(executor, x, {dy, gradients, update}, kept);
}

}  // namespace cpu

MHLA_NAMESPACE_END
