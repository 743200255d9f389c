// SPDX-License-Identifier: MIT
// Runs a decoder's checked calls: the kernels that a step launches, the same for every block.
#pragma once

#include <limits>
#include <mhla/core/config.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/chip/device_memory.cuh>
#include <mhla/cuda/copies.cuh>
#include <mhla/cuda/decode_step.cuh>
#include <mhla/cuda/decoding.hpp>
#include <mhla/cuda/gemm.cuh>
#include <mhla/cuda/tables.cuh>
#include <mhla/cuda/token_block.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

template <class V, class T>
void DecoderKernels<V, T>::set_up(const CudaDevice& device, const Parts& decoder,
                                  const TensorView<const A, 3>& mix) {
  const auto& scratch = decoder.scratch;
  require_memory(decoder.memory);
  require_device_memory(scratch.mixing, "memory");
  require_device_memory(mix, "mix");
  require_borrowed_memory(decoder.attention);
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
  BlockTable table = scratch.tile;
  table.block_tokens = tokens;
  const DecodeStep<A> step{e,
                           decoder.memory,
                           first_sequence,
                           {table, sequences, e.kv_heads, e.group_size},
                           {table, sequences, e.kv_heads, 1},
                           scratch.mixing.data};
  const Index query_rows = step.queries.count();
  const Index key_rows = step.keys.count();
  const Index units = step.keys.units();
  // Positions come from device memory, not from a table, so features are rotated separately.
  const RotationTable<A> not_yet;
  const RowBuffers<A> buffers{scratch.row_input, {}};
  pack_features<false>(device, attention.feature_map, A(1), step.keys, not_yet, k, e.feature_dim,
                       scratch.key_features.data, scratch.key_features.data, buffers);
  pack_features<false>(device, attention.feature_map, static_cast<A>(attention.scale), step.queries,
                       not_yet, q, e.feature_dim, scratch.queries.data, scratch.queries.data,
                       buffers);
  if constexpr (rotates<V>) {
    const Index pairs = e.feature_dim / 2;
    launch(device, key_rows * pairs,
           TurnDecoded<A>{step, scratch.rotation, e.kv_heads * tokens, scratch.key_features.data,
                          nullptr});
    launch(device, query_rows * pairs,
           TurnDecoded<A>{step, scratch.rotation, e.kv_heads * e.group_size * tokens,
                          scratch.queries.data, scratch.rotated.data});
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
  const Index share = tokens * ceil_div(e.feature_dim, e.block_tokens);
  const Index max_rows = share < e.feature_dim ? share : e.feature_dim;
  launch(device, units * max_rows * e.value_dim, PrepareNextBlock<A>{step, max_rows});
  launch(device, sequences,
         AdvancePositions{decoder.memory.positions.data, first_sequence, tokens, e.block_tokens,
                          e.capacity});
}

template <class V, class T>
void DecoderKernels<V, T>::reset(const CudaDevice& device, const Parts& decoder, Index first,
                                 Index count) {
  set_zero(device, Span<Index>{decoder.memory.positions.data + first, count});
}

template <class V, class T>
void DecoderKernels<V, T>::require_memory(const Memory& memory) {
  require_device_memory(memory.positions, "memory");
}

template <class V, class T>
void DecoderKernels<V, T>::copy(const CudaDevice& device, const Memory& from, const Memory& to) {
  const auto copy_array = [&]<class U>(const Span<U>& source, const Span<U>& target) {
    cuda::copy<U, 1>(device, {source.data, {source.size}, {1}}, {target.data, {target.size}, {1}});
  };
  copy_array(from.positions, to.positions);
  copy_array(from.summaries, to.summaries);
  copy_array(from.key_sums, to.key_sums);
  copy_array(from.states, to.states);
  copy_array(from.state_sums, to.state_sums);
  copy_array(from.keys, to.keys);
  copy_array(from.values, to.values);
  copy_array(from.mixed, to.mixed);
  copy_array(from.mixed_sums, to.mixed_sums);
}

}  // namespace cuda

MHLA_NAMESPACE_END
