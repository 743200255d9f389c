// SPDX-License-Identifier: MIT
// The kernels of one variant's decoder, for a .cu file: MHLA_INSTANTIATE_CUDA_DECODER.
#pragma once

#include <mhla/cuda/decoding.cuh>
#include <mhla/cuda/token_block.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

template <class V, class T>
void DecoderKernels<V, T>::set_up(const CudaDevice& device, const Parts& decoder,
                                  const TensorView<const A, 3>& mix) {
  require_device_memory(decoder.memory.positions, "memory");
  require_device_memory(decoder.mixing, "memory");
  require_device_memory(mix, "mix");
  if constexpr (borrows_projection<V>)
    require_device_memory(decoder.attention.feature_map.projection, "feature_map.projection");
  fill_tables(
      device, decoder.attention, decoder.tile, decoder.tile, decoder.rotation,
      PackMixing<A>{mix, decoder.extents.mix_rows, decoder.extents.mix_columns, decoder.mixing});
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
  const auto& attention = decoder.attention;
  const Index sequences = q.extent[0];
  const Index tokens = q.extent[2];
  const Index units = sequences * e.kv_heads;
  const Index key_rows = units * tokens;
  const Index query_rows = key_rows * e.group_size;
  const DecodeStep<A> step{e, decoder.memory, first_sequence, tokens, decoder.mixing.data};
  BlockTable table = decoder.tile;
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
                                        decoder.row_input.data});
  };
  pack(k, A(1), 1, decoder.key_features.data);
  pack(q, static_cast<A>(attention.scale), e.group_size, decoder.queries.data);
  if constexpr (rotates<V>) {
    const Index pairs = e.feature_dim / 2;
    launch(device, key_rows * pairs,
           TurnDecoded<A>{step, decoder.rotation, decoder.key_features.data, nullptr});
    launch(device, query_rows * pairs,
           TurnDecoded<A>{step, decoder.rotation, decoder.queries.data, decoder.rotated.data});
  } else {
    const auto keys = make_view(static_cast<const A*>(decoder.key_features.data), sequences,
                                e.kv_heads, tokens, e.feature_dim);
    launch(device, keys.size(), KeepRows<A, A, true>{step, keys});
  }
  launch(device, v.size(), KeepRows<T, A, false>{step, v});
  A epsilon = A(0);
  if constexpr (normalizes<V>) {
    epsilon = static_cast<A>(attention.normalizer.epsilon);
    launch(device, units * e.feature_dim,
           AddKeySums<A>{step, decoder.key_features.data, decoder.open_key_sums.data});
  }
  launch(device, query_rows * (2 * e.block_tokens + 1),
         DecodeScores<A>{step, decoder.queries.data, decoder.rotated.data,
                         normalizes<V> ? decoder.open_key_sums.data : nullptr, epsilon,
                         decoder.scores.data});
  launch(device, query_rows * e.value_dim,
         ReadOutDecoded<T, A>{step, decoder.rotated.data, decoder.scores.data, normalizes<V>,
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

/// \ingroup cuda
/// Compiles the mhla::CudaDecoder of `Variant` on tensors of `Scalar`, in a .cu file of the
/// program:
///
///     using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal>;
///     MHLA_INSTANTIATE_CUDA_DECODER(Sequence, float);
///
/// Otherwise as MHLA_INSTANTIATE_CUDA.
#define MHLA_INSTANTIATE_CUDA_DECODER(Variant, Scalar) \
  template struct mhla::cuda::DecoderKernels<Variant, Scalar>
