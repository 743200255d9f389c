// SPDX-License-Identifier: MIT
// The checks that every backend makes before it writes anything: views that fit each other and the
// variant, aligned addresses, and destinations that can be written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/overlap.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/variant.hpp>
#include <string>
#include <type_traits>
#include <utility>

MHLA_NAMESPACE_BEGIN

// Outside the templates below, so that the message is compiled once.
MHLA_OUT_OF_LINE inline void require_aligned(const void* data, std::size_t alignment,
                                             const char* name) {
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0)
    throw ShapeError("mhla: ", name, ": the address is no multiple of ", alignment,
                     ", the size of its elements");
}

/// Throws if a non-empty tensor is not aligned to its elements.
template <class T, int Rank>
MHLA_OUT_OF_LINE void require_aligned(const TensorView<T, Rank>& tensor, const char* name) {
  if (tensor.size() > 0) require_aligned(tensor.data, alignof(T), name);
}

/// The memory that a call touches, piece by piece: first what it writes, then what it reads.
class Footprint {
 public:
  template <class T, int Rank>
  MHLA_OUT_OF_LINE void writes(const TensorView<T, Rank>& tensor, const char* name) {
    reads(tensor, name);
    results_ = count_;
  }
  template <class T, int Rank>
  MHLA_OUT_OF_LINE void reads(const TensorView<T, Rank>& tensor, const char* name) {
    pieces_[count_++] = {overlap::strided(tensor), name, false};
  }

  /// The same of what is in host memory on any device.
  template <class T, int Rank>
  void reads_on_host(const TensorView<T, Rank>& tensor, const char* name) {
    reads(tensor, name);
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
  MHLA_OUT_OF_LINE void require_results() const {
    for (int i = 0; i < results_; ++i) {
      const auto& [view, name, on_host] = pieces_[i];
      if (!overlap::is_injective(view))
        throw ShapeError("mhla: ", name,
                         ": the strides give two elements one address; a destination needs every "
                         "element to be its own");
      if (const char* other = sharing(view, i + 1))
        throw ShapeError("mhla: ", name, ": shares memory with ", other,
                         "; a destination needs memory of its own");
    }
  }

  /// Throws ShapeError, of scratch memory WorkspaceError, if a piece has elements but no address.
  /// (On a GPU the backend says so.)
  MHLA_OUT_OF_LINE void require_addresses() const {
    for (int i = 0; i < count_; ++i) {
      const auto& [view, name, on_host] = pieces_[i];
      if (view.size == 0 || view.data != nullptr) continue;
      if (i >= scratch_)
        throw WorkspaceError("mhla: ", name, ": has ", view.size, " bytes but a null address");
      throw ShapeError("mhla: ", name, ": has ", view.size, " elements but a null address");
    }
  }

  /// Throws WorkspaceError if `scratch` contains a byte of a piece; it then becomes a piece itself.
  MHLA_OUT_OF_LINE void require_scratch(WorkspaceView scratch, const char* name) {
    if (scratch_ > count_) scratch_ = count_;
    const TensorView<const std::byte, 1> bytes = make_view(scratch.data, scratch.size);
    if (const char* other = sharing(overlap::strided(bytes), 0))
      throw WorkspaceError("mhla: ", name, ": shares memory with ", other,
                           "; a call overwrites it: give it memory of its own");
    reads(bytes, name);
  }

 private:
  struct Piece {
    overlap::Strided view;
    const char* name;
    bool on_host;
  };

  // The name of the first piece, from `first` on, that shares memory with `view`, or null.
  const char* sharing(const overlap::Strided& view, int first) const {
    for (int i = first; i < count_; ++i)
      if (overlap::share_memory(view, pieces_[i].view)) return pieces_[i].name;
    return nullptr;
  }

  static constexpr int most = 16;
  Piece pieces_[most];
  int results_ = 0;
  int count_ = 0;
  int scratch_ = most;  // the first piece of scratch memory
};

/// Whether the feature map reads a borrowed matrix, as Favor does.
template <class V>
inline constexpr bool borrows_projection = requires(const V& attention) {
  require_aligned(attention.feature_map.projection, "");
};

/// The operands of a forward call; mix is in the accumulator type.
template <class T>
struct OperandViews {
  TensorView<const T, 4> q;
  TensorView<const T, 4> k;
  TensorView<const T, 4> v;
  TensorView<const Accumulator<T>, 3> mix;

  Shape shape() const { return shape_of(q, k, v, mix); }
};

/// Throws unless the elements of all operands, and of what the feature map borrows, are aligned.
template <class V, class T>
void require_aligned_operands(const V& attention, const OperandViews<T>& operands) {
  require_aligned(operands.q, "q");
  require_aligned(operands.k, "k");
  require_aligned(operands.v, "v");
  require_aligned(operands.mix, "mix");
  if constexpr (borrows_projection<V>)
    require_aligned(attention.feature_map.projection, "feature_map.projection");
}

/// Throws unless results and scratch memory can be written: the workspace, and a forward state's
/// memory if it is the caller's.
template <class V, class T>
void require_apart(Footprint& footprint, const V& attention, const OperandViews<T>& operands,
                   WorkspaceView workspace, WorkspaceView state) {
  footprint.reads(operands.q, "q");
  footprint.reads(operands.k, "k");
  footprint.reads(operands.v, "v");
  footprint.reads(operands.mix, "mix");
  if constexpr (borrows_projection<V>)
    footprint.reads(attention.feature_map.projection, "feature_map.projection");
  if constexpr (requires { attention.offsets; })
    footprint.reads_on_host(make_view(attention.offsets.data, attention.offsets.size), "offsets");
  if constexpr (requires { attention.masks; }) {  // of which one without data keeps every token
    const auto& [query, key] = attention.masks;
    if (query.data != nullptr) footprint.reads(query, "masks.query");
    if (key.data != nullptr) footprint.reads(key, "masks.key");
  }
  footprint.require_results();
  footprint.require_scratch(workspace, "workspace");
  footprint.require_scratch(state, "state");
}

/// Throws ShapeError unless y can be written in a call of `shape` with these operands,
/// WorkspaceError if scratch memory shares a byte with a tensor; returns what it touches.
template <AttentionVariant V, class T>
Footprint require_forward(const V& attention, const Shape& shape, const OperandViews<T>& operands,
                          const TensorView<T, 4>& y, WorkspaceView workspace, WorkspaceView state) {
  require_extents(y, "y", shape.batch, shape.heads, shape.query_tokens, shape.value_dim,
                  "y is [batch, heads, query tokens, value_dim]");
  require_aligned_operands(attention, operands);
  require_aligned(y, "y");
  Footprint footprint;
  footprint.writes(y, "y");
  require_apart(footprint, attention, operands, workspace, state);
  return footprint;
}

/// The same unless y = attention(q, k, v, mix) can be computed.
template <AttentionVariant V, class T>
Problem checked_forward(const V& attention, const OperandViews<T>& operands,
                        const TensorView<T, 4>& y, WorkspaceView workspace,
                        WorkspaceView state = {}) {
  const Shape shape = operands.shape();
  const Problem problem = checked_problem(attention, shape);
  require_forward(attention, shape, operands, y, workspace, state);
  return problem;
}

/// Throws ShapeError unless the wanted gradients have the right extents; returns what they write.
template <class T>
MHLA_OUT_OF_LINE Footprint checked_gradients(const Shape& shape,
                                             const GradientViews<T>& gradients) {
  Footprint footprint;
  const auto add = [&](const GradientView<T, 4>& gradient, const char* name, Index heads,
                       Index tokens, Index dim, const char* rule) {
    if (!gradient.wanted) return;
    require_extents(gradient.view, name, shape.batch, heads, tokens, dim, rule);
    require_aligned(gradient.view, name);
    footprint.writes(gradient.view, name);
  };
  add(gradients.query, "dq", shape.heads, shape.query_tokens, shape.key_dim,
      "dq has the shape of q");
  add(gradients.key, "dk", shape.kv_heads, shape.key_tokens, shape.key_dim,
      "dk has the shape of k");
  add(gradients.value, "dv", shape.kv_heads, shape.key_tokens, shape.value_dim,
      "dv has the shape of v");
  if (gradients.mix.wanted) {
    const auto& dmix = gradients.mix.view;
    constexpr const char* rule = "dmix has the shape of mix";
    require_extent("dmix", "heads", dmix.extent[0], shape.mix_heads, rule);
    require_extent("dmix", "query blocks", dmix.extent[1], shape.mix_query_blocks, rule);
    require_extent("dmix", "key blocks", dmix.extent[2], shape.mix_key_blocks, rule);
    require_aligned(dmix, "dmix");
    footprint.writes(dmix, "dmix");
  }
  return footprint;
}

/// As require_forward, for the wanted gradients.
template <AttentionVariant V, class T>
Footprint require_backward(const V& attention, const Shape& shape, const OperandViews<T>& operands,
                           const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                           WorkspaceView workspace, WorkspaceView state) {
  require_extents(dy, "dy", shape.batch, shape.heads, shape.query_tokens, shape.value_dim,
                  "dy is [batch, heads, query tokens, value_dim]");
  require_aligned_operands(attention, operands);
  require_aligned(dy, "dy");
  Footprint footprint = checked_gradients(shape, gradients);
  footprint.reads(dy, "dy");
  require_apart(footprint, attention, operands, workspace, state);
  return footprint;
}

/// As checked_forward, for the wanted gradients of <dy, attention(q, k, v, mix)>.
template <AttentionVariant V, class T>
Problem checked_backward(const V& attention, const OperandViews<T>& operands,
                         const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                         WorkspaceView workspace, WorkspaceView state = {}) {
  const Shape shape = operands.shape();
  const Problem problem = checked_problem(attention, shape);
  require_backward(attention, shape, operands, dy, gradients, workspace, state);
  return problem;
}

// Errors for operands that are not views.

template <class X>
using ElementOf = std::remove_cvref_t<decltype(*std::declval<const X&>().data())>;
/// A std::vector, an Eigen::Matrix, an Eigen::Tensor: has data(), and does not convert to a view.
template <class X>
concept NotAView = !std::is_convertible_v<const X&, TensorView<const ElementOf<X>, 4>> &&
                   !std::is_convertible_v<const X&, TensorView<const ElementOf<X>, 3>>;
template <class... X>
concept SomeNotViews = (NotAView<X> || ...);

template <AttentionVariant V, class Device, class Q, class K, class Value, class Mix, class Y,
          class... More>
requires SomeNotViews<Q, K, Value, Mix, Y>
void forward_into(const V&, const Device&, const Q&, const K&, const Value&, const Mix&, const Y&,
                  const More&...) {
  static_assert(sizeof(V) == 0,
                "mhla: forward_into takes mhla::TensorView: for a std::vector or an Eigen::Tensor "
                "write mhla::make_view(x.data(), batch, heads, tokens, dim), for rows [tokens, "
                "heads * dim] mhla::heads_view, for an Eigen::Matrix as mix mhla::mix_view");
}

struct AnyGradients {
  template <class... Gradient>
  AnyGradients(const Gradient&...) {}  // NOLINT: stands for {dq, dk, dv, dmix}
};
template <AttentionVariant V, class Device, class Q, class K, class Value, class Mix, class DY,
          class... More>
requires SomeNotViews<Q, K, Value, Mix, DY>
void backward_into(const V&, const Device&, const Q&, const K&, const Value&, const Mix&, const DY&,
                   const AnyGradients&, const More&...) {
  static_assert(sizeof(V) == 0,
                "mhla: backward_into takes mhla::TensorView: for a std::vector or an Eigen::Tensor "
                "write mhla::make_view(x.data(), batch, heads, tokens, dim), for rows [tokens, "
                "heads * dim] mhla::heads_view, for an Eigen::Matrix as mix mhla::mix_view");
}

MHLA_NAMESPACE_END
