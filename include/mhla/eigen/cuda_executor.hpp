// SPDX-License-Identifier: MIT
// A CudaDevice as an Eigen device: y.device(cuda) = attention(q, k, v, mix), and
// mhla::gradients(...).device(cuda) = attention.backward(...), over maps of device memory.
//
// It evaluates nothing but an attention, in place: what would need a temporary, or a kernel of
// Eigen's, does not compile.
#pragma once

#include <mhla/cuda/pipeline.hpp>
#include <mhla/eigen/gradient_op.hpp>

MHLA_NAMESPACE_BEGIN

namespace eigen {

template <class... X>
inline constexpr bool are_plain = (is_plain<X> && ...);

/// True, or a static_assert that says what to use.
template <class Scalar, class... Operand>
constexpr bool require_device_operands() {
  static_assert(are_plain<Operand...>,
                "mhla: on a CudaDevice q, k, v, mix and dy are TensorMaps of device memory, "
                "mhla::tokens_first of them, or views; write what is computed from them to device "
                "memory first, in a kernel of yours");
  static_assert(
      std::is_same_v<Scalar, float> || std::is_same_v<Scalar, double> || SixteenBitScalar<Scalar>,
      "mhla: a CudaDevice computes with float, double, Eigen::bfloat16 and Eigen::half");
  return true;
}

template <class Op>
StateUse state_use(const Op& op) {
  return op.device_state == nullptr ? StateUse::none : StateUse::given;
}

/// The workspace that an expression brings, or the device's own. Throws StateError where it has a
/// plan for the CPU, or a state in host memory: `keeps` says which.
template <class Op, class Size>
WorkspaceView device_workspace(const CudaDevice& device, const Op& op, const char* expression,
                               const char* keeps, const Size& size) {
  if (op.state != nullptr)
    throw StateError({"mhla: ", expression, keeps,
                      " summaries in host memory, which a CudaDevice does not reach: use a "
                      "mhla::CudaForwardState"});
  if (op.plan != nullptr)
    throw StateError({"mhla: ", expression,
                      " of a CpuPlan runs on the CPU: give the CudaDevice a plan of its own, "
                      "device.with(plan)"});
  const WorkspaceView workspace = op.workspace.value_or(device.workspace());
  if (workspace.data == nullptr)
    throw WorkspaceError(
        {"mhla: ", expression,
         " on a CudaDevice allocates nothing: give the CudaDevice, or .with(...), ", size(),
         " bytes of device memory as workspace"});
  return workspace;
}

// The operands of an expression, which are plain.
template <class Op>
OperandViews<Storage<typename Op::Scalar>> device_operands(const Op& op) {
  return {memory_view(op.query), memory_view(op.key), memory_view(op.value), memory_view(op.mix)};
}

// y = attention(...) in device memory.
template <class Destination, class Op>
void assign_on_device(const CudaDevice& device, Destination& destination, const Op& op) {
  const auto operands = device_operands(op);
  const auto size = [&] {
    return forward_workspace_size<Storage<typename Op::Scalar>>(op.attention, operands.shape(),
                                                                device, state_use(op));
  };
  const WorkspaceView workspace =
      device_workspace(device, op, "attention(q, k, v, mix)", ".save(state) keeps", size);
  forward_into(op.attention, device, operands.q, operands.k, operands.v, operands.mix,
               memory_view(destination), workspace, op.device_state);
}

}  // namespace eigen

/// \cond INTERNAL
template <class Attention, class... Tensor, class T>
void write_gradients(const BackwardOp<Attention, Tensor...>& op, const CudaDevice& device,
                     const GradientViews<T>& gradients, Update update) {
  static_assert(eigen::require_device_operands<typename BackwardOp<Attention, Tensor...>::Scalar,
                                               Tensor...>());
  if constexpr (eigen::are_plain<Tensor...>) {
    const auto operands = eigen::device_operands(op);
    const auto size = [&] {
      return backward_workspace_size<T>(op.attention, operands.shape(), device,
                                        eigen::state_use(op));
    };
    const WorkspaceView workspace = eigen::device_workspace(
        device, op, "attention.backward(q, k, v, mix, dy)", ".saved(state) reads", size);
    backward_into(op.attention, device, operands.q, operands.k, operands.v, operands.mix,
                  eigen::memory_view(op.grad_output), gradients, update, workspace,
                  op.device_state);
  }
}
/// \endcond

MHLA_NAMESPACE_END

namespace Eigen::internal {

// Eigen takes these two from an expression's evaluator; on a CudaDevice there is none.
template <class Expression>
struct IsVectorizable<mhla::CudaDevice, Expression> {
  static constexpr bool value = false;
};
template <class Expression>
struct IsTileable<mhla::CudaDevice, Expression> {
  static constexpr TiledEvaluation value = TiledEvaluation::Off;
};

template <class Expression, bool Vectorizable, TiledEvaluation Tiling>
class TensorExecutor<Expression, mhla::CudaDevice, Vectorizable, Tiling> {
 public:
  static void run(const Expression&, const mhla::CudaDevice&) {
    static_assert(sizeof(Expression) == 0,
                  "mhla: a CudaDevice evaluates y.device(cuda) = attention(q, k, v, mix) and "
                  "nothing around it; put what comes before and after into kernels of your own");
  }
};

template <class Destination, class Attention, class... Operand, bool Vectorizable,
          TiledEvaluation Tiling>
class TensorExecutor<
    const TensorAssignOp<Destination, const mhla::ForwardOp<Attention, Operand...>>,
    mhla::CudaDevice, Vectorizable, Tiling> {
  using Forward = mhla::ForwardOp<Attention, Operand...>;
  using Assignment = TensorAssignOp<Destination, const Forward>;
  static constexpr bool plain_destination = mhla::eigen::is_plain<std::remove_const_t<Destination>>;

  static_assert(plain_destination,
                "mhla: on a CudaDevice the result of attention(q, k, v, mix) is assigned to a "
                "TensorMap of device memory or to mhla::tokens_first of one");
  static_assert(mhla::eigen::require_destination_types<Destination, Forward>());
  static_assert(mhla::eigen::require_device_operands<typename Forward::Scalar, Operand...>());

 public:
  static void run(const Assignment& assignment, const mhla::CudaDevice& device) {
    if constexpr (plain_destination && mhla::eigen::are_plain<Operand...>)
      mhla::eigen::assign_on_device(device, assignment.lhsExpression(), assignment.rhsExpression());
  }
};

}  // namespace Eigen::internal
