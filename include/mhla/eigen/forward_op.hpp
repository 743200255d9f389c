// SPDX-License-Identifier: MIT
// attention(q, k, v, mix) as a lazy expression of Eigen's Tensor module, and how Eigen evaluates
// it.
//
// y = attention(...) runs the core directly into y. Inside another expression the result is a
// temporary that the expression reads. A tensor that gets another shape is replaced by the finished
// result, and not before.
#pragma once

#include <mhla/cpu/cpu_plan.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/eigen/tensor_views.hpp>
#include <mhla/eigen/thread_pool_executor.hpp>

MHLA_NAMESPACE_BEGIN

template <AttentionVariant Attention, class Query, class Key, class Value, class Mix>
class ForwardOp;
template <class A>
class CudaForwardState;

MHLA_NAMESPACE_END

namespace Eigen::internal {

template <class Attention, class Query, class Key, class Value, class Mix>
struct traits<mhla::ForwardOp<Attention, Query, Key, Value, Mix>> {
  using Types = mhla::eigen::OperandTypes<Mix, Query, Key, Value>;
  typedef typename Types::Scalar Scalar;
  typedef Dense StorageKind;
  typedef typename Types::Index Index;
  typedef Scalar* PointerType;
  static constexpr int NumDimensions = 4;
  static constexpr int Layout = Types::layout;
  enum { Flags = 0 };
};

template <class... X>
struct eval<mhla::ForwardOp<X...>, Dense> {
  typedef const mhla::ForwardOp<X...>& type;
};

}  // namespace Eigen::internal

MHLA_NAMESPACE_BEGIN

/// attention(q, k, v, mix), not yet computed: [batch, heads, query tokens, value_dim], in the
/// layout of its operands (of views alone: RowMajor). Like every Eigen expression it refers to its
/// tensors and must not outlive them.
///
/// Assigned to a tensor, a map or mhla::tokens_first of one, it writes in place, or through a
/// temporary if that is an operand. Evaluation throws ShapeError, WorkspaceError, StateError before
/// it allocates or writes anything.
/// \ingroup attention
template <AttentionVariant Attention, class Query, class Key, class Value, class Mix>
class ForwardOp : public Eigen::TensorBase<ForwardOp<Attention, Query, Key, Value, Mix>,
                                           Eigen::ReadOnlyAccessors> {
  using Traits = Eigen::internal::traits<ForwardOp>;

 public:
  typedef typename Traits::Scalar Scalar;  ///< of q, k, v and the result
  /// \cond INTERNAL
  typedef typename Traits::StorageKind StorageKind;
  typedef typename Traits::Index Index;
  typedef typename Eigen::NumTraits<Scalar>::Real RealScalar;
  typedef Scalar CoeffReturnType;
  typedef ForwardOp Nested;
  /// \endcond

  /// See Attention::operator().
  ForwardOp(const Attention& variant, const Query& q, const Key& k, const Value& v, const Mix& m)
      : attention(variant), query(q), key(k), value(v), mix(m) {}

  /// Uses `memory`, of forward_workspace_size bytes, instead of allocating one: a plain
  /// assignment of tensors to a tensor then allocates nothing.
  ForwardOp with(WorkspaceView memory) const {
    ForwardOp changed = *this;
    changed.workspace = memory;
    return changed;
  }

  /// Keeps the block summaries in `summaries`, for attention.backward(...).saved(state), when
  /// evaluated.
  ForwardOp save(ForwardState<Accumulator<Scalar>>& summaries) const {
    ForwardOp changed = *this;
    changed.state = &summaries;
    return changed;
  }
  /// Keeps the summaries in device memory, on a CudaDevice.
  ForwardOp save(CudaForwardState<Accumulator<Scalar>>& summaries) const {
    ForwardOp changed = *this;
    changed.device_state = &summaries;
    return changed;
  }

  /// \cond INTERNAL
  Attention attention;
  typename eigen::TensorTraits<Query>::Nested query;
  typename eigen::TensorTraits<Key>::Nested key;
  typename eigen::TensorTraits<Value>::Nested value;
  typename eigen::TensorTraits<Mix>::Nested mix;
  std::optional<WorkspaceView> workspace{};
  CpuPlan<Attention, eigen::Storage<Scalar>>* plan = nullptr;
  ForwardState<Accumulator<Scalar>>* state = nullptr;
  CudaForwardState<Accumulator<Scalar>>* device_state = nullptr;
  /// \endcond
};

namespace eigen {

/// Throws StateError if an expression that runs on the CPU has a state in device memory.
template <class A>
void require_host_state(const CudaForwardState<A>* state, const char* expression) {
  if (state != nullptr)
    throw StateError({"mhla: ", expression,
                      ": a CudaForwardState is device memory, which the CPU does not reach: use a "
                      "mhla::ForwardState, or evaluate on a CudaDevice"});
}

}  // namespace eigen

/// \cond INTERNAL
// What attention(q, k, v, mix) is: found by Attention::operator().
template <AttentionVariant Attention, TensorOperand... Operand>
ForwardOp<Attention, Operand...> forward_expression(const Attention& attention,
                                                    const Operand&... operand) {
  return {attention, operand...};
}

// The error for everything else; `auto` puts it before what the compiler says of the result.
template <AttentionVariant Attention, class... Operand>
auto forward_expression(const Attention&, const Operand&...) {
  static_assert(no_such_call<Operand...>,
                "mhla: attention(q, k, v, mix) takes tensors: Eigen::Tensor, Eigen::TensorMap, "
                "expressions of them, mhla::TensorView; of an Eigen::Matrix [tokens, heads * dim] "
                "write mhla::heads_view(x, heads), of a std::vector mhla::heads_view(x.data(), "
                "tokens, heads, dim, row_stride), of a matrix of mixing coefficients "
                "mhla::mix_view(mix)");
}
// What a call with Eigen's 16-bit scalars takes, on an executor or a CudaDevice: as for the core's.
template <eigen::SixteenBitScalar T, AttentionVariant V, class... Rest>
auto forward_workspace_size(const V& attention, const Shape& shape, const Rest&... rest) {
  return forward_workspace_size<eigen::Storage<T>>(attention, shape, rest...);
}
template <eigen::SixteenBitScalar T, AttentionVariant V, class... Rest>
auto backward_workspace_size(const V& attention, const Shape& shape, const Rest&... rest) {
  return backward_workspace_size<eigen::Storage<T>>(attention, shape, rest...);
}
template <eigen::SixteenBitScalar T, AttentionVariant V, class... Rest>
auto plan(const V& attention, const Shape& shape, const Rest&... rest) {
  return plan<eigen::Storage<T>>(attention, shape, rest...);
}
template <eigen::SixteenBitScalar T, AttentionVariant V, class... Rest>
auto explain(const V& attention, const Shape& shape, const Rest&... rest) {
  return explain<eigen::Storage<T>>(attention, shape, rest...);
}
/// \endcond

namespace eigen {

/// One evaluation of a ForwardOp on a device. The constructor checks the operands and allocates
/// nothing.
template <class Op, class Device>
class ForwardRun {
  using T = Storage<typename Op::Scalar>;

 public:
  MHLA_ONCE_A_CALL ForwardRun(const Op& op, const Device& device)
      : op_(op),
        executor_(checked_executor(device)),
        operands_(op, device),
        shape_(operands_.views().shape()) {
    if (op.plan != nullptr)
      op.plan->require_planned(executor_, operands_.views(), false);
    else
      static_cast<void>(checked_problem(op.attention, shape_));
    require_host_state(op.device_state, "attention(q, k, v, mix).save(state)");
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
    if (op_.plan != nullptr) return op_.plan->forward(executor_, operands_.views(), y, op_.state);
    cpu::checked_forward_into(op_.attention, executor_, operands_.views(), y,
                              {"mhla: attention(q, k, v, mix).with(workspace)", op_.workspace},
                              op_.state);
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
  Operands<Op, Device> operands_;
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

/// What Eigen asks of the evaluator of an assignment whose evalSubExprsIfNeeded does all of it.
struct WholeAssignment {
  enum { PacketAccess = false, BlockAccess = false, PreferBlockAccess = false };
  void cleanup() {}
  void evalScalar(Eigen::Index) const {}
  Eigen::TensorOpCost costPerCoeff(bool) const { return {}; }
};

}  // namespace eigen

MHLA_NAMESPACE_END

namespace Eigen {

// The result inside a larger expression. Copies of an evaluator, which Eigen makes for its threads,
// share it.
template <class... X, class Device>
struct TensorEvaluator<const mhla::ForwardOp<X...>, Device> {
  typedef mhla::ForwardOp<X...> XprType;
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
  const XprType& op() const { return op_; }

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
template <class Destination, class... X, class Device>
requires mhla::eigen::keeps_its_shape<Destination, Device>
struct TensorEvaluator<const TensorAssignOp<Destination, const mhla::ForwardOp<X...>>, Device>
    : mhla::eigen::WholeAssignment {
  typedef mhla::ForwardOp<X...> Forward;
  typedef TensorAssignOp<Destination, const Forward> XprType;
  typedef typename XprType::Scalar Scalar;

  static_assert(mhla::eigen::require_destination_types<Destination, Forward>());

  TensorEvaluator(const XprType& assignment, const Device& device)
      : destination_(assignment.lhsExpression()),
        right_(assignment.rhsExpression(), device),
        device_(device) {}

  const auto& dimensions() const { return right_.dimensions(); }

  // Does the whole assignment and leaves nothing for Eigen to do.
  MHLA_ONCE_A_CALL bool evalSubExprsIfNeeded(const void*) {
    using mhla::eigen::destination_view;
    mhla::eigen::ForwardRun<Forward, Device> run(right_.op(), device_);
    const auto result = run.result();
    const auto y = destination_view(destination_, device_);
    mhla::require_extents(y, "y", result.extent[0], result.extent[1], result.extent[2],
                          result.extent[3], "y is [batch, heads, query tokens, value_dim]");
    run.evaluate_operands();
    if (y.data != nullptr && !run.reads(y)) {
      run.write_result(y);
    } else {
      assign(run.result_in_memory());
    }
    return false;
  }

  template <class Done>
  void evalSubExprsIfNeededAsync(const void*, Done done) {
    try {
      evalSubExprsIfNeeded(nullptr);
    } catch (...) {
      done(false);  // deletes this object, and calls back the caller
      throw;
    }
    done(false);
  }

 private:
  void assign(const mhla::Workspace& result) {
    if constexpr (mhla::eigen::is_dense_memory<Destination>) {
      if (destination_.size() > 0)
        device_.memcpy(destination_.data(), result.data(),
                       sizeof(Scalar) * static_cast<std::size_t>(destination_.size()));
    } else {
      using Plain = Tensor<Scalar, 4, internal::traits<Forward>::Layout, typename Forward::Index>;
      const TensorMap<const Plain> values(reinterpret_cast<const Scalar*>(result.data()),
                                          right_.dimensions());
      using Assign = TensorAssignOp<Destination, const TensorMap<const Plain>>;
      const Assign assignment(destination_, values);
      internal::TensorExecutor<const Assign, Device>::run(assignment, device_);
    }
  }

  Destination& destination_;
  TensorEvaluator<const Forward, Device> right_;
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
                       DefaultDevice> : mhla::eigen::WholeAssignment {
  typedef Tensor<T, Rank, Options, IndexType> Left;
  typedef TensorAssignOp<Left, const Right> XprType;

  TensorEvaluator(const XprType& assignment, const DefaultDevice& device)
      : assignment_(assignment), device_(device) {}

  // Only `tensor = expression` asks, and resizes the tensor next.
  auto dimensions() const {
    Left& tensor = assignment_.lhsExpression();
    const auto dimensions =
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

  MHLA_ONCE_A_CALL bool evalSubExprsIfNeeded(const void*) {
    if (!assignment_.done) assign(assignment_.lhsExpression());
    return false;
  }

 private:
  void assign(Left& tensor) const {
    using InPlace = TensorAssignOp<TensorMap<Left, Aligned>, const Right>;
    TensorMap<Left, Aligned> map(tensor);
    const InPlace in_place(map, assignment_.rhsExpression());
    internal::TensorExecutor<const InPlace, DefaultDevice>::run(in_place, device_);
  }

  const XprType& assignment_;
  const DefaultDevice& device_;
};

}  // namespace Eigen
