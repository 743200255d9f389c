// SPDX-License-Identifier: MIT
// Calls on the CPU that are laid out once and kept. Needs no Eigen header.
#pragma once

#include <memory>
#include <mhla/cpu/units.hpp>
#include <mhla/policy/argument_errors.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup core_calls
/// \{

/// What a CpuPlan is for.
enum class PlannedPasses {
  forward,  ///< forward alone: takes less memory
  both      ///< forward and backward
};

/// The calls of one variant, scalar type, shape and number of slots on the CPU, with their memory:
/// block tables, angles of a rotation and scratch are laid out once, by mhla::plan. A call then
/// allocates nothing, unless a ForwardState has to grow, and is bitwise equal to forward_into and
/// backward_into. One call at a time. May be moved, after which the plan that was moved from
/// throws.
///
/// What the variant borrows (offsets of a packed batch, masks, a feature map's projection) must
/// live as long as the plan. Offsets and masks are read when the plan is made: make another one
/// when they change.
/// \code
/// mhla::CpuPlan plan = mhla::plan<float>(attention, call, executor);
/// for (int step = 0; step < 1000; ++step) {
///   y = plan(q, k, v, mix).save(state);
///   mhla::gradients(dq, dk, dv, dmix) = plan.backward(q, k, v, mix, dy).saved(state);
/// }
/// plan.forward(executor, {q_view, k_view, v_view, mix_view}, y_view, &state);  // without Eigen
/// plan.backward(executor, {q_view, k_view, v_view, mix_view}, dy_view,
///               {dq_view, dk_view, dv_view, dmix_view}, mhla::Update::overwrite, &state);
/// \endcode
template <AttentionVariant V, StorageScalar T>
class CpuPlan {
 public:
  /// See mhla::plan.
  CpuPlan(const V& attention, const Shape& shape, const ExecutorRef& executor,
          PlannedPasses passes = PlannedPasses::both)
      : shape_(shape), num_slots_(executor.num_slots()) {
    require_enumerator("passes", passes, PlannedPasses::both);
    calls_ =
        std::make_unique<Calls>(attention, checked_problem(attention, shape), executor, passes);
  }

  /// attention(q, k, v, mix) as planned: see mhla::Attention. The expression refers to the plan.
  template <class Query, class Key, class Value, class Mix>
  auto operator()(const Query& q, const Key& k, const Value& v, const Mix& mix) {
    return planned(
        [&](const V& attention) { return expression_of_forward(attention, q, k, v, mix); });
  }

  /// attention.backward(q, k, v, mix, dy) as planned.
  template <class Query, class Key, class Value, class Mix, class GradOutput>
  requires(!Executor<Query>) auto backward(const Query& q, const Key& k, const Value& v,
                                           const Mix& mix, const GradOutput& dy) {
    return planned(
        [&](const V& attention) { return expression_of_backward(attention, q, k, v, mix, dy); });
  }

  /// y = attention(q, k, v, mix), as forward_into.
  /// \throws ShapeError if views do not fit, or the call is not the planned one; y is untouched
  /// then.
  template <Executor E>
  void forward(const E& executor, const OperandViews<T>& operands, const TensorView<T, 4>& y,
               ForwardState<Accumulator<T>>* save = nullptr) {
    const ExecutorRef runner = executor;
    require_planned(runner, operands, false);
    require_forward(calls_->attention, shape_, operands, y, {}, {}).require_addresses();
    calls_->forward.run(runner, operands, y, save);
  }

  /// The gradients of sum(dy o attention(q, k, v, mix)), as backward_into.
  /// \throws ShapeError if views do not fit, the call is not the planned one, or the plan is for
  /// forward passes; StateError if `saved` is of another call; the gradients are untouched then.
  template <Executor E>
  void backward(const E& executor, const OperandViews<T>& operands,
                const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                Update update = Update::overwrite,
                const ForwardState<Accumulator<T>>* saved = nullptr) {
    const ExecutorRef runner = executor;
    require_planned(runner, operands, true);
    require_enumerator("update", update, Update::accumulate);
    require_backward(calls_->attention, shape_, operands, dy, gradients, {}, {})
        .require_addresses();
    calls_->backward->run(runner, operands, {dy, gradients, update}, saved);
  }

  /// Bytes that the plan has allocated.
  Index memory_size() const {
    Index bytes = 0;
    if (calls_ != nullptr)
      for (const Workspace& chunk : calls_->memory) bytes += chunk.size();
    return bytes;
  }

  /// \cond INTERNAL
  void require_planned(const ExecutorRef& executor, const OperandViews<T>& operands,
                       bool backward) const {
    if (calls_ == nullptr) throw ShapeError("mhla: CpuPlan: the plan was moved from");
    if (!(operands.shape() == shape_))
      throw ShapeError(
          "mhla: CpuPlan: q, k, v and mix do not have the planned shape; make a plan "
          "for theirs");
    if (executor.num_slots() != num_slots_)
      throw ShapeError({"mhla: CpuPlan: the executor has ", executor.num_slots(),
                        " slots but the plan is for ", num_slots_});
    if (backward && !calls_->backward)
      throw ShapeError("mhla: CpuPlan::backward: the plan is for PlannedPasses::forward");
  }
  /// \endcond

 private:
  // The expression that make(attention) makes, if it compiles.
  auto planned(const auto& make) {
    if (calls_ == nullptr) throw ShapeError("mhla: CpuPlan: the plan was moved from");
    if constexpr (!std::is_void_v<decltype(make(calls_->attention))>) {
      auto expression = make(calls_->attention);
      constexpr bool fits = std::is_same_v<decltype(expression.plan), CpuPlan*>;
      static_assert(fits, "mhla: a CpuPlan takes tensors of the scalar type that it was made for");
      if constexpr (fits) expression.plan = this;
      return expression;
    }
  }

  // Keeps its address when the plan is moved: what is laid out refers to the attention.
  struct Calls {
    std::vector<Workspace> memory;
    Arena arena{memory};
    V attention;
    cpu::Call<V, T> forward;
    std::optional<cpu::Call<V, T>> backward;

    Calls(const V& variant, const Problem& problem, const ExecutorRef& executor,
          PlannedPasses passes)
        : attention(variant), forward(arena, attention, problem, executor, std::false_type()) {
      if (passes == PlannedPasses::both)
        backward.emplace(arena, attention, problem, executor, std::true_type());
    }
  };

  Shape shape_;
  Index num_slots_;
  std::unique_ptr<Calls> calls_;
};

/// Lays out the calls of a shape with tensors of T, for executors with as many slots as this one.
/// Allocates all that they take.
/// \throws ShapeError if attention and shape do not fit.
template <StorageScalar T, AttentionVariant V, Executor E>
CpuPlan<V, T> plan(const V& attention, const Shape& shape, const E& executor,
                   PlannedPasses passes = PlannedPasses::both) {
  return CpuPlan<V, T>(attention, shape, executor, passes);
}

/// \}

MHLA_NAMESPACE_END
