// SPDX-License-Identifier: MIT
// Eigen's tensors as views, tokens_first for the other common axis order, and matrices, which the
// projections before and after an attention write and read. Operands of an expression, which are
// read in place, or evaluated into a temporary first.
//
// A RowMajor tensor has the axes of a view; a ColMajor tensor carries the same memory with its axes
// reversed: q is [batch, heads, tokens, key_dim] in one, [key_dim, tokens, heads, batch] in the
// other, and mix, whose rows are query blocks, [key blocks, query blocks, heads].
//
// A tensor of Eigen::bfloat16 or Eigen::half is read and written as a view of the core's type of
// the same representation.
#pragma once

#include <mhla/core/overlap.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/workspace.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

MHLA_NAMESPACE_BEGIN

namespace scalar_traits {
template <>
struct Accumulator<Eigen::bfloat16> {
  using type = float;
};
template <>
struct Accumulator<Eigen::half> {
  using type = float;
};
}  // namespace scalar_traits

namespace eigen {

/// `To` where X is `From`, and const if X is; X itself where it is anything else.
template <class X, class From, class To>
using Replaced = std::conditional_t<std::is_same_v<X, From>, To,
                                    std::conditional_t<std::is_same_v<X, const From>, const To, X>>;

/// The core's type for elements of Scalar: its own for Eigen's 16-bit scalars, Scalar itself for
/// every other.
template <class Scalar>
using Storage = Replaced<Replaced<Scalar, Eigen::bfloat16, BFloat16>, Eigen::half, Half>;

/// The inverse: the scalar of an Eigen tensor with a view's elements.
template <class T>
using TensorScalar = Replaced<Replaced<T, BFloat16, Eigen::bfloat16>, Half, Eigen::half>;

/// Eigen::bfloat16 or Eigen::half.
template <class T>
concept SixteenBitScalar = std::is_same_v<T, Eigen::bfloat16> || std::is_same_v<T, Eigen::half>;

/// An Eigen scalar's memory as elements of the core. Both types are the same 16 bits, whatever
/// Eigen makes of them internally (on some machines an __fp16), and ours may alias any other: see
/// core/scalar.hpp.
template <class Scalar>
Storage<Scalar>* storage(Scalar* data) {
  if constexpr (SixteenBitScalar<std::remove_const_t<Scalar>>) {
    static_assert(sizeof(Scalar) == sizeof(Storage<Scalar>));
    static_assert(alignof(Scalar) == alignof(Storage<Scalar>));
    static_assert(std::is_trivially_copyable_v<Scalar> && std::is_standard_layout_v<Scalar>);
    return reinterpret_cast<Storage<Scalar>*>(data);
  } else {
    return data;
  }
}

}  // namespace eigen

/// A view of Eigen::bfloat16 or Eigen::half as one of BFloat16 or Half, for forward_into,
/// backward_into and a Decoder; any other view unchanged. Nothing is copied.
/// \code
/// const Eigen::Tensor<Eigen::half, 4, Eigen::RowMajor> h(batch, heads, tokens, key_dim);
/// const auto stored =
///     mhla::storage_view(mhla::make_view(h.data(), batch, heads, tokens, key_dim));
/// \endcode
/// \ingroup views
template <class T, int Rank>
TensorView<eigen::Storage<T>, Rank> storage_view(const TensorView<T, Rank>& view) {
  return view.with_data(eigen::storage(view.data));
}

/// A tensor of Eigen's Tensor module, a map of one, or a lazy expression of them.
/// \ingroup attention
template <class X>
concept EigenTensor = std::is_base_of_v<Eigen::TensorBase<X, Eigen::ReadOnlyAccessors>, X>;

namespace eigen {

/// The layout of a view, which has none of its own and takes that of the other operands.
inline constexpr int any_layout = -1;

/// What an expression needs to know of an operand's type. Scalar is Eigen's name for its elements,
/// Storage<Scalar> the core's.
template <class X>
struct TensorTraits;

template <EigenTensor X>
struct TensorTraits<X> {
  using Scalar = std::remove_const_t<typename X::Scalar>;
  using Index = typename Eigen::internal::traits<X>::Index;
  using Nested = typename X::Nested;  // a reference to a tensor, a copy of an expression
  static constexpr int rank = Eigen::internal::traits<X>::NumDimensions;
  static constexpr int layout = Eigen::internal::traits<X>::Layout;
};

template <class T, int Rank>
struct TensorTraits<TensorView<T, Rank>> {
  using Scalar = TensorScalar<std::remove_const_t<T>>;
  using Index = mhla::Index;
  using Nested = TensorView<T, Rank>;
  static constexpr int rank = Rank;
  static constexpr int layout = any_layout;
};

/// Whether expressions of this type are tensors or maps: dense memory that is read and written
/// without Eigen's evaluation, which is slow to compile.
template <class X>
inline constexpr bool is_dense_memory = false;
template <class T, int Rank, int Options, class Index>
inline constexpr bool is_dense_memory<Eigen::Tensor<T, Rank, Options, Index>> = true;
template <class T, class Sizes, int Options, class Index>
inline constexpr bool is_dense_memory<Eigen::TensorFixedSize<T, Sizes, Options, Index>> = true;
template <class X, int Options, template <class> class Pointer>
inline constexpr bool is_dense_memory<Eigen::TensorMap<X, Options, Pointer>> = true;

/// The view of a dense tensor at `data`, whose Eigen dimensions are `dimensions`.
template <int Layout, int Rank, class T, class Dimensions>
TensorView<Storage<T>, Rank> dense_view(T* data, const Dimensions& dimensions) {
  const Eigen::DSizes<Index, Rank> sizes(dimensions);
  TensorView<Storage<T>, Rank> view;
  view.data = storage(data);
  Index stride = 1;
  for (int axis = Rank - 1; axis >= 0; --axis) {
    const int at = Layout == int(Eigen::RowMajor) ? axis : Rank - 1 - axis;
    view.extent[axis] = sizes[static_cast<std::size_t>(at)];
    view.stride[axis] = stride;
    stride *= view.extent[axis];
  }
  return view;
}

/// The inverse: the Eigen dimensions of a view's extents.
template <int Layout, class EigenIndex, class T, int Rank>
Eigen::DSizes<EigenIndex, Rank> eigen_dimensions(const TensorView<T, Rank>& view) {
  Eigen::DSizes<EigenIndex, Rank> dimensions;
  for (int axis = 0; axis < Rank; ++axis) {
    const int at = Layout == int(Eigen::RowMajor) ? axis : Rank - 1 - axis;
    dimensions[static_cast<std::size_t>(at)] = static_cast<EigenIndex>(view.extent[axis]);
  }
  return dimensions;
}

/// The permutation that tokens_first gives to Eigen's shuffle. Its own type, so that such a shuffle
/// is recognized by type, and its tensor is read or written in place.
struct TokensFirstAxes {
  constexpr int operator[](std::ptrdiff_t axis) const {
    constexpr int axes[] = {0, 2, 1, 3};
    return axes[axis];
  }
};

/// A tensor's or a map's own memory as a view, const where the tensor is.
template <class X>
requires EigenTensor<std::remove_const_t<X>> && requires(X& tensor) { tensor.data(); }
auto memory_view(X& tensor) {
  using Traits = TensorTraits<std::remove_const_t<X>>;
  return dense_view<Traits::layout, Traits::rank>(tensor.data(), tensor.dimensions());
}
template <class X>
auto memory_view(const Eigen::TensorShufflingOp<const TokensFirstAxes, X>& shuffled) {
  return tokens_first(memory_view(const_cast<X&>(shuffled.expression())));
}
template <class T, int Rank>
TensorView<Storage<T>, Rank> memory_view(const TensorView<T, Rank>& view) {
  return storage_view(view);
}

/// A tensor, a map, tokens_first of one, or a view: nothing but an address and extents.
template <class X>
inline constexpr bool is_plain = requires(X& tensor) {
  memory_view(tensor);
};

}  // namespace eigen

/// Reads a tensor [batch, tokens, heads, dim] as [batch, heads, tokens, dim], as an operand of an
/// attention or as its destination. It is Eigen's shuffle of axes 1 and 2 and composes like it; an
/// attention and mhla::gradients use the tensor's own memory instead of a shuffled copy.
/// \code
/// mhla::tokens_first(y_t).device(pool) = attention(mhla::tokens_first(q_t), k, v, mix);
/// \endcode
/// \ingroup attention
template <class X>
requires EigenTensor<std::remove_cvref_t<X>>
decltype(auto) tokens_first(X&& tensor) {
  static_assert(eigen::TensorTraits<std::remove_cvref_t<X>>::rank == 4,
                "mhla: tokens_first takes a tensor of rank 4, [batch, tokens, heads, dim]");
  return tensor.shuffle(eigen::TokensFirstAxes{});
}

namespace eigen {

/// The Eigen type of an expression: for a segment, which derives from a block, the block.
template <class Dense>
Dense dense_type(const Eigen::DenseBase<Dense>&);

}  // namespace eigen

/// \addtogroup views
/// \{

/// An Eigen::Matrix, Vector or Array, a Map, a Ref, a block or segment of one, or a
/// lazy expression of them.
template <class X>
concept EigenMatrix = requires(const std::remove_cvref_t<X>& matrix) {
  eigen::dense_type(matrix);
};

namespace eigen {

/// The matrix' own memory, [rows, cols]. Const where the matrix is.
template <EigenMatrix X>
auto matrix_memory(X&& matrix) {
  using Matrix = decltype(dense_type(matrix));
  constexpr bool in_memory = (Matrix::Flags & Eigen::DirectAccessBit) != 0;
  static_assert(in_memory,
                "mhla: heads_view and mix_view read a matrix where it lies: an Eigen::Matrix, a "
                "Map, a Ref or a block of one; give an expression a matrix of its own first");
  static_assert(
      std::is_lvalue_reference_v<X> || !std::is_base_of_v<Eigen::PlainObjectBase<Matrix>, Matrix>,
      "mhla: heads_view and mix_view do not own memory, and this matrix is a temporary");
  if constexpr (in_memory) {
    auto* const data = storage(matrix.data());
    return TensorView<std::remove_pointer_t<decltype(data)>, 2>{
        data, {matrix.rows(), matrix.cols()}, {matrix.rowStride(), matrix.colStride()}};
  } else {
    return TensorView<typename Matrix::Scalar, 2>{};
  }
}

}  // namespace eigen

/// The heads of a matrix [batch * tokens, heads * dim] as [batch, heads, tokens, dim], RowMajor or
/// ColMajor: nothing is copied. Its columns may be some of a wider matrix'. A vector, of either
/// orientation, is the features of one token:
/// \code
/// auto q = mhla::heads_view(qkv.leftCols(width), heads);
/// auto k = mhla::heads_view(qkv.middleCols(width, width), heads);
/// auto q_of_token = mhla::heads_view(qkv_of_token.head(width), heads);
/// \endcode
/// \throws ShapeError where rows or columns cannot be divided evenly.
template <EigenMatrix X>
auto heads_view(X&& matrix, Index heads, Index batch = 1) {
  auto memory = eigen::matrix_memory(std::forward<X>(matrix));
  if (decltype(eigen::dense_type(matrix))::ColsAtCompileTime == 1) {  // a column: one token
    (std::swap)(memory.extent[0], memory.extent[1]);
    (std::swap)(memory.stride[0], memory.stride[1]);
  }
  const auto [rows, columns] = memory.extent;
  if (heads < 1 || columns % heads != 0)
    throw ShapeError(
        {"mhla: heads_view: ", columns, " columns do not make ", heads, " heads of equal dim"});
  if (batch < 1 || rows % batch != 0)
    throw ShapeError(
        {"mhla: heads_view: ", rows, " rows do not make ", batch, " sequences of equal length"});
  const auto [row, column] = memory.stride;
  const Index tokens = rows / batch;
  const Index dim = columns / heads;
  return TensorView<typename decltype(memory)::Element, 4>{
      memory.data, {batch, heads, tokens, dim}, {tokens * row, dim * column, row, column}};
}

/// A matrix as mix [query blocks, key blocks], or its gradient: one for all heads.
template <EigenMatrix X>
auto mix_view(X&& matrix) {
  return eigen::matrix_memory(std::forward<X>(matrix));
}

/// \cond INTERNAL
MHLA_NO_SUCH_CALL(AnyView mix_view,
                  "mhla: mix_view(matrix) takes an Eigen matrix: of a pointer or a std::vector "
                  "write mhla::make_view(mix.data(), blocks, blocks)")
/// \endcond

/// \}

/// What attention(...) takes: Eigen's tensors, maps and expressions, and mhla::TensorView.
/// \ingroup attention
template <class X>
concept TensorOperand = requires {
  eigen::TensorTraits<X>::rank;
};

namespace eigen {

/// An operand of an expression. The extents of its view are right from the start, so that a call is
/// checked before anything is evaluated; `evaluate()` then gives the view its memory. The temporary
/// belongs to this object, because Eigen's own forced evaluation leaks if something throws. The
/// expression must outlive the object.
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

/// The four operands of a call.
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
