// SPDX-License-Identifier: MIT
// Non-owning strided views: what callers hand to the library, and its layers to each other.
#pragma once

#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup views
/// \{

/// A contiguous row of `size` elements, borrowed. (std::span members need compiler flags in
/// kernels.)
template <class T>
struct Span {
  T* data = nullptr;  ///< the first element
  Index size = 0;     ///< in elements

  /// Element i, unchecked.
  MHLA_HOST_DEVICE constexpr T& operator[](Index i) const { return data[i]; }
  /// The first element.
  MHLA_HOST_DEVICE constexpr T* begin() const { return data; }
  /// One past the last element.
  MHLA_HOST_DEVICE constexpr T* end() const { return data + size; }
  /// Adds const.
  // A template, so that it does not exist for const T, where it would convert to itself.
  template <class U, class = std::enable_if_t<std::is_same_v<U, const T> && !std::is_const_v<T>>>
  MHLA_HOST_DEVICE constexpr operator Span<U>() const {  // NOLINT: adds const, loses nothing
    return {data, size};
  }
};

/// A borrowed tensor: element (i0, i1, ...) is data[i0 * stride[0] + i1 * stride[1] + ...]. Strides
/// count elements and may be negative, and 0 on operands (a broadcast axis).
///
/// q, k: [batch, heads, tokens, key_dim]; v, y: [batch, heads, tokens, value_dim];
/// mix: [1 | heads | batch * heads, query blocks, key blocks].
template <class T, int Rank>
struct TensorView {
  static_assert(Rank > 0, "mhla: a TensorView<T, Rank> has at least one axis");
  using Element = T;                         ///< const for an operand
  static constexpr int rank = Rank;          ///< number of axes
  static constexpr std::size_t axes = Rank;  ///< the same, for arrays

  T* data = nullptr;        ///< element (0, 0, ...)
  Index extent[axes] = {};  ///< elements along each axis
  Index stride[axes] = {};  ///< elements from one index of an axis to the next

  /// The element at one index per axis, unchecked.
  template <class... Indices>
  MHLA_HOST_DEVICE constexpr T& operator()(Indices... index) const {
    static_assert(sizeof...(Indices) == Rank, "mhla: a view takes one index per axis");
    const Index at[axes] = {static_cast<Index>(index)...};
    Index offset = 0;
    for (int axis = 0; axis < Rank; ++axis) offset += at[axis] * stride[axis];
    return data[offset];
  }

  /// Element `i` in row-major order.
  MHLA_HOST_DEVICE constexpr T& element(Index i) const {
    Index offset = 0;
    for (int axis = Rank - 1; axis >= 0; --axis) {
      offset += i % extent[axis] * stride[axis];
      i /= extent[axis];
    }
    return data[offset];
  }

  /// Number of elements.
  MHLA_HOST_DEVICE constexpr Index size() const {
    Index count = 1;
    for (int axis = 0; axis < Rank; ++axis) count *= extent[axis];
    return count;
  }

  /// Adds const.
  template <class U, class = std::enable_if_t<std::is_same_v<U, const T> && !std::is_const_v<T>>>
  MHLA_HOST_DEVICE constexpr operator TensorView<U, Rank>() const {  // NOLINT: adds const only
    return with_data<U>(data);
  }

  /// A mix [query blocks, key blocks] as [1, query blocks, key blocks]: one matrix for all heads.
  template <class U,
            class = std::enable_if_t<
                Rank == 2 && std::is_same_v<std::remove_const_t<U>, std::remove_const_t<T>> &&
                std::is_convertible_v<T*, U*>>>
  MHLA_HOST_DEVICE constexpr operator TensorView<U, Rank + 1>() const {  // NOLINT: adds an axis
    return {data, {1, extent[0], extent[1]}, {0, stride[0], stride[1]}};
  }

  /// \cond INTERNAL
  // A view of the same extents and strides at another address.
  template <class U>
  MHLA_HOST_DEVICE constexpr TensorView<U, Rank> with_data(U* address) const {
    TensorView<U, Rank> view;
    view.data = address;
    for (int axis = 0; axis < Rank; ++axis) {
      view.extent[axis] = extent[axis];
      view.stride[axis] = stride[axis];
    }
    return view;
  }
  // Says what to write in place of `view = attention(q, k, v, mix)`.
  template <class X, class = std::enable_if_t<!std::is_convertible_v<const X&, TensorView>>>
  void operator=(const X&) const {  // NOLINT: there is nothing to go on with
    static_assert(sizeof(X) == 0,
                  "mhla: nothing is written through `view = ...`: call mhla::forward_into("
                  "attention, executor, q, k, v, mix, view, workspace), or assign to an "
                  "Eigen::TensorMap of the view's memory");
  }
  /// \endcond
};

/// An operand that a call only reads. No template argument is deduced from it, so that callers can
/// pass anything that converts to the view.
template <class T, int Rank>
using InputView = std::type_identity_t<TensorView<const T, Rank>>;

/// A view of `data` in row-major order: the last axis is contiguous. Extents are checked by the
/// calls that take the view, not here.
/// \code
/// const auto view = mhla::make_view(q.data(), batch, heads, tokens, key_dim);
/// \endcode
template <class T, class... Extents>
MHLA_HOST_DEVICE constexpr TensorView<T, int(sizeof...(Extents))> make_view(T* data,
                                                                            Extents... extents) {
  static_assert(sizeof...(Extents) > 0 && (std::is_convertible_v<Extents, Index> && ...),
                "mhla: make_view(data, extents...) takes a pointer and an integer for each axis");
  constexpr int rank = int(sizeof...(Extents));
  TensorView<T, rank> view{data, {static_cast<Index>(extents)...}, {}};
  std::size_t stride = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    view.stride[axis] = static_cast<Index>(stride);
    stride *= static_cast<std::size_t>(view.extent[axis]);
  }
  return view;
}

/// The heads of a matrix of tokens, as projections leave them: token t of sequence b is row
/// b * tokens + t, `row_stride` elements after the previous one (0: heads * dim), and begins with
/// `heads` times `dim` features. The view is [batch, heads, tokens, dim]; nothing is copied.
/// \code
/// // rows: a std::vector<float> of [tokens, 3 * heads * dim], q, k and v side by side
/// auto k = mhla::heads_view(rows.data() + heads * dim, tokens, heads, dim, 3 * heads * dim);
/// \endcode
template <class T>
MHLA_HOST_DEVICE constexpr TensorView<T, 4> heads_view(T* data, Index tokens, Index heads,
                                                       Index dim, Index row_stride = 0,
                                                       Index batch = 1) {
  if (row_stride == 0) row_stride = heads * dim;
  return {data, {batch, heads, tokens, dim}, {tokens * row_stride, dim, row_stride, 1}};
}

/// The order of q, k and v in a buffer; the last axis is contiguous, and nothing lies between.
enum class QkvOrder {
  tokens_first,  ///< [batch, tokens, 3, heads, dim]: a projection to 3 * heads * dim (GPT-2, timm)
  parts_first,   ///< [3, batch, heads, tokens, dim]: three tensors end to end
  heads_first    ///< [batch, tokens, heads, 3, dim]: q, k and v of each head together (Megatron-LM)
};

/// Views [batch, heads, tokens, dim].
template <class T>
struct QkvViews {
  TensorView<T, 4> q;  ///< [batch, heads, tokens, dim]
  TensorView<T, 4> k;  ///< likewise
  TensorView<T, 4> v;  ///< likewise
};

/// q, k and v, or their gradients, in the buffer `qkv`; nothing is copied.
/// \code
/// // rows: [tokens, 3 * heads * dim]
/// const auto [q_of_rows, k_of_rows, v_of_rows] = mhla::qkv_views(rows.data(), tokens, heads, dim);
/// \endcode
template <class T>
MHLA_HOST_DEVICE constexpr QkvViews<T> qkv_views(T* qkv, Index tokens, Index heads, Index dim,
                                                 Index batch = 1,
                                                 QkvOrder order = QkvOrder::tokens_first) {
  const Index width = heads * dim;
  if (order == QkvOrder::parts_first) {
    const Index part = batch * tokens * width;
    return {make_view(qkv, batch, heads, tokens, dim),
            make_view(qkv + part, batch, heads, tokens, dim),
            make_view(qkv + 2 * part, batch, heads, tokens, dim)};
  }
  const bool by_head = order == QkvOrder::heads_first;
  const Index next_part = by_head ? dim : width;
  const auto view = [&](T* data) -> TensorView<T, 4> {
    return {data,
            {batch, heads, tokens, dim},
            {tokens * 3 * width, by_head ? 3 * dim : dim, 3 * width, 1}};
  };
  return {view(qkv), view(qkv + next_part), view(qkv + 2 * next_part)};
}

/// A view [batch, tokens, heads, dim] as [batch, heads, tokens, dim]. Nothing is copied.
template <class T>
MHLA_HOST_DEVICE constexpr TensorView<T, 4> tokens_first(TensorView<T, 4> view) {
  return {view.data,
          {view.extent[0], view.extent[2], view.extent[1], view.extent[3]},
          {view.stride[0], view.stride[2], view.stride[1], view.stride[3]}};
}

/// \cond INTERNAL
// slice() without checks, also of a view that has no memory.
template <class T, int Rank>
MHLA_HOST_DEVICE constexpr TensorView<T, Rank> unchecked_slice(TensorView<T, Rank> view, int axis,
                                                               Index first, Index count) {
  if (view.data != nullptr) view.data += first * view.stride[axis];
  view.extent[axis] = count;
  return view;
}
/// \endcond

/// `count` indices of an axis, from `first` on: of [batch, heads, tokens, dim] some heads (axis 1),
/// as each thread of a pool takes them, or some tokens (axis 2).
/// \code
/// const auto heads_2_to_5 = mhla::slice(q_view, 1, 2, 4);
/// \endcode
/// \throws ShapeError if the view does not have them.
template <class T, int Rank>
TensorView<T, Rank> slice(const TensorView<T, Rank>& view, int axis, Index first, Index count) {
  if (axis < 0 || axis >= Rank)
    throw ShapeError({"mhla: slice: axis is ", axis, "; the view has axes 0 to ", Rank - 1});
  if (first < 0 || count < 0 || first > view.extent[axis] - count)
    throw ShapeError({"mhla: slice: [", first, ", ", first, " + ", count, ") of axis ", axis,
                      " exceeds its extent, ", view.extent[axis]});
  return unchecked_slice(view, axis, first, count);
}

/// \cond INTERNAL
using AnyView = TensorView<float, 4>;  // a comma would separate the macro's arguments
MHLA_ANY_CALL(constexpr AnyView make_view, {
  static_assert(no_such_call<Given...>,
                "mhla: make_view(data, extents...) takes a pointer and an integer for each axis: "
                "of a std::vector or an Eigen::Tensor write x.data()");
  return {};
})
MHLA_ANY_CALL(constexpr AnyView heads_view, {
  static_assert(no_such_call<Given...>,
                "mhla: call heads_view(data, tokens, heads, dim, row_stride = 0, batch = 1) with a "
                "pointer, as x.data() of a std::vector, or, after #include <mhla/attention.hpp>, "
                "heads_view(matrix, heads, batch = 1) with an Eigen matrix");
  return {};
})
MHLA_ANY_CALL(constexpr QkvViews<float> qkv_views, {
  static_assert(no_such_call<Given...>,
                "mhla: call qkv_views(data, tokens, heads, dim, batch = 1, order = "
                "mhla::QkvOrder::tokens_first) with a pointer, as x.data() of a std::vector");
  return {};
})
MHLA_NO_SUCH_CALL(AnyView slice,
                  "mhla: call slice(view, axis, first, count) with a view, as made by make_view, "
                  "heads_view or qkv_views, and three integers")
MHLA_ANY_CALL(constexpr AnyView tokens_first, {
  static_assert(no_such_call<Given...>,
                "mhla: tokens_first takes a view or an Eigen tensor of rank 4, [batch, tokens, "
                "heads, dim]");
  return {};
})
/// \endcond

/// \}

MHLA_NAMESPACE_END
