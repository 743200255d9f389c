// SPDX-License-Identifier: MIT
// Compile errors for wrong arguments of forward_into, backward_into, plan, explain and the
// functions for sizes, on either backend: each is one sentence, which argument is wrong or how to
// call.
#pragma once

#include <mhla/core/executor.hpp>
#include <mhla/policy/variant.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
class CudaDevice;

namespace arguments {

struct NoView {
  using Element = void;
  static constexpr int rank = 0;
};
template <class T, int Rank>
TensorView<T, Rank> view_of(const TensorView<T, Rank>& view);
NoView view_of(AnyArgument);
template <class X>
using ViewOf = decltype(view_of(std::declval<const X&>()));
template <class X>
concept View = !std::same_as<ViewOf<X>, NoView>;
template <class X>
using Element = typename ViewOf<X>::Element;
template <class X>
using Scalar = std::remove_const_t<Element<X>>;
template <class X>
inline constexpr int rank = ViewOf<X>::rank;

// Whether all are views of T, or convert to one; some do only if not const.
template <class T, class Mix, class... Tensors>
inline constexpr bool are_of = false;
template <StorageScalar T, class Mix, class... Tensors>
inline constexpr bool are_of<T, Mix, Tensors...> =
    std::is_convertible_v<Mix&, TensorView<const Accumulator<T>, 3>> &&
    (std::is_convertible_v<Tensors&, TensorView<const T, 4>> && ...);

template <class E>
concept Runs = Executor<E> || std::is_convertible_v<const E*, const CudaDevice*>;

// Says which argument is wrong, the first of several. The others must match the scalar of `From`,
// which is y or q.
template <class V, class E, class From, class Mix, class... Tensors>
void explain() {
  constexpr bool views = View<From> && View<Mix> && (View<Tensors> && ...);
  constexpr bool ranks = rank<From> == 4 && ((rank<Tensors> == 4) && ...);
  constexpr bool mix_rank = rank<Mix> == 3 || rank<Mix> == 2;
  constexpr bool scalars = (std::same_as<Scalar<Tensors>, Scalar<From>> && ...);
  constexpr bool accumulates = std::same_as<Scalar<Mix>, Accumulator<Scalar<From>>>;
  constexpr int wrong = !AttentionVariant<V>             ? 1
                        : !Runs<E>                       ? 2
                        : !views                         ? 3
                        : !ranks                         ? 4
                        : !mix_rank                      ? 5
                        : !StorageScalar<Scalar<From>>   ? 6
                        : !scalars                       ? 7
                        : !accumulates                   ? 8
                        : std::is_const_v<Element<From>> ? 9
                                                         : 0;
  static_assert(wrong != 1,
                "mhla: the 1st argument of a call is its attention: an mhla::Attention, or "
                "mhla::packed or mhla::padded of one");
  static_assert(wrong != 2,
                "mhla: the 2nd argument of a call runs it: an mhla::CudaDevice, or an executor "
                "such as mhla::SerialExecutor (not a pointer to one), with num_slots() and "
                "parallel_for(tasks, f) that are const");
  static_assert(wrong != 3,
                "mhla: forward_into and backward_into take mhla::TensorView: for a pointer, a "
                "std::vector or an Eigen::Tensor write mhla::make_view(x.data(), batch, heads, "
                "tokens, dim), for rows [tokens, heads * dim] mhla::heads_view, for an "
                "Eigen::Matrix as mix mhla::mix_view");
  static_assert(wrong != 4,
                "mhla: q, k, v, y and dy must have rank 4: [batch, heads, tokens, dim]");
  static_assert(wrong != 5,
                "mhla: mix must have rank 3, [1 | heads, query blocks, key blocks], or rank 2, "
                "[query blocks, key blocks]");
  static_assert(wrong != 6,
                "mhla: views for forward_into and backward_into have elements of float, double, "
                "another floating-point type, mhla::BFloat16 or mhla::Half; mhla::storage_view "
                "makes these of Eigen's");
  static_assert(wrong != 7, "mhla: q, k, v, y and dy must have one scalar type");
  static_assert(wrong != 8,
                "mhla: mix must have the type that q is accumulated in: float for float, "
                "mhla::BFloat16 and mhla::Half, double for double");
  static_assert(wrong != 9, "mhla: y is written to, and its elements are const");
}

template <class... X>
Index explain_size() {
  static_assert(no_such_call<X...>,
                "mhla: a call's size is forward_workspace_size<T>(attention, shape, executor), or "
                "backward_workspace_size: T is the scalar of its tensors, shape an mhla::Shape, as "
                "of mhla::shape_of(q, k, v, mix), and executor the call's, or an mhla::CudaDevice; "
                "forward_state_size(attention, shape) has no T, and an mhla::CudaDevice at most");
  return 0;
}

// Takes {.query = dq, ...}, which clang does not convert to an AnyArgument.
struct NamedGradients {
  AnyArgument query, key, value, mix;
};

}  // namespace arguments

template <class V, class E, class Q, class K, class Value, class Mix, class Y>
requires(!(AttentionVariant<V> && arguments::Runs<E> &&
           arguments::are_of<arguments::Element<Y>, Mix, Q, K,
                             Value>)) void forward_into(const V&, const E&, const Q&, const K&,
                                                        const Value&, const Mix&, const Y&,
                                                        AnyArgument = {}, AnyArgument = {}) {
  arguments::explain<V, E, Y, Mix, Q, K, Value>();
}
MHLA_NO_SUCH_CALL(void forward_into,
                  "mhla: call forward_into(attention, executor, q, k, v, mix, y, workspace, save): "
                  "workspace is an mhla::Workspace or a WorkspaceView and needed on a CudaDevice "
                  "alone, save points to a ForwardState of mix's type and may be left out")

template <class V, class E, class Q, class K, class Value, class Mix, class DY>
requires(!(AttentionVariant<V> && arguments::Runs<E> &&
           arguments::are_of<arguments::Scalar<Q>, Mix, Q, K, Value,
                             DY>)) void backward_into(const V&, const E&, const Q&, const K&,
                                                      const Value&, const Mix&, const DY&,
                                                      AnyArgument, AnyArgument = {},
                                                      AnyArgument = {}, AnyArgument = {}) {
  arguments::explain<V, E, Q, Mix, K, Value, DY>();
}
MHLA_NO_SUCH_CALL(
    void backward_into,
    "mhla: call backward_into(attention, executor, q, k, v, mix, dy, {dq, dk, dv, "
    "dmix}, update, workspace, saved), with mhla::skip for a gradient that is not "
    "wanted: workspace is an mhla::Workspace or a WorkspaceView and, as update, needed "
    "on a CudaDevice alone, saved points to a ForwardState of mix's type")
template <class Never = void>
void backward_into(AnyArgument, AnyArgument, AnyArgument, AnyArgument, AnyArgument, AnyArgument,
                   AnyArgument, const arguments::NamedGradients&, AnyArgument = {},
                   AnyArgument = {}, AnyArgument = {}) {
  static_assert(no_such_call<Never>,
                "mhla: gradients are four, in braces and without names: {dq, dk, dv, dmix}; write "
                "mhla::skip in place of one that is not wanted");
}

MHLA_ANY_CALL(Index forward_workspace_size, { return arguments::explain_size<Given...>(); })
MHLA_ANY_CALL(Index backward_workspace_size, { return arguments::explain_size<Given...>(); })
MHLA_ANY_CALL(Index forward_state_size, { return arguments::explain_size<Given...>(); })
MHLA_NO_SUCH_CALL(
    int plan,
    "mhla: call plan<T>(attention, shape, executor), or with an mhla::CudaDevice for "
    "executor and, for calls with a CudaForwardState, mhla::StateUse::given: T is the "
    "scalar of the tensors, shape an mhla::Shape, as of mhla::shape_of(q, k, v, mix)")
MHLA_NO_SUCH_CALL(
    std::string explain,
    "mhla: call explain<T>(attention, shape, executor), or with an mhla::CudaDevice, or "
    "explain<T>(attention, shape, {.queries = shares}) with an mhla::SplitCall: T is "
    "the scalar of the tensors, shape an mhla::Shape")
/// \endcond

MHLA_NAMESPACE_END
