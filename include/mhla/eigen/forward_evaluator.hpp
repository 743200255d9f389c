// SPDX-License-Identifier: MIT
// How Eigen evaluates attention(q, k, v, mix).
//
// y = attention(...) runs the core directly into y. Inside another expression the result is a
// temporary that the expression reads. A tensor that gets another shape is replaced by the finished
// result, and not before.
#pragma once

#include <cstddef>
#include <memory>
#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/eigen/forward_op.hpp>
#include <mhla/eigen/operand.hpp>
#include <mhla/eigen/storage.hpp>
#include <mhla/eigen/tensor_views.hpp>
#include <mhla/eigen/thread_pool_executor.hpp>
#include <mhla/policy/variant.hpp>
#include <type_traits>
#include <unsupported/Eigen/CXX11/Tensor>
#include <utility>

MHLA_NAMESPACE_BEGIN

/// Bytes of workspace that attention(q, k, v, mix) takes for tensors of Eigen's 16-bit scalars;
/// <mhla/cpu/pipeline.hpp> has it for every other scalar.
template <eigen::SixteenBitScalar T, AttentionVariant V, Executor E>
Index forward_workspace_size(const V& attention, const Shape& shape, const E& executor) {
  return forward_workspace_size<eigen::Storage<T>>(attention, shape, executor);
}

namespace eigen {

/// One evaluation of an expression on a device. The constructor checks the operands and allocates
/// nothing.
template <class Op, class Device>
class ForwardRun;

template <class Attention, class Query, class Key, class Value, class Mix, class Device>
class ForwardRun<ForwardOp<Attention, Query, Key, Value, Mix>, Device> {
  using Op = ForwardOp<Attention, Query, Key, Value, Mix>;
  using T = Storage<typename Op::Scalar>;

 public:
  MHLA_ONCE_A_CALL ForwardRun(const Op& op, const Device& device)
      : op_(op),
        executor_(checked_executor(device)),
        operands_(op, device),
        shape_(operands_.shape()) {
    static_cast<void>(checked_problem(op.attention(), shape_));
    require_host_state(op.device_state(), "attention(q, k, v, mix).save(state)");
  }

  /// The result as a dense tensor at `data`; without memory, its extents.
  TensorView<T, 4> result(typename Op::Scalar* data = nullptr) const {
    return make_view(storage(data), shape_.batch, shape_.heads, shape_.query_tokens,
                     shape_.value_dim);
  }

  MHLA_ONCE_A_CALL void evaluate_operands() { operands_.evaluate(); }

  /// Whether y could not be written without destroying an operand.
  MHLA_ONCE_A_CALL bool reads(const TensorView<T, 4>& y) const {
    return operands_.share_memory_with(y);
  }

  /// Computes y from evaluated operands.
  MHLA_ONCE_A_CALL void write_result(const TensorView<T, 4>& y) const {
    const OperandViews<T> x{operands_.query.view(), operands_.key.view(), operands_.value.view(),
                            operands_.mix.view()};
    const auto workspace = op_.workspace();
    cpu::checked_forward_into(
        op_.attention(), executor_, x, y,
        {"mhla: attention(q, k, v, mix).with(workspace)", workspace ? &*workspace : nullptr},
        op_.state());
  }

  /// Computes the result in its own memory, as a dense tensor.
  MHLA_ONCE_A_CALL Workspace result_in_memory() const {
    TensorView<T, 4> y = result();
    Workspace memory(checked_mul(y.size(), static_cast<Index>(sizeof(T))));
    y.data = reinterpret_cast<T*>(memory.data());
    write_result(y);
    return memory;
  }

 private:
  const Op& op_;
  DeviceExecutor<Device> executor_;
  Operands<Query, Key, Value, Mix, Device> operands_;
  Shape shape_;
};

/// True, or a static_assert, if attention(q, k, v, mix) is assigned to a tensor.
template <class Destination, class Forward>
constexpr bool require_destination_types() {
  using Traits = Eigen::internal::traits<Destination>;
  static_assert(Traits::NumDimensions == 4,
                "mhla: the result of attention(q, k, v, mix) has rank 4: [batch, heads, query "
                "tokens, value_dim]; assign it to a tensor of rank 4");
  static_assert(std::is_same_v<typename Traits::Scalar, typename Forward::Scalar>,
                "mhla: the result of attention(q, k, v, mix) has the scalar type of q; use "
                ".cast<Scalar>() to assign it to a tensor of another");
  static_assert(int(Traits::Layout) == int(Eigen::internal::traits<Forward>::Layout),
                "mhla: the result of attention(q, k, v, mix) has the layout of its operands; "
                "assign it to y.swap_layout(), which also reverses the axes");
  return true;
}

/// The memory of a destination [batch, heads, tokens, dim]; without data if it is not dense.
template <class Destination, class Device>
auto destination_view(const Destination& destination, const Device& device) {
  using Traits = TensorTraits<Destination>;
  const Eigen::TensorEvaluator<Destination, Device> evaluator(destination, device);
  return dense_view<Traits::layout, Traits::rank>(evaluator.data(), evaluator.dimensions());
}

template <class Tensor, class Device>
auto destination_view(const Eigen::TensorShufflingOp<const TokensFirstAxes, Tensor>& shuffled,
                      const Device& device) {
  return tokens_first(destination_view<Tensor>(shuffled.expression(), device));
}

/// Whether an expression is or contains an attention.
template <class X>
inline constexpr bool has_attention = false;
template <class... X>
inline constexpr bool has_attention<ForwardOp<X...>> = true;
template <template <class...> class Op, class... X>
inline constexpr bool has_attention<Op<X...>> = (has_attention<std::remove_const_t<X>> || ...);

/// Whether an assignment keeps the destination's shape: all do except `tensor = expression`.
template <class Destination, class Device>
inline constexpr bool keeps_its_shape = true;
template <class T, int Rank, int Options, class Index>
inline constexpr bool
    keeps_its_shape<Eigen::Tensor<T, Rank, Options, Index>, Eigen::DefaultDevice> = false;

}  // namespace eigen

MHLA_NAMESPACE_END

namespace Eigen {

// The result inside a larger expression. Copies of an evaluator, which Eigen makes for its threads,
// share it.
template <class Attention, class Query, class Key, class Value, class Mix, class Device>
struct TensorEvaluator<const mhla::ForwardOp<Attention, Query, Key, Value, Mix>, Device> {
  typedef mhla::ForwardOp<Attention, Query, Key, Value, Mix> XprType;
  typedef typename XprType::Scalar Scalar;
  typedef typename XprType::Index Index;
  typedef Scalar CoeffReturnType;
  typedef typename PacketType<Scalar, Device>::type PacketReturnType;
  typedef typename StorageMemory<Scalar, Device>::Type EvaluatorPointerType;
  typedef internal::TensorBlockNotImplemented TensorBlock;
  static constexpr int PacketSize = PacketType<Scalar, Device>::size;
  static constexpr int NumDims = 4;
  static constexpr int Layout = internal::traits<XprType>::Layout;
  typedef DSizes<Index, NumDims> Dimensions;
  enum {
    IsAligned = false,
    PacketAccess = (PacketSize > 1),
    BlockAccess = false,
    PreferBlockAccess = false,
    CoordAccess = false,
    RawAccess = true
  };

  // Here, so that the compiler reports it before Eigen's own error.
  static_assert(mhla::eigen::require_known_device<Device>());

  TensorEvaluator(const XprType& op, const Device& device)
      : op_(op),
        device_(device),
        dimensions_(mhla::eigen::eigen_dimensions<Layout, Index>(Run(op, device).result())) {}

  const Dimensions& dimensions() const { return dimensions_; }

  MHLA_ONCE_A_CALL bool evalSubExprsIfNeeded(EvaluatorPointerType destination) {
    Run run(op_, device_);
    run.evaluate_operands();
    if (destination != nullptr) {
      const auto y = run.result(destination);
      if (!run.reads(y)) {
        run.write_result(y);
        return false;
      }
    }
    result_ = std::make_shared<mhla::Workspace>(run.result_in_memory());
    values_ = reinterpret_cast<Scalar*>(result_->data());
    return true;
  }

  template <class Done>
  void evalSubExprsIfNeededAsync(EvaluatorPointerType destination, Done done) {
    done(evalSubExprsIfNeeded(destination));
  }

  void cleanup() {
    result_.reset();
    values_ = nullptr;
  }

  CoeffReturnType coeff(Index i) const { return values_[i]; }

  template <int LoadMode>
  PacketReturnType packet(Index i) const {
    return internal::ploadt<PacketReturnType, LoadMode>(values_ + i);
  }

  TensorOpCost costPerCoeff(bool vectorized) const {
    return TensorOpCost(sizeof(Scalar), 0, 0, vectorized, PacketSize);
  }

  internal::TensorBlockResourceRequirements getResourceRequirements() const {
    return internal::TensorBlockResourceRequirements::any();
  }

  EvaluatorPointerType data() const { return values_; }

 private:
  using Run = mhla::eigen::ForwardRun<XprType, Device>;

  const XprType op_;
  const Device& device_;
  Dimensions dimensions_;
  std::shared_ptr<mhla::Workspace> result_;
  Scalar* values_ = nullptr;
};

// y = attention(...), with nothing around it: Eigen would not check the shape of y in a release
// build, and would leak the operands' temporaries if something throws.
template <class Destination, class Attention, class Query, class Key, class Value, class Mix,
          class Device>
requires mhla::eigen::keeps_its_shape<Destination, Device>
struct TensorEvaluator<
    const TensorAssignOp<Destination, const mhla::ForwardOp<Attention, Query, Key, Value, Mix>>,
    Device> {
  typedef mhla::ForwardOp<Attention, Query, Key, Value, Mix> Forward;
  typedef TensorAssignOp<Destination, const Forward> XprType;
  typedef typename XprType::Scalar Scalar;
  typedef typename XprType::Index Index;
  typedef typename XprType::CoeffReturnType CoeffReturnType;
  typedef typename PacketType<CoeffReturnType, Device>::type PacketReturnType;
  typedef typename StorageMemory<CoeffReturnType, Device>::Type EvaluatorPointerType;
  typedef typename TensorEvaluator<const Forward, Device>::Dimensions Dimensions;
  static constexpr int PacketSize = PacketType<CoeffReturnType, Device>::size;
  static constexpr int NumDims = 4;
  static constexpr int Layout = internal::traits<Forward>::Layout;
  enum {
    IsAligned = false,
    PacketAccess = false,
    BlockAccess = false,
    PreferBlockAccess = false,
    RawAccess = false
  };

  static_assert(mhla::eigen::require_destination_types<Destination, Forward>());

  TensorEvaluator(const XprType& assignment, const Device& device)
      : destination_(assignment.lhsExpression()),
        right_(assignment.rhsExpression(), device),
        op_(assignment.rhsExpression()),
        device_(device) {}

  const Dimensions& dimensions() const { return right_.dimensions(); }

  // Does the whole assignment and leaves nothing for Eigen to do.
  MHLA_ONCE_A_CALL bool evalSubExprsIfNeeded(EvaluatorPointerType) {
    using mhla::eigen::destination_view;
    mhla::eigen::ForwardRun<Forward, Device> run(op_, device_);
    const auto result = run.result();
    mhla::require_extents(extents_of_destination(), "y", result.extent[0], result.extent[1],
                          result.extent[2], result.extent[3],
                          "y is [batch, heads, query tokens, value_dim]");
    run.evaluate_operands();
    const auto y = destination_view(destination_, device_);
    if (y.data != nullptr && !run.reads(y)) {
      run.write_result(y);
    } else {
      assign(run.result_in_memory());
    }
    return false;
  }

  template <class Done>
  void evalSubExprsIfNeededAsync(EvaluatorPointerType, Done done) {
    try {
      evalSubExprsIfNeeded(nullptr);
    } catch (...) {
      done(false);  // deletes this object, and calls back the caller
      throw;
    }
    done(false);
  }

  void cleanup() {}
  void evalScalar(Index) const {}  // nothing is left to do
  TensorOpCost costPerCoeff(bool vectorized) const { return right_.costPerCoeff(vectorized); }

 private:
  auto extents_of_destination() const {
    const TensorEvaluator<Destination, Device> left(destination_, device_);
    return mhla::eigen::dense_view<Layout, NumDims, Scalar>(nullptr, left.dimensions());
  }

  void assign(const mhla::Workspace& result) {
    if constexpr (mhla::eigen::is_dense_memory<Destination>) {
      if (destination_.size() > 0)
        device_.memcpy(destination_.data(), result.data(),
                       sizeof(Scalar) * static_cast<std::size_t>(destination_.size()));
    } else {
      using Plain = Tensor<Scalar, NumDims, Layout, typename Forward::Index>;
      const TensorMap<const Plain> values(reinterpret_cast<const Scalar*>(result.data()),
                                          right_.dimensions());
      using Assign = TensorAssignOp<Destination, const TensorMap<const Plain>>;
      const Assign assignment(destination_, values);
      internal::TensorExecutor<const Assign, Device>::run(assignment, device_);
    }
  }

  Destination& destination_;
  TensorEvaluator<const Forward, Device> right_;
  const Forward op_;
  const Device& device_;
};

// tensor = an expression with an attention in it. Eigen asks an evaluator for the dimensions,
// resizes the tensor, and has another evaluator do the work: too late if the tensor is also an
// operand, or if something throws.
template <class T, int Rank, int Options, class IndexType, class Right>
requires mhla::eigen::has_attention<Right>
class TensorAssignOp<Tensor<T, Rank, Options, IndexType>, const Right> {
 public:
  typedef Tensor<T, Rank, Options, IndexType> Left;
  typedef typename Left::Scalar Scalar;
  typedef typename Left::Index Index;
  typedef typename Left::CoeffReturnType CoeffReturnType;
  static constexpr int NumDims = Rank;

  TensorAssignOp(Left& left, const Right& right) : left_(left), right_(right) {}

  Left& lhsExpression() const { return left_; }
  const Right& rhsExpression() const { return right_; }

  /// Tells the next evaluator that nothing is left to do.
  mutable bool done = false;

 private:
  Left& left_;
  const Right& right_;
};

template <class T, int Rank, int Options, class IndexType, class Right>
requires mhla::eigen::has_attention<Right>
struct TensorEvaluator<const TensorAssignOp<Tensor<T, Rank, Options, IndexType>, const Right>,
                       DefaultDevice> {
  typedef Tensor<T, Rank, Options, IndexType> Left;
  typedef TensorAssignOp<Left, const Right> XprType;
  typedef TensorAssignOp<TensorMap<Left, Aligned>, const Right> InPlace;
  typedef TensorEvaluator<const InPlace, DefaultDevice> InPlaceEvaluator;
  typedef typename XprType::Scalar Scalar;
  typedef typename XprType::Index Index;
  typedef typename XprType::CoeffReturnType CoeffReturnType;
  typedef typename InPlaceEvaluator::PacketReturnType PacketReturnType;
  typedef typename InPlaceEvaluator::EvaluatorPointerType EvaluatorPointerType;
  typedef typename InPlaceEvaluator::Dimensions Dimensions;
  static constexpr int PacketSize = InPlaceEvaluator::PacketSize;
  static constexpr int NumDims = Rank;
  static constexpr int Layout = Left::Layout;
  enum {
    IsAligned = false,
    PacketAccess = false,
    BlockAccess = false,
    PreferBlockAccess = false,
    RawAccess = false
  };

  TensorEvaluator(const XprType& assignment, const DefaultDevice& device)
      : assignment_(assignment), device_(device) {}

  // Only `tensor = expression` asks, and resizes the tensor next.
  Dimensions dimensions() const {
    Left& tensor = assignment_.lhsExpression();
    const Dimensions dimensions =
        TensorEvaluator<const Right, DefaultDevice>(assignment_.rhsExpression(), device_)
            .dimensions();
    if (!dimensions_match(dimensions, tensor.dimensions())) {
      Left result;
      result.resize(dimensions);
      assign(result);
      tensor = (std::move)(result);
      assignment_.done = true;
    }
    return dimensions;
  }

  MHLA_ONCE_A_CALL bool evalSubExprsIfNeeded(EvaluatorPointerType) {
    if (!assignment_.done) assign(assignment_.lhsExpression());
    return false;
  }

  void cleanup() {}
  void evalScalar(Index) const {}  // nothing is left to do

 private:
  void assign(Left& tensor) const {
    TensorMap<Left, Aligned> map(tensor);
    const InPlace in_place(map, assignment_.rhsExpression());
    internal::TensorExecutor<const InPlace, DefaultDevice>::run(in_place, device_);
  }

  const XprType& assignment_;
  const DefaultDevice& device_;
};

}  // namespace Eigen
