// SPDX-License-Identifier: MIT
/// \defgroup batches Batches
/// Sequences of different lengths: packed end to end, or padded to one length.
/// \code
/// const std::vector<std::int32_t> offsets{0, 5, 5, 12};     // 3 sequences of 5, 0 and 7 tokens
/// y = mhla::packed(sequence, offsets)(q, k, v, mix);        // batch 1, Blocks1D
/// y = mhla::padded(attention, token_mask)(q, k, v, mix);    // token_mask [batch, tokens]
/// mhla::gradients(dq, dk, dv, dmix) =
///     mhla::padded(attention, token_mask).backward(q, k, v, mix, dy);
/// \endcode
/// Both are variants like the attention they hold: expressions, the calls on views and workspace
/// sizes take them. Offsets and masks are borrowed. The workspace a call needs depends on their
/// contents.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/cpu/pipeline.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup batches
/// \{

/// Attention over packed sequences: see Packed. `offsets` are borrowed, and checked in every call.
template <AttentionVariant A, class Offset>
Packed<A, Offset> packed(const A& attention, Span<const Offset> offsets) {
  return {attention, offsets};
}
/// Packed sequences whose `offsets` must outlive the result and what is made of it.
template <AttentionVariant A, class Offset>
Packed<A, Offset> packed(const A& attention, const std::vector<Offset>& offsets) {
  return {attention, {offsets.data(), static_cast<Index>(offsets.size())}};
}
/// \cond INTERNAL
template <AttentionVariant A, class Offset>
Packed<A, Offset> packed(const A& attention, const std::vector<Offset>&&) {
  static_assert(no_such_call<A>,
                "mhla: packed borrows its offsets, and these are a temporary: give them a name");
  return {attention, {}};
}
MHLA_NO_SUCH_CALL(AnyArgument packed,
                  "mhla: call packed(attention, offsets): offsets is an lvalue std::vector, or an "
                  "mhla::Span, of std::int32_t or std::int64_t, which the result borrows")

template <class Byte>
inline constexpr bool is_mask_byte = std::is_same_v<std::remove_const_t<Byte>, bool> ||
                                     std::is_same_v<std::remove_const_t<Byte>, std::uint8_t>;

// A mask [batch, tokens] of bool or std::uint8_t as bytes, nonzero where a token takes part.
template <class Byte>
TensorView<const std::uint8_t, 2> mask_bytes(const TensorView<Byte, 2>& mask) {
  static_assert(sizeof(Byte) == 1);
  return mask.with_data(reinterpret_cast<const std::uint8_t*>(mask.data));
}
/// \endcond

/// Self-attention over a padded batch: see Padded. One mask [batch, tokens] of bool or std::uint8_t
/// for queries and keys, borrowed.
template <AttentionVariant A, class Byte>
requires(is_mask_byte<Byte>) Padded<A> padded(const A& attention, const TensorView<Byte, 2>& mask) {
  return {attention, {mask_bytes(mask), mask_bytes(mask)}};
}

/// Cross-attention over a padded batch: a mask [batch, query tokens] and one [batch, key tokens]. A
/// mask without data keeps every token.
template <AttentionVariant A, class QueryByte, class KeyByte>
requires(is_mask_byte<QueryByte>&& is_mask_byte<KeyByte>) Padded<A> padded(
    const A& attention, const TensorView<QueryByte, 2>& query_mask,
    const TensorView<KeyByte, 2>& key_mask) {
  return {attention, {mask_bytes(query_mask), mask_bytes(key_mask)}};
}

/// \cond INTERNAL
MHLA_NO_SUCH_CALL(AnyArgument padded,
                  "mhla: call padded(attention, mask) or padded(attention, query_mask, key_mask): "
                  "a mask is an mhla::TensorView<T, 2> [batch, tokens] of bool or std::uint8_t")
/// \endcond

/// \}

MHLA_NAMESPACE_END
