// SPDX-License-Identifier: MIT
// attention(q, k, v, mix) as a lazy expression of Eigen's Tensor module.
// eigen/forward_evaluator.hpp evaluates it.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/forward_state.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/eigen/operand.hpp>
#include <mhla/eigen/tensor_views.hpp>
#include <mhla/policy/variant.hpp>
#include <optional>
#include <string>
#include <unsupported/Eigen/CXX11/Tensor>

MHLA_NAMESPACE_BEGIN

template <AttentionVariant Attention, class Query, class Key, class Value, class Mix>
class ForwardOp;
template <class A>
class CudaForwardState;

MHLA_NAMESPACE_END

namespace Eigen::internal {

template <class Attention, class Query, class Key, class Value, class Mix>
struct traits<mhla::ForwardOp<Attention, Query, Key, Value, Mix>> {
  using Types = mhla::eigen::OperandTypes<Query, Key, Value, Mix>;
  typedef typename Types::Scalar Scalar;
  typedef Dense StorageKind;
  typedef typename Types::Index Index;
  typedef Scalar* PointerType;
  static constexpr int NumDimensions = 4;
  static constexpr int Layout = Types::layout;
  enum { Flags = 0 };
};

template <class Attention, class Query, class Key, class Value, class Mix>
struct eval<mhla::ForwardOp<Attention, Query, Key, Value, Mix>, Dense> {
  typedef const mhla::ForwardOp<Attention, Query, Key, Value, Mix>& type;
};

}  // namespace Eigen::internal

MHLA_NAMESPACE_BEGIN

/// \addtogroup attention
/// \{

/// attention(q, k, v, mix), not yet computed: [batch, heads, query tokens, value_dim], in the
/// layout of its operands (of views alone: RowMajor). Like every Eigen expression it refers to its
/// tensors and must not outlive them.
///
/// Assigned to a tensor, a map or mhla::tokens_first of one, it writes in place, or through a
/// temporary if that is an operand. Evaluation throws ShapeError, WorkspaceError, StateError before
/// it allocates or writes anything.
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
  ForwardOp(const Attention& attention, const Query& q, const Key& k, const Value& v,
            const Mix& mix)
      : attention_(attention), query_(q), key_(k), value_(v), mix_(mix) {}

  /// Uses `workspace`, of forward_workspace_size bytes, instead of allocating one: a plain
  /// assignment of tensors to a tensor then allocates nothing.
  ForwardOp with(WorkspaceView workspace) const {
    ForwardOp changed = *this;
    changed.workspace_ = workspace;
    return changed;
  }

  /// Keeps the block summaries in `state`, for attention.backward(...).saved(state), when
  /// evaluated.
  ForwardOp save(ForwardState<Accumulator<Scalar>>& state) const {
    ForwardOp changed = *this;
    changed.state_ = &state;
    return changed;
  }
  /// Keeps the summaries in device memory, on a CudaDevice.
  ForwardOp save(CudaForwardState<Accumulator<Scalar>>& state) const {
    ForwardOp changed = *this;
    changed.device_state_ = &state;
    return changed;
  }

  /// \cond INTERNAL
  const Attention& attention() const { return attention_; }
  const Query& query() const { return query_; }
  const Key& key() const { return key_; }
  const Value& value() const { return value_; }
  const Mix& mix() const { return mix_; }
  const std::optional<WorkspaceView>& workspace() const { return workspace_; }
  ForwardState<Accumulator<Scalar>>* state() const { return state_; }
  CudaForwardState<Accumulator<Scalar>>* device_state() const { return device_state_; }
  /// \endcond

 private:
  Attention attention_;
  typename eigen::TensorTraits<Query>::Nested query_;
  typename eigen::TensorTraits<Key>::Nested key_;
  typename eigen::TensorTraits<Value>::Nested value_;
  typename eigen::TensorTraits<Mix>::Nested mix_;
  std::optional<WorkspaceView> workspace_{};
  ForwardState<Accumulator<Scalar>>* state_ = nullptr;
  CudaForwardState<Accumulator<Scalar>>* device_state_ = nullptr;
};

/// \}

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
template <AttentionVariant Attention, TensorOperand Query, TensorOperand Key, TensorOperand Value,
          TensorOperand Mix>
ForwardOp<Attention, Query, Key, Value, Mix> forward_expression(const Attention& attention,
                                                                const Query& q, const Key& k,
                                                                const Value& v, const Mix& mix) {
  return {attention, q, k, v, mix};
}

// The error for everything else; `auto` puts it before what the compiler says of the result.
template <AttentionVariant Attention, class Query, class Key, class Value, class Mix>
auto forward_expression(const Attention&, const Query&, const Key&, const Value&, const Mix&) {
  static_assert(sizeof(Query) == 0,
                "mhla: attention(q, k, v, mix) takes tensors: Eigen::Tensor, Eigen::TensorMap, "
                "expressions of them, mhla::TensorView; of an Eigen::Matrix [tokens, heads * dim] "
                "write mhla::heads_view(x, heads), of a std::vector mhla::heads_view(x.data(), "
                "tokens, heads, dim, row_stride), of a matrix of mixing coefficients "
                "mhla::mix_view(mix)");
}
/// \endcond

MHLA_NAMESPACE_END
