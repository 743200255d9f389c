// SPDX-License-Identifier: MIT
// Causal attention token by token on the device, in the deferred form of cpu/decode_step.hpp: token
// t lies in block i, the open one; its keys and values, and those of block i - 1, the closing one,
// are still kept as such; all earlier blocks are summaries, already mixed for row i:
//
//   num = Q^r P_i + m_i,i-1 (Q^r K^r_i-1^T) V_i-1 + m_ii tril(Q^r K^r_i^T) V_i
//   den = Q (z~_i + m_ii sum of the open block's K up to the query) + epsilon
//   P_i = sum_{b<i-1} m_ib S_b         z~_i = sum_{b<i} m_ib z_b
//
// Meanwhile each token of the open block does its share of the work for the next block. Of n tokens
// each finishes about D / n of the D rows of
//
//   S_i-1 = K^r_i-1^T V_i-1            P_i+1 = sum_{b<i} m_i+1,b S_b
//
// or, by a recurrence, whose states take the place of the closed blocks' summaries,
//
//   H_i = g_i H_i-1 + b_i S_i-1        P_i+1 = sum_r a_i+1,r g_i+1,r H_i^r
//
// Everything that depends on a sequence's position is read from device memory.
#pragma once

#include <mhla/cuda/decoding.hpp>
#include <mhla/cuda/tables.cuh>
#include <mhla/cuda/token_block.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// A tile's tokens of one sequence: [first, first + tokens) of block `block`, the open one.
struct DecodeTile {
  Index block;
  Index first;
  Index tokens;
  bool fits;  // one block, and the decoder's capacity; else nothing can be decoded

  MHLA_HOST_DEVICE Index open_turn() const { return block % 2; }
  MHLA_HOST_DEVICE Index closing() const { return 1 - block % 2; }
};

/// Arguments of all kernels of a tile: the next tokens of sequences [first_sequence, ...), the same
/// number for each.
template <class A>
struct DecodeStep {
  DecodeExtents e;
  DecodeMemory<A> memory;
  Index first_sequence;
  Index tokens;
  const A* mixing;

  MHLA_HOST_DEVICE DecodeTile tile(Index item) const {
    const Index at = memory.positions[first_sequence + item];
    const Index block = at / e.block_tokens;
    const Index first = at % e.block_tokens;
    return {block, first, tokens, at + tokens <= e.capacity && first + tokens <= e.block_tokens};
  }
  // Unit u counts the kv heads of this tile's sequences; its memory is indexed over all sequences.
  MHLA_HOST_DEVICE Index memory_of(Index u) const { return first_sequence * e.kv_heads + u; }
  MHLA_HOST_DEVICE A* summary(Index u, Index block) const {
    return memory.summaries.data + (memory_of(u) * e.blocks + block) * e.summary_size();
  }
  MHLA_HOST_DEVICE A* key_sum(Index u, Index block) const {
    const Index at = e.states > 0 ? memory_of(u) : memory_of(u) * e.blocks + block;
    return memory.key_sums.data + at * e.feature_dim;
  }
  MHLA_HOST_DEVICE A* state(Index u, Index matrix, Index r) const {
    return memory.states.data +
           ((memory_of(u) * e.matrices + matrix) * e.states + r) * e.summary_size();
  }
  MHLA_HOST_DEVICE A* state_sum(Index u, Index matrix, Index r) const {
    return memory.state_sums.data +
           ((memory_of(u) * e.matrices + matrix) * e.states + r) * e.feature_dim;
  }
  MHLA_HOST_DEVICE A* key(Index u, Index parity, Index t) const {
    return memory.keys.data + ((memory_of(u) * 2 + parity) * e.block_tokens + t) * e.feature_dim;
  }
  MHLA_HOST_DEVICE A* value(Index u, Index parity, Index t) const {
    return memory.values.data + ((memory_of(u) * 2 + parity) * e.block_tokens + t) * e.value_dim;
  }
  MHLA_HOST_DEVICE A* mixed_summary(Index u, Index parity, Index matrix) const {
    return memory.mixed.data +
           ((memory_of(u) * 2 + parity) * e.matrices + matrix) * e.summary_size();
  }
  MHLA_HOST_DEVICE A* mixed_sum(Index u, Index parity, Index matrix) const {
    return memory.mixed_sums.data +
           ((memory_of(u) * 2 + parity) * e.matrices + matrix) * e.feature_dim;
  }
  /// Row `block` of the matrix of query head g of a unit.
  MHLA_HOST_DEVICE const A* mixing_row(Index u, Index g, Index block) const {
    const Index unit = e.mix_heads == e.heads() ? u % e.kv_heads : memory_of(u);
    const Index head = e.mix_heads == 1 ? 0 : unit * e.group_size + g;
    const Index row = head * e.mix_rows + (e.mix_rows == 1 ? 0 : block);
    return mixing + row * e.mix_columns;
  }
  MHLA_HOST_DEVICE RecurrentRow<A> recurrent_row(Index u, Index matrix, Index block) const {
    return {mixing_row(u, matrix, block), e.states};
  }
  /// m_i,i-1 and m_ii of row i.
  MHLA_HOST_DEVICE A closing_weight(const A* row, Index i) const {
    return e.states > 0 ? RecurrentRow<A>{row, e.states}.closing() : row[i - 1];
  }
  MHLA_HOST_DEVICE A own_weight(const A* row, Index i) const {
    return e.states > 0 ? RecurrentRow<A>{row, e.states}.own() : row[i];
  }
  MHLA_HOST_DEVICE Index matrix_of(Index g) const { return e.matrices == 1 ? 0 : g; }

  /// The indices of a query's row.
  struct Query {
    Index unit;
    Index g;
    Index t;
    DecodeTile tile;
  };
  MHLA_HOST_DEVICE Query query(Index row) const {
    const Index u = row / (tokens * e.group_size);
    return {u, row / tokens % e.group_size, row % tokens, tile(u / e.kv_heads)};
  }
};

/// Rotates rows of features by their tokens' positions, pair by pair, and writes each to its place.
template <class A>
struct TurnDecoded {
  DecodeStep<A> step;
  RotationTable<A> rotation;
  const A* features;  // [rows, D]
  A* rotated;         // the same; null: to the open block's keys

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index pairs = step.e.feature_dim / 2;
    const Index r = i / pairs;
    const Index heads = rotated != nullptr ? step.e.heads() : step.e.kv_heads;
    const DecodeTile tile = step.tile(r / (heads * step.tokens));
    if (!tile.fits) return;
    const Index t = r % step.tokens;
    A* const to = rotated != nullptr ? rotated + r * step.e.feature_dim
                                     : step.key(r / step.tokens, tile.open_turn(), tile.first + t);
    const Index position = tile.block * step.e.block_tokens + tile.first + t;
    const std::int32_t coordinate[3] = {0, 0, static_cast<std::int32_t>(position)};
    rotation.turn(coordinate, i % pairs, features + r * step.e.feature_dim, to, Turn::forward);
  }
};

/// Copies the tile's values, or keys without a rotation, to their places in the open block.
template <class T, class A, bool are_keys>
struct KeepRows {
  DecodeStep<A> step;
  TensorView<const T, 4> rows;  // [sequences, kv_heads, tokens, e or D]

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index c = i % rows.extent[3];
    const Index u = i / rows.extent[3] / step.tokens;
    const Index t = i / rows.extent[3] % step.tokens;
    const DecodeTile tile = step.tile(u / step.e.kv_heads);
    if (!tile.fits) return;
    A* const to = are_keys ? step.key(u, tile.open_turn(), tile.first + t)
                           : step.value(u, tile.open_turn(), tile.first + t);
    to[c] = static_cast<A>(load(rows(u / step.e.kv_heads, u % step.e.kv_heads, t, c)));
  }
};

/// A state's element in row i; the first row, 1, begins anew.
template <class A>
MHLA_HOST_DEVICE A advanced(const RecurrentRow<A>& row, Index r, Index i, A state, A sum) {
  return (i == 1 ? A(0) : row.decay(r) * state) + row.write_weight(r) * sum;
}

/// One feature of a unit's key sums: adds the tile to z_i, storing its value at every token; the
/// block's last token also computes z~_i+1.
template <class A>
struct AddKeySums {
  DecodeStep<A> step;
  const A* features;  // [key rows, D]: K
  A* running;         // the same

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index c = i % step.e.feature_dim;
    const Index u = i / step.e.feature_dim;
    const DecodeTile tile = step.tile(u / step.e.kv_heads);
    if (!tile.fits) return;
    A& z = step.key_sum(u, tile.block)[c];
    A sum = tile.first == 0 ? A(0) : z;
    for (Index t = 0; t < tile.tokens; ++t) {
      const Index at = (u * tile.tokens + t) * step.e.feature_dim + c;
      sum += features[at];
      running[at] = sum;
    }
    z = sum;
    const Index next = tile.block + 1;
    if (tile.first + tile.tokens < step.e.block_tokens || !step.e.has(next)) return;
    for (Index matrix = 0; matrix < step.e.matrices; ++matrix) {
      A mixed = A(0);
      if (step.e.states > 0) {
        const RecurrentRow<A> row = step.recurrent_row(u, matrix, next);
        for (Index r = 0; r < step.e.states; ++r) {
          A& state = step.state_sum(u, matrix, r)[c];
          state = advanced(row, r, next, state, sum);
          mixed += row.read_weight(r) * state;
        }
      } else {
        const A* const row = step.mixing_row(u, matrix, next);
        for (Index b = 0; b < next; ++b) mixed += row[b] * step.key_sum(u, b)[c];
      }
      step.mixed_sum(u, tile.closing(), matrix)[c] = mixed;
    }
  }
};

/// Weighted scores of a query with the keys of the closing block and, up to itself, of the open
/// one, followed by its denominator. What a query does not see is not written.
template <class A>
struct DecodeScores {
  DecodeStep<A> step;
  const A* features;  // [query rows, D]: Q
  const A* rotated;   // Q^r
  const A* running;   // [key rows, D]; null without a normalizer
  A epsilon;
  A* scores;  // [query rows, 2 n + 1]

  MHLA_DEVICE void operator()(Index i) const {
    const DecodeExtents& e = step.e;
    const Index n = e.block_tokens;
    const Index j = i % (2 * n + 1);
    const Index r = i / (2 * n + 1);
    const auto query = step.query(r);
    const DecodeTile& tile = query.tile;
    if (!tile.fits) return;
    const A* const row = step.mixing_row(query.unit, query.g, tile.block);
    if (j < 2 * n) {
      const bool own = j >= n;
      if (own ? j - n > tile.first + query.t : tile.block == 0) return;
      scores[i] = (own ? step.own_weight(row, tile.block) : step.closing_weight(row, tile.block)) *
                  inner_product(e.feature_dim, rotated + r * e.feature_dim,
                                step.key(query.unit, own ? tile.open_turn() : tile.closing(),
                                         own ? j - n : j));
    } else if (running != nullptr) {
      const A* const q = features + r * e.feature_dim;
      const A own = inner_product(e.feature_dim, q,
                                  running + (query.unit * tile.tokens + query.t) * e.feature_dim);
      const A earlier = tile.block == 0 ? A(0)
                                        : inner_product(e.feature_dim, q,
                                                        step.mixed_sum(query.unit, tile.open_turn(),
                                                                       step.matrix_of(query.g)));
      scores[i] = earlier + step.own_weight(row, tile.block) * own + epsilon;
    }
  }
};

/// y of every query of the tile; NaN if a sequence has no room for it.
template <class T, class A>
struct ReadOutDecoded {
  DecodeStep<A> step;
  const A* rotated;  // [query rows, D]: Q^r
  const A* scores;   // [query rows, 2 n + 1]
  bool normalized;
  A nowhere;  // NaN, which kernels cannot get from the standard library
  TensorView<T, 4> y;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const DecodeExtents& e = step.e;
    const Index n = e.block_tokens;
    const Index c = i % e.value_dim;
    const Index r = i / e.value_dim;
    const auto query = step.query(r);
    const DecodeTile& tile = query.tile;
    const Index u = query.unit;
    T& to = y(u / e.kv_heads, u % e.kv_heads * e.group_size + query.g, query.t, c);
    if (!tile.fits) {
      store(to, nowhere);
      return;
    }
    const A* const weights = scores + r * (2 * n + 1);
    A num = A(0);
    if (tile.block >= 2) {  // P_0 and P_1 are empty sums
      const A* const q = rotated + r * e.feature_dim;
      const A* const p = step.mixed_summary(u, tile.open_turn(), step.matrix_of(query.g));
      for (Index f = 0; f < e.feature_dim; ++f) num += q[f] * p[f * e.value_dim + c];
    }
    if (tile.block >= 1) {
      const A* const v = step.value(u, tile.closing(), 0);
      for (Index j = 0; j < n; ++j) num += weights[j] * v[j * e.value_dim + c];
    }
    const A* const v = step.value(u, tile.open_turn(), 0);
    for (Index j = 0; j <= tile.first + query.t; ++j)
      num += weights[n + j] * v[j * e.value_dim + c];
    const A den = normalized ? weights[2 * n] : A(1);
    store(to, den == A(0) ? A(0) : num / den);
  }
};

/// The tile's share of the rows of S_i-1 and of every P_i+1, element by element.
template <class A>
struct PrepareNextBlock {
  DecodeStep<A> step;
  Index max_rows;  // of a tile's share

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const DecodeExtents& e = step.e;
    const Index c = i % e.value_dim;
    const Index u = i / e.value_dim / max_rows;
    const DecodeTile tile = step.tile(u / e.kv_heads);
    if (!tile.fits || tile.block == 0) return;
    const Index f =
        even_split(e.feature_dim, e.block_tokens, tile.first) + i / e.value_dim % max_rows;
    if (f >= even_split(e.feature_dim, e.block_tokens, tile.first + tile.tokens)) return;

    const A* const k = step.key(u, tile.closing(), 0);
    const A* const v = step.value(u, tile.closing(), 0);
    A closed = A(0);
    for (Index j = 0; j < e.block_tokens; ++j)
      closed += k[j * e.feature_dim + f] * v[j * e.value_dim + c];
    const Index at = f * e.value_dim + c;
    if (e.states > 0) return advance_states(u, tile.block, at, closed);
    step.summary(u, tile.block - 1)[at] = closed;

    const Index next = tile.block + 1;
    if (!e.has(next)) return;
    for (Index matrix = 0; matrix < e.matrices; ++matrix) {
      const A* const row = step.mixing_row(u, matrix, next);
      A mixed = A(0);
      for (Index b = 0; b < tile.block - 1; ++b) mixed += row[b] * step.summary(u, b)[at];
      step.mixed_summary(u, tile.closing(), matrix)[at] = mixed + row[tile.block - 1] * closed;
    }
  }

 private:
  /// Element `at` of every H_i and P_i+1.
  MHLA_HOST_DEVICE void advance_states(Index u, Index i, Index at, A closed) const {
    const bool mixes = step.e.has(i + 1);
    for (Index matrix = 0; matrix < step.e.matrices; ++matrix) {
      const RecurrentRow<A> row = step.recurrent_row(u, matrix, i);
      A mixed = A(0);
      for (Index r = 0; r < step.e.states; ++r) {
        A& state = step.state(u, matrix, r)[at];
        state = advanced(row, r, i, state, closed);
        if (!mixes) continue;
        const RecurrentRow<A> next = step.recurrent_row(u, matrix, i + 1);
        mixed += next.read_weight(r) * next.decay(r) * state;
      }
      if (mixes) step.mixed_summary(u, (i + 1) % 2, matrix)[at] = mixed;
    }
  }
};

/// Copies 16 bytes of a snapshot.
struct CopyChunk {
  const std::byte* from;
  std::byte* to;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    std::uint32_t chunk[4];
    load_chunk(chunk, from + 16 * i);
    store_chunk(to + 16 * i, chunk);
  }
};

/// Advances the sequences by the tile.
template <class A>
struct AdvancePositions {
  DecodeStep<A> step;

  MHLA_HOST_DEVICE void operator()(Index s) const {
    if (step.tile(s).fits) step.memory.positions[step.first_sequence + s] += step.tokens;
  }
};

template <class V, class T>
void DecoderKernels<V, T>::set_up(const CudaDevice& device, const Parts& decoder,
                                  const TensorView<const A, 3>& mix) {
  const auto& scratch = decoder.scratch;
  require_device_memory(decoder.memory.positions, "memory");
  require_device_memory(scratch.mixing, "memory");
  require_device_memory(mix, "mix");
  if constexpr (borrows_projection<V>)
    require_device_memory(decoder.attention.feature_map.projection, "feature_map.projection");
  fill_tables(
      device, decoder.attention, scratch.tile, scratch.tile, scratch.rotation,
      PackMixing<A>{mix, decoder.extents.mix_rows, decoder.extents.mix_columns, scratch.mixing});
  reset(device, decoder, 0, decoder.extents.batch);
}

template <class V, class T>
void DecoderKernels<V, T>::require_memory(const DecodeTensors<T>& tensors) {
  require_device_memory(tensors.q, "q");
  require_device_memory(tensors.k, "k");
  require_device_memory(tensors.v, "v");
  require_device_memory(tensors.y, "y");
}

template <class V, class T>
void DecoderKernels<V, T>::run_tile(const CudaDevice& device, const Parts& decoder,
                                    Index first_sequence, const DecodeTensors<T>& tensors) {
  const auto& [q, k, v, y] = tensors;
  const DecodeExtents& e = decoder.extents;
  const auto& scratch = decoder.scratch;
  const auto& attention = decoder.attention;
  const Index sequences = q.extent[0];
  const Index tokens = q.extent[2];
  const Index units = sequences * e.kv_heads;
  const Index key_rows = units * tokens;
  const Index query_rows = key_rows * e.group_size;
  const DecodeStep<A> step{e, decoder.memory, first_sequence, tokens, scratch.mixing.data};
  BlockTable table = scratch.tile;
  table.block_tokens = tokens;
  const auto pack = [&](const TensorView<const T, 4>& x, A scale, Index heads, A* to) {
    // Positions come from device memory, not from a table, so features are rotated separately.
    const RotationTable<A> not_yet;
    pack_features<false>(device, attention.feature_map, scale, x,
                         FeatureRows<A>{{table, sequences, e.kv_heads, heads},
                                        e.feature_dim,
                                        not_yet,
                                        to,
                                        to,
                                        scratch.row_input.data});
  };
  pack(k, A(1), 1, scratch.key_features.data);
  pack(q, static_cast<A>(attention.scale), e.group_size, scratch.queries.data);
  if constexpr (rotates<V>) {
    const Index pairs = e.feature_dim / 2;
    launch(device, key_rows * pairs,
           TurnDecoded<A>{step, scratch.rotation, scratch.key_features.data, nullptr});
    launch(device, query_rows * pairs,
           TurnDecoded<A>{step, scratch.rotation, scratch.queries.data, scratch.rotated.data});
  } else {
    const auto keys = make_view(static_cast<const A*>(scratch.key_features.data), sequences,
                                e.kv_heads, tokens, e.feature_dim);
    launch(device, keys.size(), KeepRows<A, A, true>{step, keys});
  }
  launch(device, v.size(), KeepRows<T, A, false>{step, v});
  A epsilon = A(0);
  if constexpr (normalizes<V>) {
    epsilon = static_cast<A>(attention.normalizer.epsilon);
    launch(device, units * e.feature_dim,
           AddKeySums<A>{step, scratch.key_features.data, scratch.open_key_sums.data});
  }
  launch(device, query_rows * (2 * e.block_tokens + 1),
         DecodeScores<A>{step, scratch.queries.data, scratch.rotated.data,
                         normalizes<V> ? scratch.open_key_sums.data : nullptr, epsilon,
                         scratch.scores.data});
  launch(device, query_rows * e.value_dim,
         ReadOutDecoded<T, A>{step, scratch.rotated.data, scratch.scores.data, normalizes<V>,
                              std::numeric_limits<A>::quiet_NaN(), y});
  const Index max_rows =
      (std::min)(tokens * ceil_div(e.feature_dim, e.block_tokens), e.feature_dim);
  launch(device, units * max_rows * e.value_dim, PrepareNextBlock<A>{step, max_rows});
  launch(device, sequences, AdvancePositions<A>{step});
}

template <class V, class T>
void DecoderKernels<V, T>::reset(const CudaDevice& device, const Parts& decoder, Index first,
                                 Index count) {
  set_zero(device, Span<Index>{decoder.memory.positions.data + first, count});
}

template <class V, class T>
void DecoderKernels<V, T>::require_memory(const Span<std::byte>& memory) {
  require_device_memory(memory, "memory");
}

template <class V, class T>
void DecoderKernels<V, T>::copy(const CudaDevice& device, const Span<std::byte>& from,
                                std::byte* to) {
  launch(device, from.size / 16, CopyChunk{from.data, to});
}

}  // namespace cuda

MHLA_NAMESPACE_END
