// SPDX-License-Identifier: MIT
// The sizes of a decoder, and the checks that every backend's decoder makes before it writes.
#pragma once

#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

/// The sizes of a decoder, except those of mix.
/// \ingroup decoding
struct DecoderShape {
  Index batch = 1;       ///< sequences, each with its own length
  Index heads = 1;       ///< of q and y
  Index kv_heads = 1;    ///< of k and v
  Index key_dim = 0;     ///< of q and k
  Index value_dim = 0;   ///< of v and y
  Index num_slots = 1;   ///< executor slots that a step may use; unused on a device
  Index max_tokens = 0;  ///< of a sequence that a single row of mix does not limit; 0: any number
};

/// \cond INTERNAL
// Rejects, at compile time, a variant that cannot run token by token: a base of every decoder.
template <AttentionVariant V>
struct RequireStreaming {
  static_assert(is_causal_within_block<V>,
                "mhla: a Decoder generates token by token: its attention must be Causal");
  static_assert(!is_batch_layout<V>,
                "mhla: the sequences of a Decoder have lengths of their own: give it the attention "
                "that was packed or padded");
  static_assert(
      !is_structured<V> || std::is_same_v<typename V::MixingType, RecurrentMixing>,
      "mhla: a Decoder keeps all summaries or the states of a recurrence: use DenseMixing "
      "or RecurrentMixing");
};

// Overloads that say why a call of a decoder does not compile.
class DecoderErrors {
 public:
  MHLA_ANY_CALL(static void step, { explain_step<Given...>(); })
  MHLA_ANY_CALL(static void prefill, { explain_step<Given...>(); })
  MHLA_ANY_CALL(static void record_step, { explain_step<Given...>(); })
  MHLA_ANY_CALL(static void save, { explain_state<Given...>(); })
  MHLA_ANY_CALL(static void load, { explain_state<Given...>(); })

 protected:
  template <class... X>
  static void explain_constructor() {
    static_assert(no_such_call<X...>,
                  "mhla: make a decoder by Decoder<Attention, T>(attention, mix, shape) or "
                  "CudaDecoder<Attention, T>(attention, device, mix, shape, memory): mix is a "
                  "view of rank 2 or 3 in the type that T is accumulated in, shape an "
                  "mhla::DecoderShape");
  }

 private:
  template <class... X>
  static void explain_step() {
    static_assert(no_such_call<X...>,
                  "mhla: a decoder of T steps by step(q, k, v, y) or step(executor, q, k, v, y), "
                  "prefill(sequence, q, k, v, y) or prefill(executor, sequence, q, k, v, y): "
                  "views mhla::TensorView<T, 4>, y not const; a CudaDecoder takes an "
                  "mhla::CudaDevice first");
  }
  template <class... X>
  static void explain_state() {
    static_assert(no_such_call<X...>,
                  "mhla: a Decoder saves to an mhla::Span<std::byte>, and loads from one, "
                  "{bytes.data(), size}; a CudaDecoder by save(device, memory) and load(device, "
                  "snapshot)");
  }
};

inline Index checked_decoder_batch(const DecoderShape& shape) {
  require_tensor("q", {{"batch", shape.batch}});
  return shape.batch;
}

// The capacity of a decoder that neither mix nor a table limits: so many tokens fit no tensor.
inline constexpr Index no_limit = max_elements;

// Whether rows of mix limit a sequence, not max_tokens.
template <AttentionVariant V>
bool mix_limits(Index mix_rows) {
  return !is_structured<V> || mix_rows != 1;
}

// Tokens that a sequence can have.
template <AttentionVariant V, class M>
Index decoder_capacity(const V& variant, const TensorView<const M, 3>& mix,
                       const DecoderShape& shape) {
  if (mix_limits<V>(mix.extent[1])) return checked_mul(mix.extent[1], variant.blocks.block);
  if (shape.max_tokens > 0) return shape.max_tokens;
  if (rotates<V>)
    throw ShapeError(
        "mhla: max_tokens: is 0; a single row of mix limits no sequence, but the table of a "
        "rotation has a row for every token: say how many a sequence can have");
  return no_limit;
}

// The problem of the longest sequence that a decoder can see, or of one block where there is none.
// Throws ShapeError if variant, mix and shape do not fit.
template <AttentionVariant V, class M>
Problem checked_decoder(const V& variant, const TensorView<const M, 3>& mix,
                        const DecoderShape& shape) {
  require_at_least("max_tokens", shape.max_tokens, 0);
  require_at_least("num_slots", shape.num_slots, 1);
  checked_grid(variant.blocks, 0, "blocks", "q");
  require_tensor("mix", mix);
  if (!is_structured<V> && mix.extent[1] != mix.extent[2])
    throw_shape_error("mix", "key blocks", mix.extent[2], mix.extent[1],
                      "a decoder needs a column for every row of mix");
  Index capacity = decoder_capacity(variant, mix, shape);
  if (capacity == no_limit) capacity = variant.blocks.block;
  const Problem problem = checked_problem(
      variant, Shape{shape.batch, shape.heads, shape.kv_heads, capacity, capacity, shape.key_dim,
                     shape.value_dim, mix.extent[0], mix.extent[1], mix.extent[2]});
  // The open block's keys and values, which are kept even for a short sequence.
  const auto require_block = [&](const char* dim, Index extent) {
    require_tensor("blocks", {{"batch", shape.batch},
                              {"heads", shape.kv_heads},
                              {"block", variant.blocks.block},
                              {dim, extent}});
  };
  require_block("feature_dim", problem.feature_dim);
  require_block("value_dim", shape.value_dim);
  require_aligned(mix, "mix");
  if constexpr (borrows_projection<V>)
    require_aligned(variant.feature_map.projection, "feature_map.projection");
  return problem;
}

inline Index checked_sequence(const DecoderShape& shape, Index sequence) {
  if (sequence < 0 || sequence >= shape.batch)
    throw ShapeError(
        {"mhla: sequence is ", sequence, " but the decoder has ", shape.batch, " of them"});
  return sequence;
}

// The next tokens of some sequences.
template <class T>
struct DecodeTensors {
  TensorView<const T, 4> q;
  TensorView<const T, 4> k;
  TensorView<const T, 4> v;
  TensorView<T, 4> y;

  // `count` of them from `first` on.
  DecodeTensors part(Index first, Index count) const {
    const auto cut = [&](const auto& view) { return unchecked_slice(view, 2, first, count); };
    return {cut(q), cut(k), cut(v), cut(y)};
  }
};

// Throws ShapeError unless the tensors hold the next tokens of `sequences` sequences; returns how
// many tokens of each.
template <class T>
Index checked_decoder_tokens(const DecoderShape& shape, Index sequences,
                             const DecodeTensors<T>& x) {
  const Index tokens = x.q.extent[2];
  require_tensor("q", {{"tokens", tokens}});
  require_extents(x.q, "q", sequences, shape.heads, tokens, shape.key_dim,
                  "q is [batch, heads, tokens, key_dim] of the decoder");
  require_extents(x.k, "k", sequences, shape.kv_heads, tokens, shape.key_dim,
                  "k is [batch, kv_heads, tokens, key_dim] of the decoder");
  require_extents(x.v, "v", sequences, shape.kv_heads, tokens, shape.value_dim,
                  "v is [batch, kv_heads, tokens, value_dim] of the decoder");
  require_extents(x.y, "y", sequences, shape.heads, tokens, shape.value_dim,
                  "y is [batch, heads, tokens, value_dim] of the decoder");
  return tokens;
}

// Of tensors of these extents and of no more tokens than there is room for: throws ShapeError
// unless they can be read and written, WorkspaceError if one lies in the decoder's `memory`.
template <class V, class T>
Footprint require_decoder_tensors(const V& attention, const DecodeTensors<T>& x,
                                  WorkspaceView memory = {}) {
  Footprint footprint;
  footprint.add(x.y, "y");
  footprint.add(x.q, "q");
  footprint.add(x.k, "k");
  footprint.add(x.v, "v");
  if constexpr (borrows_projection<V>)
    footprint.add(attention.feature_map.projection, "feature_map.projection");
  footprint.require_results();
  footprint.require_scratch(memory, "memory");
  return footprint;
}

// Throws StateError unless a sequence with `position` tokens has room for `tokens` more.
inline void require_room(Index sequence, Index position, Index tokens, Index capacity,
                         bool by_mix) {
  if (tokens > capacity - position)
    throw StateError({"mhla: sequence ", sequence, " is full: ", position, " + ", tokens,
                      " tokens exceed ", by_mix ? "the rows of mix, for " : "max_tokens, ",
                      capacity, by_mix ? "; mhla::extend makes a larger mix" : ""});
}
/// \endcond

MHLA_NAMESPACE_END
