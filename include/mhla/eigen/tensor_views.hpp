// SPDX-License-Identifier: MIT
// Eigen's tensors as views, tokens_first for the other common axis order, and matrices: what the
// projections before and after an attention write and read.
//
// A RowMajor tensor has the axes of a view; a ColMajor tensor carries the same memory with its axes
// reversed: q is [batch, heads, tokens, key_dim] in one, [key_dim, tokens, heads, batch] in the
// other, and mix, whose rows are query blocks, [key blocks, query blocks, heads].
//
// A tensor of Eigen::bfloat16 or Eigen::half is read and written as a view of the core's type of
// the same representation.
#pragma once

#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
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

MHLA_NAMESPACE_END
