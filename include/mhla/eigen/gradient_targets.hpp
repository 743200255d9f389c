// SPDX-License-Identifier: MIT
// What a gradient can be written to, also if it shares memory with an operand.
#pragma once

#include <concepts>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/eigen/storage.hpp>
#include <mhla/eigen/tensor_views.hpp>
#include <type_traits>
#include <unsupported/Eigen/CXX11/Tensor>

MHLA_NAMESPACE_BEGIN

namespace eigen {

template <class T, int Rank>
TensorView<Storage<T>, Rank> target_view(const TensorView<T, Rank>& view) {
  return storage_view(view);
}

template <class X>
requires EigenTensor<std::remove_const_t<X>> && requires(X& tensor) { tensor.data(); }
auto target_view(X& tensor) {
  using Traits = TensorTraits<std::remove_const_t<X>>;
  return dense_view<Traits::layout, Traits::rank>(tensor.data(), tensor.dimensions());
}

template <class X>
auto target_view(const Eigen::TensorShufflingOp<const TokensFirstAxes, X>& shuffled) {
  return tokens_first(target_view(const_cast<X&>(shuffled.expression())));
}

/// A tensor, a map, tokens_first of one, a view, or mhla::skip.
template <class X>
concept GradientTarget = std::same_as<std::remove_const_t<X>, Skip> || requires(X& target) {
  target_view(target);
};

/// The target of the gradient of a tensor stored as T in `Layout`, Rank 4, or of mix, Rank 3.
template <class T, int Rank, int Layout, class Target>
GradientView<T, Rank> gradient_view(Target& target) {
  if constexpr (std::same_as<std::remove_const_t<Target>, Skip>) {
    return skip;
  } else {
    using View = decltype(target_view(target));
    using Element = typename View::Element;
    constexpr int layout = TensorTraits<std::remove_const_t<Target>>::layout;
    constexpr bool same_scalar = std::same_as<std::remove_const_t<Element>, T>;
    constexpr bool same_layout = layout == any_layout || layout == Layout;
    constexpr bool same_rank = View::rank == Rank || (Rank == 3 && View::rank == 2);
    static_assert(!std::is_const_v<Element>,
                  "mhla: gradients(dq, dk, dv, dmix) are written to, and one of them is const");
    static_assert(
        same_scalar,
        "mhla: gradients(dq, dk, dv, dmix) must have the scalar types of q, k, v and mix");
    static_assert(same_layout,
                  "mhla: gradients(dq, dk, dv, dmix) must have the layout of q, k, v and mix");
    static_assert(same_rank,
                  "mhla: dq, dk and dv must have rank 4, and dmix rank 3, [1 | heads, query "
                  "blocks, key blocks], or rank 2, [query blocks, key blocks]");
    if constexpr (!std::is_const_v<Element> && same_scalar && same_layout && same_rank) {
      return target_view(target);
    } else {
      return skip;  // so that no other error follows
    }
  }
}

/// Replaces a gradient while an operand still occupies the memory it will be written to.
template <class T, int Rank>
class StandIn {
 public:
  MHLA_ONCE_A_CALL void take_place_of(GradientView<T, Rank>& gradient, Update update) {
    target_ = gradient.view;
    memory_ = Workspace(checked_mul(target_.size(), static_cast<Index>(sizeof(T))));
    constexpr int layout = Eigen::RowMajor;
    stand_in_ = dense_view<layout, Rank>(reinterpret_cast<T*>(memory_.data()),
                                         eigen_dimensions<layout, Index>(target_));
    if (update == Update::accumulate) copy(target_, stand_in_);
    gradient.view = stand_in_;
  }

  /// Copies the gradient to its destination, once the operand is no longer needed.
  void hand_over() const { copy(stand_in_, target_); }

 private:
  MHLA_ONCE_A_CALL static void copy(const TensorView<T, Rank>& from,
                                    const TensorView<T, Rank>& to) {
    if (from.data == nullptr) return;
    for (Index n = 0; n < from.size(); ++n) {
      Index rest = n;
      Index source = 0;
      Index destination = 0;
      for (int axis = Rank - 1; axis >= 0; --axis) {
        const Index i = rest % from.extent[axis];
        rest /= from.extent[axis];
        source += i * from.stride[axis];
        destination += i * to.stride[axis];
      }
      to.data[destination] = from.data[source];
    }
  }

  TensorView<T, Rank> target_;
  TensorView<T, Rank> stand_in_;
  Workspace memory_;
};

}  // namespace eigen

MHLA_NAMESPACE_END
