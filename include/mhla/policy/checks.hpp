// SPDX-License-Identifier: MIT
// The checks that every backend makes before it writes anything: views that fit each other and the
// variant, aligned addresses, and destinations that can be written.
#pragma once

#include <mhla/core/executor.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/overlap.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

class CudaDevice;

// Outside the templates below, so that the message is compiled once.
MHLA_ONCE_A_CALL inline void require_aligned(const void* data, std::size_t alignment,
                                             const char* name) {
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0)
    throw ShapeError({"mhla: ", name, ": the address is not a multiple of ", alignment,
                      ", the size of its elements"});
}

/// Throws if a non-empty tensor is not aligned to its elements.
template <class T, int Rank>
MHLA_ONCE_A_CALL void require_aligned(const TensorView<T, Rank>& tensor, const char* name) {
  if (tensor.size() > 0) require_aligned(tensor.data, alignof(T), name);
}

/// The memory that a call touches, piece by piece. Pieces are aligned to their elements: ShapeError
/// otherwise.
class Footprint {
 public:
  /// A tensor that the call writes or, if it is const, reads.
  template <class T, int Rank>
  MHLA_ONCE_A_CALL void add(const TensorView<T, Rank>& tensor, const char* name) {
    require_aligned(tensor, name);
    pieces_[count_++] = {overlap::strided(tensor), name, !std::is_const_v<T>};
  }

  /// Reads a tensor that is in host memory on any device.
  template <class T, int Rank>
  void reads_on_host(const TensorView<T, Rank>& tensor, const char* name) {
    add(tensor, name);
    pieces_[count_ - 1].on_host = true;
  }

  /// Calls visit(view, name) for every piece in the device's memory.
  template <class Visit>
  void for_each_on_device(const Visit& visit) const {
    for (int i = 0; i < count_; ++i)
      if (!pieces_[i].on_host) visit(pieces_[i].view, pieces_[i].name);
  }

  /// Throws ShapeError unless all results can be written: every element distinct, none shared with
  /// another piece.
  MHLA_ONCE_A_CALL void require_results() const {
    for (int i = 0; i < count_; ++i) {
      const auto& [view, name, is_result, on_host] = pieces_[i];
      if (!is_result) continue;
      if (!overlap::is_injective(view))
        throw ShapeError({"mhla: ", name,
                          ": the strides give two elements one address; a destination needs every "
                          "element to be its own"});
      if (const char* other = sharing(view, i))
        throw ShapeError({"mhla: ", name, ": shares memory with ", other,
                          "; a destination needs memory of its own"});
    }
  }

  /// Throws ShapeError, of scratch memory WorkspaceError, if a piece has elements but no address.
  /// (On a GPU the backend says so.)
  MHLA_ONCE_A_CALL void require_addresses() const {
    for (int i = 0; i < count_; ++i) {
      const auto& [view, name, is_result, on_host] = pieces_[i];
      if (view.size == 0 || view.data != nullptr) continue;
      if (i >= scratch_)
        throw WorkspaceError({"mhla: ", name, ": has ", view.size, " bytes but a null address"});
      throw ShapeError({"mhla: ", name, ": has ", view.size, " elements but a null address"});
    }
  }

  /// Throws WorkspaceError if `scratch` contains a byte of a piece; it then becomes a piece itself.
  MHLA_ONCE_A_CALL void require_scratch(Span<const std::byte> scratch, const char* name) {
    if (scratch_ > count_) scratch_ = count_;
    const TensorView<const std::byte, 1> bytes = make_view(scratch.data, scratch.size);
    if (const char* other = sharing(overlap::strided(bytes), -1))
      throw WorkspaceError({"mhla: ", name, ": shares memory with ", other,
                            "; a call overwrites it: give it memory of its own"});
    add(bytes, name);
  }

 private:
  struct Piece {
    overlap::Strided view;
    const char* name;
    bool is_result = false;
    bool on_host = false;
  };

  // The name of the first piece but `own` that shares memory with `view`, or null.
  MHLA_ONCE_A_CALL const char* sharing(const overlap::Strided& view, int own) const {
    for (int i = 0; i < count_; ++i)
      if (i != own && overlap::share_memory(view, pieces_[i].view)) return pieces_[i].name;
    return nullptr;
  }

  static constexpr int most = 16;
  Piece pieces_[most];
  int count_ = 0;
  int scratch_ = most;  // the first piece of scratch memory
};

/// Whether the feature map reads a borrowed matrix, as Favor does.
template <class V>
inline constexpr bool borrows_projection = requires(const V& attention) {
  require_aligned(attention.feature_map.projection, "");
};

template <class T>
MHLA_ONCE_A_CALL void add_operands(Footprint& footprint, const OperandViews<T>& operands) {
  footprint.add(operands.q, "q");
  footprint.add(operands.k, "k");
  footprint.add(operands.v, "v");
  footprint.add(operands.mix, "mix");
}

/// Throws unless results and scratch memory can be written: the workspace, and a forward state's
/// memory if it is the caller's.
template <class V>
MHLA_ONCE_A_CALL void require_apart(Footprint& footprint, const V& attention,
                                    WorkspaceView workspace, Span<const std::byte> state) {
  if constexpr (borrows_projection<V>)
    footprint.add(attention.feature_map.projection, "feature_map.projection");
  if constexpr (is_packed<V>)
    footprint.reads_on_host(make_view(attention.offsets.data, attention.offsets.size), "offsets");
  const auto [query_mask, key_mask] = masks_of(attention);
  if (query_mask.data != nullptr) footprint.add(query_mask, "masks.query");
  if (key_mask.data != nullptr) footprint.add(key_mask, "masks.key");
  footprint.require_results();
  footprint.require_scratch(workspace, "workspace");
  footprint.require_scratch(state, "state");
}

/// Throws ShapeError unless y can be written in a call of `shape` with these operands,
/// WorkspaceError if scratch memory shares a byte with a tensor; returns what it touches.
template <AttentionVariant V, class T>
MHLA_ONCE_A_CALL Footprint require_forward(const V& attention, const Shape& shape,
                                           const OperandViews<T>& operands,
                                           const TensorView<T, 4>& y, WorkspaceView workspace,
                                           Span<const std::byte> state) {
  require_extents(y, "y", shape.batch, shape.heads, shape.query_tokens, shape.value_dim,
                  "y is [batch, heads, query tokens, value_dim]");
  Footprint footprint;
  footprint.add(y, "y");
  add_operands(footprint, operands);
  require_apart(footprint, attention, workspace, state);
  return footprint;
}

/// Throws ShapeError unless the wanted gradients have the right extents; returns what they write.
template <class T>
MHLA_ONCE_A_CALL Footprint checked_gradients(const Shape& shape,
                                             const GradientViews<T>& gradients) {
  Footprint footprint;
  const auto add = [&](const GradientView<T, 4>& gradient, const char* name, Index heads,
                       Index tokens, Index dim, const char* rule) {
    if (!gradient.wanted) return;
    require_extents(gradient.view, name, shape.batch, heads, tokens, dim, rule);
    footprint.add(gradient.view, name);
  };
  add(gradients.query, "dq", shape.heads, shape.query_tokens, shape.key_dim,
      "dq has the shape of q");
  add(gradients.key, "dk", shape.kv_heads, shape.key_tokens, shape.key_dim,
      "dk has the shape of k");
  add(gradients.value, "dv", shape.kv_heads, shape.key_tokens, shape.value_dim,
      "dv has the shape of v");
  if (gradients.mix.wanted) {
    require_extents(gradients.mix.view, "dmix", shape.mix_heads, shape.mix_query_blocks,
                    shape.mix_key_blocks, "dmix has the shape of mix");
    footprint.add(gradients.mix.view, "dmix");
  }
  return footprint;
}

/// As require_forward, for the wanted gradients.
template <AttentionVariant V, class T>
MHLA_ONCE_A_CALL Footprint require_backward(const V& attention, const Shape& shape,
                                            const OperandViews<T>& operands,
                                            const TensorView<const T, 4>& dy,
                                            const GradientViews<T>& gradients,
                                            WorkspaceView workspace, Span<const std::byte> state) {
  require_extents(dy, "dy", shape.batch, shape.heads, shape.query_tokens, shape.value_dim,
                  "dy is [batch, heads, query tokens, value_dim]");
  Footprint footprint = checked_gradients(shape, gradients);
  footprint.add(dy, "dy");
  add_operands(footprint, operands);
  require_apart(footprint, attention, workspace, state);
  return footprint;
}

/// \cond INTERNAL
// Errors for arguments of forward_into and backward_into, of either backend.
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

// Takes {.query = dq, ...} too.
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
