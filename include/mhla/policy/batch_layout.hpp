// SPDX-License-Identifier: MIT
// How the sequences of a batch lie in its tensors where their lengths differ: packed end to end, or
// padded to one length. Each is a variant like the attention it holds and runs through the same
// calls; only the tables of its blocks differ.
#pragma once

#include <mhla/policy/variant.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup batches
/// \{

/// \cond INTERNAL
// Packed: a batch item holds more than one sequence.
template <class A>
inline constexpr bool is_packed = requires(const A& attention) {
  attention.offsets;
};
// Any Packed or Padded.
template <class A>
inline constexpr bool is_batch_layout = is_packed<A> || requires(const A& attention) {
  attention.masks;
};

// What the two have in common: expressions hold them whole, as `Self`.
template <class Self, class A>
struct BatchLayout : A {
  static_assert(!is_batch_layout<A>, "mhla: a batch is either packed or padded, and only once");

  explicit BatchLayout(const A& variant) : A(variant) {}

  template <class Query, class Key, class Value, class Mix>
  auto operator()(const Query& q, const Key& k, const Value& v, const Mix& mix) const {
    return expression_of_forward(static_cast<const Self&>(*this), q, k, v, mix);
  }
  template <class Query, class Key, class Value, class Mix, class GradOutput>
  auto backward(const Query& q, const Key& k, const Value& v, const Mix& mix,
                const GradOutput& dy) const {
    return expression_of_backward(static_cast<const Self&>(*this), q, k, v, mix, dy);
  }
};
/// \endcond

/// Sequences of different lengths laid end to end on the token axis, in a batch of 1: sequence s is
/// tokens [offsets[s], offsets[s + 1]). Blocks and positions restart in each, none sees another,
/// and each uses the leading corner of mix that its own blocks need: mix has as many rows and
/// columns as the longest sequence has blocks, or more. `offsets` are borrowed host memory: int32
/// or int64, the first 0, non-decreasing, the last the number of tokens; a sequence may be empty.
/// Whether they fit is checked in every call. Made by mhla::packed.
template <class A, class Offset = void>
struct Packed : BatchLayout<Packed<A, Offset>, A> {
  static_assert(A::GeometryType::rank == 1,
                "mhla: packed sequences are cut into Blocks1D: a grid has one extent for all");
  static_assert(std::same_as<Offset, std::int32_t> || std::same_as<Offset, std::int64_t>,
                "mhla: the offsets of packed sequences are std::int32_t or std::int64_t");
  static_assert(!mixes_products<A>,
                "mhla: MixedProduct needs blocks of one size, which sequences of any length do not "
                "have: use MixedKeySum or Unnormalized for a packed batch");

  Span<const Offset> offsets;  ///< of n sequences n + 1

  /// See mhla::packed.
  Packed(const A& variant, Span<const Offset> sequence_offsets)
      : BatchLayout<Packed, A>(variant), offsets(sequence_offsets) {}

  /// Number of sequences.
  Index sequences() const { return offsets.size > 0 ? offsets.size - 1 : 0; }
  /// First token of a sequence.
  Index begin(Index sequence) const { return static_cast<Index>(offsets[sequence]); }
  /// Tokens of a sequence.
  Index length(Index sequence) const { return begin(sequence + 1) - begin(sequence); }
};

/// Masks of a call, each [batch, tokens] of its side, nonzero where a token takes part; a mask
/// without data keeps every token. A masked key contributes to no sum, even if it holds NaN; a
/// masked query has output 0 and gradient 0. Blocks and positions are unchanged.
struct TokenMasks {
  TensorView<const std::uint8_t, 2> query;  ///< [batch, query tokens]
  TensorView<const std::uint8_t, 2> key;    ///< [batch, key tokens]

  /// Whether a query takes part.
  bool takes_query(Index batch, Index token) const { return takes(query, batch, token); }
  /// Whether a key takes part.
  bool takes_key(Index batch, Index token) const { return takes(key, batch, token); }
  /// Whether there is a mask at all.
  bool any() const { return query.data != nullptr || key.data != nullptr; }

  /// \throws ShapeError unless both masks fit a call of `shape`.
  void require_fit(const Shape& shape) const {
    require_fit(query, "masks.query", shape.batch, shape.query_tokens);
    require_fit(key, "masks.key", shape.batch, shape.key_tokens);
  }
  /// \throws ShapeError unless queries and keys have one mask.
  void require_one() const {
    if (query.data != key.data || query.stride[0] != key.stride[0] ||
        query.stride[1] != key.stride[1])
      throw ShapeError(
          "mhla: masks: Causal and BlockCausal attend to their own tokens: queries and keys need "
          "one mask");
  }
  /// \throws ShapeError unless a mask fits `batch` items of `tokens` tokens.
  static void require_fit(const TensorView<const std::uint8_t, 2>& mask, const char* argument,
                          Index batch, Index tokens) {
    if (mask.data == nullptr) return;
    require_extent(argument, "batch", mask.extent[0], batch, "a mask is [batch, tokens]");
    require_extent(argument, "tokens", mask.extent[1], tokens, "a mask is [batch, tokens]");
  }

 private:
  static bool takes(const TensorView<const std::uint8_t, 2>& mask, Index batch, Index token) {
    return mask.data == nullptr || mask(batch, token) != 0;
  }
};

/// A batch padded to one length, with masks that say which tokens are real. A masked key
/// contributes to no summary and no score, even if it holds NaN; a masked query has output 0 and
/// gradient 0. A mask moves no block boundary and no position. Trailing padding changes no bit of
/// the other tokens' results. Made by mhla::padded.
template <class A>
struct Padded : BatchLayout<Padded<A>, A> {
  static_assert(!mixes_products<A>,
                "mhla: MixedProduct ties a token to the same offset of other blocks, which a mask "
                "may take away: use MixedKeySum or Unnormalized for a padded batch");

  TokenMasks masks;  ///< borrowed

  /// See mhla::padded.
  Padded(const A& variant, const TokenMasks& token_masks)
      : BatchLayout<Padded, A>(variant), masks(token_masks) {}
};

/// \cond INTERNAL
// A variant's masks, which keep every token unless it is padded.
template <class A>
TokenMasks masks_of(const A& attention) {
  if constexpr (requires { attention.masks; }) return attention.masks;
  return {};
}

template <class A, class Offset>
requires(!AttentionVariant<A>) struct Packed<A, Offset> : NoVariantOfTensors<A, float> {
  using NoVariantOfTensors<A, float>::NoVariantOfTensors;
};
template <class A>
requires(!AttentionVariant<A>) struct Padded<A> : NoVariantOfTensors<A, float> {
  using NoVariantOfTensors<A, float>::NoVariantOfTensors;
};

template <class A, class Offset>
inline constexpr bool is_attention<Packed<A, Offset>> = true;
template <class A>
inline constexpr bool is_attention<Padded<A>> = true;

// Throws ShapeError unless `packed` fits a call of `shape`; returns the length of the longest
// sequence.
template <class A, class Offset>
Index checked_longest(const Packed<A, Offset>& packed, const Shape& shape) {
  require_extent("q", "batch", shape.batch, 1, "packed sequences lie in a batch of 1");
  require_extent("k", "tokens", shape.key_tokens, shape.query_tokens,
                 "packed sequences attend to themselves: k has the tokens of q");
  if (!packed.key_blocks.unset())
    throw ShapeError("mhla: key_blocks: packed sequences attend to themselves; leave it unset");
  if (packed.offsets.size <= 0)
    throw ShapeError("mhla: offsets: is empty; n sequences have n + 1 offsets");
  if (packed.offsets[0] != 0)
    throw ShapeError({"mhla: offsets[0] is ", packed.offsets[0],
                      " but must be 0, where the first sequence begins"});
  Index longest = 0;
  for (Index s = 0; s < packed.sequences(); ++s) {
    if (packed.offsets[s + 1] < packed.offsets[s])
      throw ShapeError({"mhla: offsets[", s + 1, "] is ", packed.offsets[s + 1], ", less than the ",
                        packed.offsets[s], " before it; offsets never fall"});
    if (packed.length(s) > longest) longest = packed.length(s);
  }
  if (packed.begin(packed.sequences()) != shape.query_tokens)
    throw ShapeError({"mhla: offsets[", packed.sequences(), "] is ",
                      packed.offsets[packed.sequences()], " but must be ", shape.query_tokens,
                      ", the number of tokens of q"});
  return longest;
}
/// \endcond

/// \}

MHLA_NAMESPACE_END
