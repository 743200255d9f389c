// SPDX-License-Identifier: MIT
// Eigen's tensors as views, and tokens_first for the other common axis order.
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

/// \addtogroup views
/// \{

/// A view of Eigen::bfloat16 or Eigen::half as one of BFloat16 or Half, for forward_into,
/// backward_into and a Decoder; any other view unchanged. Nothing is copied.
/// \code
/// const Eigen::Tensor<Eigen::half, 4, Eigen::RowMajor> h(batch, heads, tokens, key_dim);
/// const auto stored =
///     mhla::storage_view(mhla::make_view(h.data(), batch, heads, tokens, key_dim));
/// \endcode
template <class T, int Rank>
TensorView<eigen::Storage<T>, Rank> storage_view(const TensorView<T, Rank>& view) {
  TensorView<eigen::Storage<T>, Rank> stored;
  stored.data = eigen::storage(view.data);
  for (int axis = 0; axis < Rank; ++axis) {
    stored.extent[axis] = view.extent[axis];
    stored.stride[axis] = view.stride[axis];
  }
  return stored;
}

/// \}

/// \addtogroup attention
/// \{

/// A tensor of Eigen's Tensor module, a map of one, or a lazy expression of them.
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
template <class X>
requires EigenTensor<std::remove_cvref_t<X>>
decltype(auto) tokens_first(X&& tensor) {
  static_assert(eigen::TensorTraits<std::remove_cvref_t<X>>::rank == 4,
                "mhla: tokens_first takes a tensor of rank 4, [batch, tokens, heads, dim]");
  return tensor.shuffle(eigen::TokensFirstAxes{});
}

/// \}

MHLA_NAMESPACE_END
