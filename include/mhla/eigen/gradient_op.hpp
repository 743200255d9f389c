// SPDX-License-Identifier: MIT
// attention.backward(q, k, v, mix, dy), and the four gradients it is assigned to.
#pragma once

#include <mhla/eigen/forward_op.hpp>
#include <tuple>

MHLA_NAMESPACE_BEGIN

/// The gradients of sum(dy o attention(q, k, v, mix)), not yet computed: assign it to
/// mhla::gradients(dq, dk, dv, dmix). Refers to its tensors, as Eigen's expressions do.
/// \ingroup attention
template <AttentionVariant Attention, class Query, class Key, class Value, class Mix,
          class GradOutput>
class BackwardOp {
  using Types = eigen::OperandTypes<Mix, Query, Key, Value, GradOutput>;

 public:
  using Scalar = typename Types::Scalar;        ///< of q, k, v and their gradients
  static constexpr int layout = Types::layout;  ///< Eigen's, of operands and gradients

  /// See Attention::backward.
  BackwardOp(const Attention& variant, const Query& q, const Key& k, const Value& v, const Mix& m,
             const GradOutput& dy)
      : attention(variant), query(q), key(k), value(v), mix(m), grad_output(dy) {}

  /// Uses `memory`, of backward_workspace_size bytes, instead of allocating one: a pass from
  /// tensors to tensors then allocates nothing.
  BackwardOp with(WorkspaceView memory) const {
    BackwardOp changed = *this;
    changed.workspace = memory;
    return changed;
  }

  /// Takes the block summaries that attention(...).save(state) kept, instead of recomputing them.
  BackwardOp saved(const ForwardState<Accumulator<Scalar>>& summaries) const {
    BackwardOp changed = *this;
    changed.state = &summaries;
    return changed;
  }
  /// Takes summaries from device memory, on a CudaDevice.
  BackwardOp saved(const CudaForwardState<Accumulator<Scalar>>& summaries) const {
    BackwardOp changed = *this;
    changed.device_state = &summaries;
    return changed;
  }

  /// \cond INTERNAL
  Attention attention;
  typename eigen::TensorTraits<Query>::Nested query;
  typename eigen::TensorTraits<Key>::Nested key;
  typename eigen::TensorTraits<Value>::Nested value;
  typename eigen::TensorTraits<Mix>::Nested mix;
  typename eigen::TensorTraits<GradOutput>::Nested grad_output;
  std::optional<WorkspaceView> workspace{};
  CpuPlan<Attention, eigen::Storage<Scalar>>* plan = nullptr;
  const ForwardState<Accumulator<Scalar>>* state = nullptr;
  const CudaForwardState<Accumulator<Scalar>>* device_state = nullptr;
  /// \endcond
};

/// \cond INTERNAL
// What attention.backward(q, k, v, mix, dy) is: found by Attention::backward.
template <AttentionVariant Attention, TensorOperand... Operand>
BackwardOp<Attention, Operand...> backward_expression(const Attention& attention,
                                                      const Operand&... operand) {
  return {attention, operand...};
}

// The error for everything else; `auto` puts it before what the compiler says of the result.
template <AttentionVariant Attention, class... Operand>
auto backward_expression(const Attention&, const Operand&...) {
  static_assert(no_such_call<Operand...>,
                "mhla: attention.backward(q, k, v, mix, dy) takes tensors: Eigen::Tensor, "
                "Eigen::TensorMap, expressions of them, mhla::TensorView; of an Eigen::Matrix "
                "[tokens, heads * dim] write mhla::heads_view(x, heads), of a std::vector "
                "mhla::heads_view(x.data(), tokens, heads, dim, row_stride), of a matrix of mixing "
                "coefficients mhla::mix_view(mix)");
}
/// \endcond

namespace eigen {

template <class X>
inline constexpr bool is_backward = false;
template <class... X>
inline constexpr bool is_backward<BackwardOp<X...>> = true;

template <class X>
concept GradientTarget = std::same_as<std::remove_const_t<X>, Skip> || is_plain<X>;

/// The target of the gradient of a tensor stored as T in `Layout`, Rank 4, or of mix, Rank 3.
template <class T, int Rank, int Layout, class Target>
GradientView<T, Rank> gradient_view(Target& target) {
  if constexpr (std::same_as<std::remove_const_t<Target>, Skip>) {
    return skip;
  } else {
    using View = decltype(memory_view(target));
    using Element = typename View::Element;
    constexpr int layout = TensorTraits<std::remove_const_t<Target>>::layout;
    constexpr bool same_scalar = std::same_as<std::remove_const_t<Element>, T>;
    constexpr bool same_layout = layout == any_layout || layout == Layout;
    constexpr bool same_rank = View::rank == Rank || (Rank == 3 && View::rank == 2);
    static_assert(!std::is_const_v<Element>,
                  "mhla: gradients(dq, dk, dv, dmix) are written to, and one of them is const");
    static_assert(
        same_scalar,
        "mhla: gradients(dq, dk, dv, dmix) must have the scalar types of q, k, v and mix");
    static_assert(same_layout,
                  "mhla: gradients(dq, dk, dv, dmix) must have the layout of q, k, v and mix");
    static_assert(same_rank,
                  "mhla: dq, dk and dv must have rank 4, and dmix rank 3, [1 | heads, query "
                  "blocks, key blocks], or rank 2, [query blocks, key blocks]");
    if constexpr (!std::is_const_v<Element> && same_scalar && same_layout && same_rank) {
      return memory_view(target);
    } else {
      return skip;  // so that no other error follows
    }
  }
}

/// Where `needed`, takes the place of a gradient while an operand still occupies its memory.
template <class T, int Rank>
class StandIn {
 public:
  MHLA_ONCE_A_CALL StandIn(GradientView<T, Rank>& gradient, bool needed, Update update)
      : target_(gradient.view) {
    if (!needed) return;
    memory_ = Workspace(checked_mul(target_.size(), static_cast<Index>(sizeof(T))));
    constexpr int layout = Eigen::RowMajor;
    stand_in_ = dense_view<layout, Rank>(reinterpret_cast<T*>(memory_.data()),
                                         eigen_dimensions<layout, Index>(target_));
    if (update == Update::accumulate) copy(target_, stand_in_);
    gradient.view = stand_in_;
  }

  /// Copies the gradient to its destination, once the operand is no longer needed.
  void hand_over() const { copy(stand_in_, target_); }

 private:
  MHLA_ONCE_A_CALL static void copy(const TensorView<T, Rank>& from,
                                    const TensorView<T, Rank>& to) {
    if (from.data == nullptr) return;
    const Index columns = from.extent[Rank - 1];
    for (Index row = 0; row < from.size(); row += columns) {
      const T* const source = &from.element(row);
      T* const destination = &to.element(row);
      for (Index c = 0; c < columns; ++c)
        destination[c * to.stride[Rank - 1]] = source[c * from.stride[Rank - 1]];
    }
  }

  TensorView<T, Rank> target_;
  TensorView<T, Rank> stand_in_;
  Workspace memory_;
};

inline const Eigen::DefaultDevice calling_thread;

// What gradients(...) makes of arguments that it refuses: no other error follows.
struct NoGradients {
  template <class Device>
  NoGradients device(const Device&) const;
  template <class Backward>
  void operator=(const Backward&) const;  // NOLINT: there is nothing to go on with
  template <class Backward>
  void operator+=(const Backward&) const;
};

}  // namespace eigen

/// \cond INTERNAL
// Computes the gradients of `op` on a device. Checks operands and gradients before anything is
// allocated or written. <mhla/cuda.hpp> has the overload for a CudaDevice.
template <class Op, class Device, class T>
MHLA_ONCE_A_CALL void write_gradients(const Op& op, const Device& device,
                                      GradientViews<T> gradients, Update update) {
  const auto executor = eigen::checked_executor(device);
  eigen::Operands operands(op, device);
  eigen::Operand dy(op.grad_output, device);
  const Shape shape = operands.views().shape();
  const Problem problem = checked_problem(op.attention, shape);
  if (op.plan != nullptr) op.plan->require_planned(executor, operands.views(), true);
  require_extents(dy.view(), "dy", shape.batch, shape.heads, shape.query_tokens, shape.value_dim,
                  "dy is [batch, heads, query tokens, value_dim]");
  eigen::require_host_state(op.device_state, "attention.backward(q, k, v, mix, dy).saved(state)");
  if (op.state != nullptr)
    op.state->summaries(shape, fingerprint_of<T>(op.attention, problem, Borrowed::contents));
  checked_gradients(shape, gradients).require_results();

  operands.evaluate();
  dy.evaluate();
  const auto reads = [&](const auto& gradient) {
    return operands.share_memory_with(gradient.view) || share_memory(gradient.view, dy.view());
  };
  const eigen::StandIn dq(gradients.query, reads(gradients.query), update);
  const eigen::StandIn dk(gradients.key, reads(gradients.key), update);
  const eigen::StandIn dv(gradients.value, reads(gradients.value), update);
  const eigen::StandIn dmix(gradients.mix, reads(gradients.mix), update);
  if (op.plan != nullptr)
    op.plan->backward(executor, operands.views(), dy.view(), gradients, update, op.state);
  else
    cpu::checked_backward_into(
        op.attention, executor, operands.views(), dy.view(), gradients, update,
        {"mhla: attention.backward(q, k, v, mix, dy).with(workspace)", op.workspace}, op.state);
  dq.hand_over();
  dk.hand_over();
  dv.hand_over();
  dmix.hand_over();
}
/// \endcond

/// The left side of `gradients(dq, dk, dv, dmix) = attention.backward(...)`: see mhla::gradients.
/// \ingroup attention
template <class Device, class... Targets>
class Gradients {
 public:
  /// See mhla::gradients.
  Gradients(const Device& device, std::tuple<Targets...>&& targets)
      : device_(device), targets_((std::move)(targets)) {}
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  /// Where the pass runs: an Eigen::DefaultDevice, Eigen::ThreadPoolDevice, mhla::ForkJoinDevice or
  /// mhla::CudaDevice.
  template <class Other>
  Gradients<Other, Targets...> device(const Other& other) {
    return {other, (std::move)(targets_)};
  }

  /// Replaces what the destinations hold.
  template <class Backward>
  void operator=(const Backward& backward) {  // NOLINT: there is nothing to go on with
    write_result(backward, Update::overwrite);
  }
  /// Adds to what the destinations hold.
  template <class Backward>
  void operator+=(const Backward& backward) {
    write_result(backward, Update::accumulate);
  }

 private:
  template <class Backward>
  MHLA_ONCE_A_CALL void write_result(const Backward& backward, Update update) {
    static_assert(eigen::is_backward<Backward>,
                  "mhla: gradients(dq, dk, dv, dmix) take attention.backward(q, k, v, mix, dy)");
    if constexpr (eigen::is_backward<Backward>) {
      using T = eigen::Storage<typename Backward::Scalar>;
      constexpr int layout = Backward::layout;
      auto& [dq, dk, dv, dmix] = targets_;
      const GradientViews<T> gradients{eigen::gradient_view<T, 4, layout>(dq),
                                       eigen::gradient_view<T, 4, layout>(dk),
                                       eigen::gradient_view<T, 4, layout>(dv),
                                       eigen::gradient_view<Accumulator<T>, 3, layout>(dmix)};
      write_gradients(backward, device_, gradients, update);
    }
  }

  const Device& device_;
  std::tuple<Targets...> targets_;
};

/// Destinations of a backward pass, shaped as q, k, v and mix: each a tensor, a map, tokens_first
/// of one, a view, or mhla::skip, which is not computed.
/// \code
/// mhla::gradients(dq, dk, dv, dmix).device(pool) = attention.backward(q, k, v, mix, dy);
/// mhla::gradients(dq, mhla::skip, dv, dmix) += attention.backward(q, k, v, mix, dy);
/// \endcode
/// `=` replaces what they hold, `+=` adds to it; without `.device(...)` it runs on the calling
/// thread. Nothing is resized. A gradient that shares memory with an operand is computed in a
/// temporary.
/// \throws ShapeError, when assigned, for a wrong shape or two gradients that share memory; nothing
/// has been written then.
/// \ingroup attention
template <class... Targets>
auto gradients(Targets&&... targets) {
  constexpr bool four = sizeof...(Targets) == 4;
  constexpr bool writable = (eigen::GradientTarget<std::remove_reference_t<Targets>> && ...);
  static_assert(four,
                "mhla: gradients(dq, dk, dv, dmix) takes four gradients; mhla::skip stands for one "
                "that is not wanted");
  static_assert(writable,
                "mhla: gradients(dq, dk, dv, dmix) takes tensors, maps, tokens_first of them, "
                "views, or mhla::skip");
  if constexpr (four && writable) {
    return Gradients<Eigen::DefaultDevice, Targets...>(
        eigen::calling_thread, std::tuple<Targets...>(std::forward<Targets>(targets)...));
  } else {
    return eigen::NoGradients{};
  }
}

MHLA_NAMESPACE_END

// A backward pass assigned to one tensor: a sentence, and what Eigen asks for beside it.
namespace Eigen {

template <class Left, class... X>
class TensorAssignOp<Left, const mhla::BackwardOp<X...>> {
  static_assert(sizeof(Left) == 0,
                "mhla: attention.backward(q, k, v, mix, dy) has four results; assign it to "
                "mhla::gradients(dq, dk, dv, dmix)");

 public:
  typedef typename Left::Index Index;
  TensorAssignOp(Left&, const mhla::BackwardOp<X...>&);
};

template <class Left, class... X, class Device>
struct TensorEvaluator<const TensorAssignOp<Left, const mhla::BackwardOp<X...>>, Device>
    : TensorEvaluator<const Left, Device> {
  enum { PacketAccess = false, BlockAccess = false, PreferBlockAccess = false };
  template <class Assign>
  TensorEvaluator(const Assign&, const Device&);
  void evalScalar(Index) const;
};

}  // namespace Eigen
