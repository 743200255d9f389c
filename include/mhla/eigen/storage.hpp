// SPDX-License-Identifier: MIT
// Eigen::bfloat16 and Eigen::half, and the core's types of the same representation: a tensor of one
// is read and written as a view of the other.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <type_traits>
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

template <class Scalar>
struct StorageOf {
  using type = Scalar;
};
template <>
struct StorageOf<Eigen::bfloat16> {
  using type = BFloat16;
};
template <>
struct StorageOf<Eigen::half> {
  using type = Half;
};
template <class Scalar>
struct StorageOf<const Scalar> {
  using type = const typename StorageOf<Scalar>::type;
};

/// The core's type for elements of Scalar: its own for Eigen's 16-bit scalars, Scalar itself for
/// every other.
template <class Scalar>
using Storage = typename StorageOf<Scalar>::type;

template <class T>
struct TensorScalarOf {
  using type = T;
};
template <>
struct TensorScalarOf<BFloat16> {
  using type = Eigen::bfloat16;
};
template <>
struct TensorScalarOf<Half> {
  using type = Eigen::half;
};

/// The inverse: the scalar of an Eigen tensor with a view's elements.
template <class T>
using TensorScalar = typename TensorScalarOf<T>::type;

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

MHLA_NAMESPACE_END
