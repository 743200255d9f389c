// SPDX-License-Identifier: MIT
// The extents and the operands of one attention call, and the checks of what a caller gives.
#pragma once

#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>

MHLA_NAMESPACE_BEGIN

/// Extents of q [batch, heads, query_tokens, key_dim], k [batch, kv_heads, key_tokens, key_dim],
/// v [batch, kv_heads, key_tokens, value_dim], y [batch, heads, query_tokens, value_dim] and
/// mix [mix_heads, mix_query_blocks, mix_key_blocks].
/// \ingroup views
struct Shape {
  Index batch = 0;             ///< of every tensor but mix
  Index heads = 0;             ///< of q and y; a multiple of kv_heads
  Index kv_heads = 0;          ///< of k and v
  Index query_tokens = 0;      ///< of q and y
  Index key_tokens = 0;        ///< of k and v
  Index key_dim = 0;           ///< of q and k
  Index value_dim = 0;         ///< of v and y
  Index mix_heads = 1;         ///< 1, heads, or batch * heads: one for each head of each item
  Index mix_query_blocks = 0;  ///< rows of mix
  Index mix_key_blocks = 0;    ///< columns of mix

  /// Whether all extents are equal.
  friend bool operator==(const Shape&, const Shape&) = default;

  /// Query heads that share a kv head.
  constexpr Index group_size() const { return kv_heads == 0 ? 0 : heads / kv_heads; }
  /// Matrices of a kv head: 1 that its query heads share, or one for each; 0 without heads.
  constexpr Index matrices() const { return mix_heads == 1 && heads > 0 ? Index{1} : group_size(); }
  /// Whether each batch item has a mix of its own.
  constexpr bool mix_per_item() const { return mix_heads != 1 && mix_heads != heads; }
  /// Which of mix's matrices head `head` of batch item `item` uses.
  constexpr Index mix_of(Index item, Index head) const {
    return mix_heads == 1 ? 0 : mix_per_item() ? item * heads + head : head;
  }
  /// Whether y has no elements: there is nothing to compute, and every gradient is zero.
  constexpr bool empty() const {
    return batch == 0 || heads == 0 || query_tokens == 0 || value_dim == 0;
  }
};

/// \cond INTERNAL
// Throws the one form that every shape error has: argument, axis, got, expected, rule.
[[gnu::__noreturn__]] MHLA_ONCE_A_CALL inline void throw_shape_error(const char* argument,
                                                                     const char* axis, Index got,
                                                                     Index expected,
                                                                     const char* rule) {
  throw ShapeError(
      {"mhla: ", argument, ": axis ", axis, " is ", got, " but must be ", expected, "; ", rule});
}

inline void require_extent(const char* argument, const char* axis, Index got, Index expected,
                           const char* rule) {
  if (got != expected) throw_shape_error(argument, axis, got, expected, rule);
}

// Checks of numeric members of variants and options.
// The range of normal floats: a call on floats would take numbers outside it for 0 or infinity.
inline constexpr double smallest_setting = 0x1p-126;
inline constexpr double largest_setting = 0x1.fffffep127;

// Comparisons with NaN are false, so that these checks refuse it.
MHLA_ONCE_A_CALL inline void require_not_negative(const char* member, double value) {
  if (value >= 0 && value <= largest_setting) return;
  throw ShapeError(
      {"mhla: ", member, " is ", value, " but must be at least 0, and finite as a float"});
}
MHLA_ONCE_A_CALL inline void require_positive(const char* member, double value) {
  if (value >= smallest_setting && value <= largest_setting) return;
  throw ShapeError(
      {"mhla: ", member, " is ", value, " but must be positive, and finite as a float"});
}
MHLA_ONCE_A_CALL inline void require_at_least(const char* member, Index value, Index least) {
  if (value >= least) return;
  throw ShapeError({"mhla: ", member, " is ", value, " but must be at least ", least});
}
template <class Enum>
void require_enumerator(const char* member, Enum value, Enum last) {
  const auto number = static_cast<Index>(value);
  if (number >= 0 && number <= static_cast<Index>(last)) return;
  throw ShapeError({"mhla: ", member, " is ", number, " but must be an enumerator, 0 to ",
                    static_cast<Index>(last)});
}

// The maximum number of elements of a tensor, an empty axis counted as one: their bytes fit an
// Index, whatever the scalar, and so does the sum of a few such sizes.
inline constexpr Index max_elements = Index{1} << 56;

// The maximum number of tokens, over the whole batch, of a call that has an output: its tables have
// an entry for each (on the CPU), and whatever lays them out has to count them.
inline constexpr Index max_call_tokens = Index{1} << 36;

// One axis of a tensor, as errors name it.
struct NamedExtent {
  const char* axis;
  Index extent;
};

// Throws if an extent is negative or the tensor has more than max_elements: after this check, no
// product of its extents overflows, in any order.
MHLA_ONCE_A_CALL inline void require_tensor(const char* argument,
                                            std::initializer_list<NamedExtent> extents) {
  Index elements = 1;
  for (const auto& [axis, extent] : extents) {
    const auto fail = [&, name = axis, got = extent](const char* rule) {
      throw ShapeError({"mhla: ", argument, ": axis ", name, " is ", got, rule});
    };
    if (extent < 0) fail(", which is negative; an extent is 0 or more");
    Index product = 0;
    if (__builtin_mul_overflow(elements, extent, &product) || product > max_elements)
      fail(", which makes the tensor too large: it would have more than 2^56 elements");
    if (extent > 0) elements = product;
  }
}

// Checks matrices [heads, query blocks, key blocks].
template <class T>
void require_tensor(const char* argument, const TensorView<T, 3>& mix) {
  require_tensor(
      argument,
      {{"heads", mix.extent[0]}, {"query blocks", mix.extent[1]}, {"key blocks", mix.extent[2]}});
}

// Throws unless `view` has the extents of a tensor [batch, heads, tokens, dim].
template <class T>
MHLA_ONCE_A_CALL void require_extents(const TensorView<T, 4>& view, const char* argument,
                                      Index batch, Index heads, Index tokens, Index dim,
                                      const char* rule) {
  require_extent(argument, "batch", view.extent[0], batch, rule);
  require_extent(argument, "heads", view.extent[1], heads, rule);
  require_extent(argument, "tokens", view.extent[2], tokens, rule);
  require_extent(argument, "dim", view.extent[3], dim, rule);
}

// Throws unless `mix`, or its gradient, is [heads, rows, columns].
template <class T>
void require_extents(const TensorView<T, 3>& mix, const char* argument, Index heads, Index rows,
                     Index columns, const char* rule) {
  require_extent(argument, "heads", mix.extent[0], heads, rule);
  require_extent(argument, "query blocks", mix.extent[1], rows, rule);
  require_extent(argument, "key blocks", mix.extent[2], columns, rule);
}

// Throws unless tensors can have the extents of a shape.
MHLA_ONCE_A_CALL inline void require_tensors(const Shape& shape) {
  const NamedExtent batch{"batch", shape.batch};
  const NamedExtent key_dim{"key_dim", shape.key_dim};
  const NamedExtent key_tokens{"tokens", shape.key_tokens};
  const NamedExtent kv_heads{"heads", shape.kv_heads};
  require_tensor("q", {batch, {"heads", shape.heads}, {"tokens", shape.query_tokens}, key_dim});
  require_tensor("k", {batch, kv_heads, key_tokens, key_dim});
  require_tensor("v", {batch, kv_heads, key_tokens, {"value_dim", shape.value_dim}});
  require_tensor("y", {batch,
                       {"heads", shape.heads},
                       {"tokens", shape.query_tokens},
                       {"value_dim", shape.value_dim}});
  require_tensor("mix", {{"heads", shape.mix_heads},
                         {"query blocks", shape.mix_query_blocks},
                         {"key blocks", shape.mix_key_blocks}});
}

/// \endcond

/// The shape of a call with these operands.
/// \throws ShapeError if they disagree.
/// \ingroup views
template <class Q, class K, class V, class M, int MixRank>
requires(MixRank == 3 || MixRank == 2) Shape
    shape_of(const TensorView<Q, 4>& q, const TensorView<K, 4>& k, const TensorView<V, 4>& v,
             const TensorView<M, MixRank>& mix_or_matrix) {
  const TensorView<M, 3> mix = mix_or_matrix;
  const Shape shape{q.extent[0], q.extent[1], k.extent[1],   q.extent[2],   k.extent[2],
                    q.extent[3], v.extent[3], mix.extent[0], mix.extent[1], mix.extent[2]};
  require_tensors(shape);
  require_extent("k", "batch", k.extent[0], shape.batch, "k has the batch of q");
  require_extent("k", "key_dim", k.extent[3], shape.key_dim, "k has the key_dim of q");
  require_extent("v", "batch", v.extent[0], shape.batch, "v has the batch of q");
  require_extent("v", "heads", v.extent[1], shape.kv_heads, "v has the heads of k");
  require_extent("v", "tokens", v.extent[2], shape.key_tokens, "v has the tokens of k");
  return shape;
}

/// The operands of a forward call; mix is in the accumulator type.
/// \ingroup views
template <class T>
struct OperandViews {
  TensorView<const T, 4> q;                 ///< [batch, heads, query_tokens, key_dim]
  TensorView<const T, 4> k;                 ///< [batch, kv_heads, key_tokens, key_dim]
  TensorView<const T, 4> v;                 ///< [batch, kv_heads, key_tokens, value_dim]
  TensorView<const Accumulator<T>, 3> mix;  ///< [mix_heads, mix_query_blocks, mix_key_blocks]

  /// See shape_of.
  Shape shape() const { return shape_of(q, k, v, mix); }
};

/// \cond INTERNAL
// Throws unless the extents are a legal call by themselves, whatever the variant.
MHLA_ONCE_A_CALL inline void require_consistent(const Shape& shape) {
  require_tensors(shape);
  const auto require_countable = [&](const char* argument, Index tokens) {
    if (!shape.empty() && tokens > max_call_tokens / shape.batch)
      throw ShapeError({"mhla: ", argument, ": axis tokens is ", tokens, " in a batch of ",
                        shape.batch, ", more than the 2^36 tokens that a call can have"});
  };
  require_countable("q", shape.query_tokens);
  require_countable("k", shape.key_tokens);
  if (shape.kv_heads == 0 ? shape.heads != 0 : shape.heads % shape.kv_heads != 0)
    throw ShapeError({"mhla: k: axis heads is ", shape.kv_heads, " but q has ", shape.heads,
                      " heads; the heads of q must be a multiple of the heads of k and v"});
  const Index heads_of_items = checked_mul(shape.batch, shape.heads);
  if (shape.mix_heads != 1 && shape.mix_heads != shape.heads && shape.mix_heads != heads_of_items)
    throw ShapeError({"mhla: mix: axis heads is ", shape.mix_heads, " but must be 1 (shared), ",
                      shape.heads, " (one matrix per head of q) or ", heads_of_items,
                      " (and per batch item)"});
}

MHLA_NO_SUCH_CALL(Shape shape_of,
                  "mhla: call shape_of(q, k, v, mix) with mhla::TensorView of rank 4, and 3 or 2 "
                  "for mix, or, after #include <mhla/attention.hpp>, with Eigen tensors")
/// \endcond

MHLA_NAMESPACE_END
