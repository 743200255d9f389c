// SPDX-License-Identifier: MIT
// An operand of an expression: read in place, or evaluated into a temporary first.
#pragma once

#include <mhla/eigen/tensor_views.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

/// What attention(...) takes: Eigen's tensors, maps and expressions, and mhla::TensorView.
/// \ingroup attention
template <class X>
concept TensorOperand = requires {
  eigen::TensorTraits<X>::rank;
};

namespace eigen {

/// Has a view whose extents are right from the start, so that a call is checked before anything is
/// evaluated; `evaluate()` then gives the view its memory. The temporary belongs to this object,
/// because Eigen's own forced evaluation leaks if something throws. The expression must outlive the
/// object.
template <class X, class Device>
class Operand {
  using Traits = TensorTraits<X>;
  using Scalar = typename Traits::Scalar;
  static constexpr int rank = Traits::rank;
  static constexpr bool in_memory =
      is_dense_memory<std::remove_const_t<X>> || Traits::layout == any_layout;

 public:
  Operand(const X& expression, const Device& device) : expression_(expression), device_(device) {
    if constexpr (in_memory) {
      view_ = memory_view(expression);
    } else {
      // A contiguous slice is in memory already; Eigen's evaluator has no address for anything else
      // before it is evaluated.
      const Eigen::TensorEvaluator<const X, Device> evaluator(expression, device);
      const Scalar* address = evaluator.data();
      view_ = dense_view<Traits::layout, rank>(address, evaluator.dimensions());
    }
  }

  const TensorView<const Storage<Scalar>, rank>& view() const { return view_; }

  void evaluate() {
    if constexpr (!in_memory) {
      if (view_.data != nullptr || view_.size() == 0) return;
      using Plain = Eigen::Tensor<Scalar, rank, Traits::layout, typename Traits::Index>;
      memory_ = Workspace(checked_mul(view_.size(), static_cast<Index>(sizeof(Scalar))));
      auto* values = reinterpret_cast<Scalar*>(memory_.data());
      Eigen::TensorMap<Plain> map(values,
                                  eigen_dimensions<Traits::layout, typename Traits::Index>(view_));
      map.device(device_) = expression_;
      view_.data = storage(values);
    }
  }

 private:
  const X& expression_;
  const Device& device_;
  TensorView<const Storage<Scalar>, rank> view_;
  Workspace memory_;
};

template <class X, class Device>
class Operand<Eigen::TensorShufflingOp<const TokensFirstAxes, X>, Device> {
 public:
  Operand(const Eigen::TensorShufflingOp<const TokensFirstAxes, X>& shuffled, const Device& device)
      : tensor_(shuffled.expression(), device) {}

  auto view() const { return tokens_first(tensor_.view()); }
  void evaluate() { tensor_.evaluate(); }

 private:
  Operand<std::remove_const_t<X>, Device> tensor_;
};

/// The operands of a call together.
template <class Op, class Device>
struct Operands {
  Operands(const Op& op, const Device& device)
      : query(op.query, device),
        key(op.key, device),
        value(op.value, device),
        mix(op.mix, device) {}

  template <class X>
  using Of = Operand<std::remove_cvref_t<X>, Device>;
  Of<decltype(Op::query)> query;
  Of<decltype(Op::key)> key;
  Of<decltype(Op::value)> value;
  Of<decltype(Op::mix)> mix;

  OperandViews<Storage<typename Op::Scalar>> views() const {
    return {query.view(), key.view(), value.view(), mix.view()};
  }
  void evaluate() {
    query.evaluate();
    key.evaluate();
    value.evaluate();
    mix.evaluate();
  }
  template <class T, int Rank>
  bool share_memory_with(const TensorView<T, Rank>& destination) const {
    return share_memory(destination, query.view()) || share_memory(destination, key.view()) ||
           share_memory(destination, value.view()) || share_memory(destination, mix.view());
  }
};

/// The types of q, the others of k, v and dy, and mix together, with a static_assert for each rule.
template <class Mix, class Query, class... Others>
struct OperandTypes {
  template <class X>
  using Traits = TensorTraits<X>;
  using Scalar = typename Traits<Query>::Scalar;

  static_assert(((Traits<Query>::rank == 4) && ... && (Traits<Others>::rank == 4)),
                "mhla: q, k, v and dy must have rank 4: [batch, heads, tokens, dim]");
  static_assert(Traits<Mix>::rank == 3 || Traits<Mix>::rank == 2,
                "mhla: mix must have rank 3, [1 | heads, query blocks, key blocks], or rank 2, "
                "[query blocks, key blocks]");
  static_assert(StorageScalar<Storage<Scalar>>,
                "mhla: q, k, v and dy must be tensors of float, double, another floating-point "
                "type, Eigen::bfloat16 or Eigen::half");
  static_assert((std::same_as<typename Traits<Others>::Scalar, Scalar> && ...),
                "mhla: q, k, v and dy must have one scalar type; use .cast<Scalar>()");
  static_assert(std::same_as<typename Traits<Mix>::Scalar, Accumulator<Scalar>>,
                "mhla: mix must have the type that q is accumulated in: float for float, "
                "Eigen::bfloat16 and Eigen::half, double for double; use .cast<Scalar>()");

  using Index = std::common_type_t<typename Traits<Query>::Index, typename Traits<Mix>::Index,
                                   typename Traits<Others>::Index...>;

  /// RowMajor if all are views.
  static constexpr int layout = [] {
    constexpr int found =
        (std::max)({Traits<Query>::layout, Traits<Mix>::layout, Traits<Others>::layout...});
    return found == any_layout ? int(Eigen::RowMajor) : found;
  }();

  template <class X>
  static constexpr bool has_the_layout =
      Traits<X>::layout == any_layout || Traits<X>::layout == layout;

  static_assert((has_the_layout<Query> && ... && has_the_layout<Others>)&&has_the_layout<Mix>,
                "mhla: q, k, v, mix and dy must have one layout, RowMajor or ColMajor; use "
                ".swap_layout(), which also reverses the axes");
};

/// Whether these have the ranks of mix and of q, k and v.
template <class Mix, class... Others>
inline constexpr bool are_operands = ((TensorTraits<Others>::rank == 4) && ...) &&
                                     (TensorTraits<Mix>::rank == 3 || TensorTraits<Mix>::rank == 2);

}  // namespace eigen

/// The shape of a call with these Eigen tensors, maps, expressions and views; nothing is evaluated.
/// \code
/// const mhla::Workspace memory(
///     mhla::forward_workspace_size<float>(attention, mhla::shape_of(q, k, v, mix), executor));
/// \endcode
/// \throws ShapeError if they disagree.
/// \ingroup attention
template <TensorOperand Query, TensorOperand Key, TensorOperand Value, TensorOperand Mix>
requires(eigen::are_operands<Mix, Query, Key, Value>) Shape
    shape_of(const Query& q, const Key& k, const Value& v, const Mix& mix) {
  const Eigen::DefaultDevice device;
  const auto view = [&](const auto& x) { return eigen::Operand(x, device).view(); };
  return shape_of(view(q), view(k), view(v), view(mix));
}

MHLA_NAMESPACE_END
