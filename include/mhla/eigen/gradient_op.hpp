// SPDX-License-Identifier: MIT
// attention.backward(q, k, v, mix, dy), and the four gradients it is assigned to.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/forward_state.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/eigen/forward_op.hpp>
#include <mhla/eigen/gradient_targets.hpp>
#include <mhla/eigen/operand.hpp>
#include <mhla/eigen/storage.hpp>
#include <mhla/eigen/tensor_views.hpp>
#include <mhla/eigen/thread_pool_executor.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/fingerprint.hpp>
#include <mhla/policy/variant.hpp>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unsupported/Eigen/CXX11/Tensor>
#include <utility>

MHLA_NAMESPACE_BEGIN

/// \addtogroup attention
/// \{

/// \cond INTERNAL
// For Eigen's 16-bit scalars; <mhla/cpu/pipeline.hpp> has it for every other scalar.
template <eigen::SixteenBitScalar T, AttentionVariant V, Executor E>
Index backward_workspace_size(const V& attention, const Shape& shape, const E& executor) {
  return backward_workspace_size<eigen::Storage<T>>(attention, shape, executor);
}
/// \endcond

/// The gradients of sum(dy o attention(q, k, v, mix)), not yet computed: assign it to
/// mhla::gradients(dq, dk, dv, dmix). Refers to its tensors, as Eigen's expressions do.
template <AttentionVariant Attention, class Query, class Key, class Value, class Mix,
          class GradOutput>
class BackwardOp {
  using Types = eigen::OperandTypes<Query, Key, Value, Mix, GradOutput>;

 public:
  using Scalar = typename Types::Scalar;        ///< of q, k, v and their gradients
  static constexpr int layout = Types::layout;  ///< Eigen's, of operands and gradients

  /// See Attention::backward.
  BackwardOp(const Attention& attention, const Query& q, const Key& k, const Value& v,
             const Mix& mix, const GradOutput& dy)
      : attention_(attention), query_(q), key_(k), value_(v), mix_(mix), grad_output_(dy) {}

  /// Uses `workspace`, of backward_workspace_size bytes, instead of allocating one: a pass from
  /// tensors to tensors then allocates nothing.
  BackwardOp with(WorkspaceView workspace) const {
    BackwardOp changed = *this;
    changed.workspace_ = workspace;
    return changed;
  }

  /// Takes the block summaries that attention(...).save(state) kept, instead of recomputing them.
  BackwardOp saved(const ForwardState<Accumulator<Scalar>>& state) const {
    BackwardOp changed = *this;
    changed.state_ = &state;
    return changed;
  }
  /// Takes summaries from device memory, on a CudaDevice.
  BackwardOp saved(const CudaForwardState<Accumulator<Scalar>>& state) const {
    BackwardOp changed = *this;
    changed.device_state_ = &state;
    return changed;
  }

  /// \cond INTERNAL
  const Attention& attention() const { return attention_; }
  const Query& query() const { return query_; }
  const Key& key() const { return key_; }
  const Value& value() const { return value_; }
  const Mix& mix() const { return mix_; }
  const GradOutput& grad_output() const { return grad_output_; }
  const std::optional<WorkspaceView>& workspace() const { return workspace_; }
  const ForwardState<Accumulator<Scalar>>* state() const { return state_; }
  const CudaForwardState<Accumulator<Scalar>>* device_state() const { return device_state_; }
  /// \endcond

 private:
  Attention attention_;
  typename eigen::TensorTraits<Query>::Nested query_;
  typename eigen::TensorTraits<Key>::Nested key_;
  typename eigen::TensorTraits<Value>::Nested value_;
  typename eigen::TensorTraits<Mix>::Nested mix_;
  typename eigen::TensorTraits<GradOutput>::Nested grad_output_;
  std::optional<WorkspaceView> workspace_{};
  const ForwardState<Accumulator<Scalar>>* state_ = nullptr;
  const CudaForwardState<Accumulator<Scalar>>* device_state_ = nullptr;
};

/// \cond INTERNAL
// What attention.backward(q, k, v, mix, dy) is: found by Attention::backward.
template <AttentionVariant Attention, TensorOperand Query, TensorOperand Key, TensorOperand Value,
          TensorOperand Mix, TensorOperand GradOutput>
BackwardOp<Attention, Query, Key, Value, Mix, GradOutput> backward_expression(
    const Attention& attention, const Query& q, const Key& k, const Value& v, const Mix& mix,
    const GradOutput& dy) {
  return {attention, q, k, v, mix, dy};
}

// The error for everything else; `auto` puts it before what the compiler says of the result.
template <AttentionVariant Attention, class Query, class Key, class Value, class Mix,
          class GradOutput>
auto backward_expression(const Attention&, const Query&, const Key&, const Value&, const Mix&,
                         const GradOutput&) {
  static_assert(sizeof(Query) == 0,
                "mhla: attention.backward(q, k, v, mix, dy) takes tensors: Eigen::Tensor, "
                "Eigen::TensorMap, expressions of them, mhla::TensorView; of an Eigen::Matrix "
                "[tokens, heads * dim] write mhla::heads_view(x, heads), of a std::vector "
                "mhla::heads_view(x.data(), tokens, heads, dim, row_stride), of a matrix of mixing "
                "coefficients mhla::mix_view(mix)");
}
/// \endcond

/// \}

namespace eigen {

template <class X>
inline constexpr bool is_backward = false;
template <class... X>
inline constexpr bool is_backward<BackwardOp<X...>> = true;

/// One backward pass on a device. The constructor checks the operands, `require_targets` the
/// gradients; neither allocates.
template <class Op, class Device>
class BackwardRun;

template <class Attention, class Query, class Key, class Value, class Mix, class GradOutput,
          class Device>
class BackwardRun<BackwardOp<Attention, Query, Key, Value, Mix, GradOutput>, Device> {
  using Op = BackwardOp<Attention, Query, Key, Value, Mix, GradOutput>;
  using T = Storage<typename Op::Scalar>;

 public:
  MHLA_ONCE_A_CALL BackwardRun(const Op& op, const Device& device)
      : op_(op),
        executor_(checked_executor(device)),
        operands_(op, device),
        grad_output_(op.grad_output(), device),
        shape_(operands_.shape()) {
    const Problem problem = checked_problem(op.attention(), shape_);
    require_extents(grad_output_.view(), "dy", shape_.batch, shape_.heads, shape_.query_tokens,
                    shape_.value_dim, "dy is [batch, heads, query tokens, value_dim]");
    require_host_state(op.device_state(), "attention.backward(q, k, v, mix, dy).saved(state)");
    if (op.state() != nullptr)
      op.state()->summaries(shape_, fingerprint_of<T>(op.attention(), problem, Borrowed::contents));
  }

  MHLA_ONCE_A_CALL void require_targets(const GradientViews<T>& gradients) const {
    checked_gradients(shape_, gradients).require_results();
  }

  MHLA_ONCE_A_CALL void write_result(GradientViews<T> gradients, Update update) {
    operands_.evaluate();
    grad_output_.evaluate();
    StandIn<T, 4> dq;
    StandIn<T, 4> dk;
    StandIn<T, 4> dv;
    StandIn<Accumulator<T>, 3> dmix;
    if (reads(gradients.query.view)) dq.take_place_of(gradients.query, update);
    if (reads(gradients.key.view)) dk.take_place_of(gradients.key, update);
    if (reads(gradients.value.view)) dv.take_place_of(gradients.value, update);
    if (reads(gradients.mix.view)) dmix.take_place_of(gradients.mix, update);

    const OperandViews<T> x{operands_.query.view(), operands_.key.view(), operands_.value.view(),
                            operands_.mix.view()};
    const auto workspace = op_.workspace();
    cpu::checked_backward_into(op_.attention(), executor_, x, grad_output_.view(), gradients,
                               update,
                               {"mhla: attention.backward(q, k, v, mix, dy).with(workspace)",
                                workspace ? &*workspace : nullptr},
                               op_.state());
    dq.hand_over();
    dk.hand_over();
    dv.hand_over();
    dmix.hand_over();
  }

 private:
  template <class A, int Rank>
  bool reads(const TensorView<A, Rank>& gradient) const {
    return operands_.share_memory_with(gradient) || share_memory(gradient, grad_output_.view());
  }

  const Op& op_;
  DeviceExecutor<Device> executor_;
  Operands<Query, Key, Value, Mix, Device> operands_;
  Operand<GradOutput, Device> grad_output_;
  Shape shape_;
};

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

/// \addtogroup attention
/// \{

/// The left side of `gradients(dq, dk, dv, dmix) = attention.backward(...)`: see mhla::gradients.
template <class... Targets>
class Gradients {
 public:
  /// See mhla::gradients.
  explicit Gradients(Targets&&... targets) : targets_(std::forward<Targets>(targets)...) {}
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  /// These gradients, to be computed on an Eigen device.
  template <class Device>
  class On {
   public:
    /// See Gradients::device.
    On(Gradients& gradients, const Device& device) : gradients_(gradients), device_(device) {}

    /// Replaces what the destinations hold.
    template <class Backward>
    void operator=(const Backward& backward) {  // NOLINT: there is nothing to go on with
      gradients_.write_result(backward, device_, Update::overwrite);
    }
    /// Adds to what the destinations hold.
    template <class Backward>
    void operator+=(const Backward& backward) {
      gradients_.write_result(backward, device_, Update::accumulate);
    }

   private:
    Gradients& gradients_;
    const Device& device_;
  };

  /// Where the pass runs: an Eigen::DefaultDevice, Eigen::ThreadPoolDevice, mhla::ForkJoinDevice or
  /// mhla::CudaDevice.
  template <class Device>
  On<Device> device(const Device& device) {
    return {*this, device};
  }

  /// Replaces what the destinations hold, on the calling thread.
  template <class Backward>
  void operator=(const Backward& backward) {  // NOLINT: there is nothing to go on with
    device(Eigen::DefaultDevice()) = backward;
  }
  /// Adds to what the destinations hold, on the calling thread.
  template <class Backward>
  void operator+=(const Backward& backward) {
    device(Eigen::DefaultDevice()) += backward;
  }

 private:
  template <class Backward, class Device>
  MHLA_ONCE_A_CALL void write_result(const Backward& backward, const Device& device,
                                     Update update) {
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
      eigen::BackwardRun<Backward, Device> run(backward, device);
      run.require_targets(gradients);
      run.write_result(gradients, update);
    }
  }

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
    return Gradients<Targets...>(std::forward<Targets>(targets)...);
  } else {
    return eigen::NoGradients{};
  }
}

/// \}

MHLA_NAMESPACE_END

// A backward pass assigned to one tensor: a sentence, and what Eigen asks for beside it.
namespace Eigen {

template <class Left, class... X>
class TensorAssignOp<Left, const mhla::BackwardOp<X...>> {
  static_assert(sizeof(Left) == 0,
                "mhla: attention.backward(q, k, v, mix, dy) has four results; assign it to "
                "mhla::gradients(dq, dk, dv, dmix)");

 public:
  TensorAssignOp(Left&, const mhla::BackwardOp<X...>&);
};

template <class Left, class... X, class Device>
struct TensorEvaluator<const TensorAssignOp<Left, const mhla::BackwardOp<X...>>, Device>
    : TensorEvaluator<const Left, Device> {
  enum { PacketAccess = false, BlockAccess = false, PreferBlockAccess = false };
  template <class Assign>
  TensorEvaluator(const Assign&, const Device&);
};

namespace internal {
template <class Left, class... X, class Device>
class TensorExecutor<const TensorAssignOp<Left, const mhla::BackwardOp<X...>>, Device, false, Off> {
 public:
  template <class Assign>
  static void run(const Assign&, const Device&);
};
}  // namespace internal

}  // namespace Eigen
