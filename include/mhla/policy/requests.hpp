// SPDX-License-Identifier: MIT
// The checks that every backend makes before it writes anything: views that fit each other and the
// variant, addresses that elements can have, and destinations that can be written.
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
#include <mhla/policy/problem.hpp>
#include <mhla/policy/variant.hpp>
#include <string>

MHLA_NAMESPACE_BEGIN

// Apart from the templates below, so that the sentences are put together in one place.
inline void require_aligned(const void* data, std::size_t alignment, const char* name) {
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0)
    throw ShapeError(std::string("mhla: ") + name + ": the address is no multiple of " +
                     std::to_string(alignment) + ", the size of its elements");
}

/// Throws where a tensor with elements lies where none of their type can.
template <class T, int Rank>
void require_aligned(const TensorView<T, Rank>& tensor, const char* name) {
  if (tensor.size() > 0) require_aligned(tensor.data, alignof(T), name);
}

inline void require_destination(bool injective, bool shared, const char* name, const char* others) {
  if (!injective)
    throw ShapeError(std::string("mhla: ") + name +
                     ": the strides give two elements one address; a destination needs every "
                     "element to be its own");
  if (shared)
    throw ShapeError(std::string("mhla: ") + name + ": shares memory with " + others +
                     "; a destination needs memory of its own");
}

/// Throws unless `destination` can be written: every element its own, none shared with an operand.
template <class T, int Rank, class... Operand>
void require_destination(const TensorView<T, Rank>& destination, const char* name,
                         const char* others, const Operand&... operands) {
  require_destination(is_injective(destination), (share_memory(destination, operands) || ...), name,
                      others);
}

/// Whether the feature map reads a matrix that is not its own, as Favor does.
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

/// Throws unless the elements of all operands, and of what the feature map borrows, can be read.
template <class V, class T>
void require_aligned_operands(const V& attention, const OperandViews<T>& operands) {
  require_aligned(operands.q, "q");
  require_aligned(operands.k, "k");
  require_aligned(operands.v, "v");
  require_aligned(operands.mix, "mix");
  if constexpr (borrows_projection<V>)
    require_aligned(attention.feature_map.projection, "feature_map.projection");
}

/// Throws ShapeError unless y = attention(q, k, v, mix) can be computed.
template <AttentionVariant V, class T>
Problem checked_forward(const V& attention, const OperandViews<T>& operands,
                        const TensorView<T, 4>& y) {
  const Shape shape = operands.shape();
  const Problem problem = checked_problem(attention, shape);
  require_extents(y, "y", shape.batch, shape.heads, shape.query_tokens, shape.value_dim,
                  "y is [batch, heads, query tokens, value_dim]");
  require_aligned_operands(attention, operands);
  require_aligned(y, "y");
  require_destination(y, "y", "q, k, v or mix", operands.q, operands.k, operands.v, operands.mix);
  return problem;
}

/// Throws ShapeError unless the wanted gradients of <dy, attention(q, k, v, mix)> can be computed.
template <AttentionVariant V, class T>
Problem checked_backward(const V& attention, const OperandViews<T>& operands,
                         const TensorView<const T, 4>& dy, const GradientViews<T>& gradients) {
  const Shape shape = operands.shape();
  const Problem problem = checked_problem(attention, shape);
  require_extents(dy, "dy", shape.batch, shape.heads, shape.query_tokens, shape.value_dim,
                  "dy is [batch, heads, query tokens, value_dim]");
  require_aligned_operands(attention, operands);
  require_aligned(dy, "dy");
  const auto& [q, k, v, mix] = operands;
  const auto& dq = gradients.query.view;
  const auto& dk = gradients.key.view;
  const auto& dv = gradients.value.view;
  const auto& dmix = gradients.mix.view;
  constexpr const char* others = "an operand or another gradient";
  if (gradients.query.wanted) {
    require_extents(dq, "dq", shape.batch, shape.heads, shape.query_tokens, shape.key_dim,
                    "dq has the shape of q");
    require_aligned(dq, "dq");
    require_destination(dq, "dq", others, q, k, v, mix, dy, dk, dv, dmix);
  }
  if (gradients.key.wanted) {
    require_extents(dk, "dk", shape.batch, shape.kv_heads, shape.key_tokens, shape.key_dim,
                    "dk has the shape of k");
    require_aligned(dk, "dk");
    require_destination(dk, "dk", others, q, k, v, mix, dy, dv, dmix);
  }
  if (gradients.value.wanted) {
    require_extents(dv, "dv", shape.batch, shape.kv_heads, shape.key_tokens, shape.value_dim,
                    "dv has the shape of v");
    require_aligned(dv, "dv");
    require_destination(dv, "dv", others, q, k, v, mix, dy, dmix);
  }
  if (gradients.mix.wanted) {
    constexpr const char* rule = "dmix has the shape of mix";
    require_extent("dmix", "heads", dmix.extent[0], shape.mix_heads, rule);
    require_extent("dmix", "query blocks", dmix.extent[1], shape.mix_query_blocks, rule);
    require_extent("dmix", "key blocks", dmix.extent[2], shape.mix_key_blocks, rule);
    require_aligned(dmix, "dmix");
    require_destination(dmix, "dmix", others, q, k, v, mix, dy);
  }
  return problem;
}

MHLA_NAMESPACE_END
