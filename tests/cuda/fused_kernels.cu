// SPDX-License-Identifier: MIT
// Fused kernels whose registers and spills kernel_resources.cmake compares with the ceilings in
// kernel_resources.txt. They are few, 60 at the most: every kind of kernel, storage type, feature
// map, rotation, number of planes and head dimension is here, but not their product.
#include <mhla/cuda/fused/block_mixing.cuh>
#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/feature_gradient.cuh>
#include <mhla/cuda/fused/mixing_gradient.cuh>
#include <mhla/cuda/fused/own_tokens.cuh>
#include <mhla/cuda/fused/persistent.cuh>
#include <mhla/cuda/fused/quadratic.cuh>
#include <mhla/cuda/fused/quadratic_gradient.cuh>
#include <mhla/cuda/fused/quadratic_key_gradient.cuh>
#include <mhla/cuda/fused/quadratic_mixing_gradient.cuh>
#include <mhla/cuda/fused/quadratic_query_gradient.cuh>
#include <mhla/cuda/fused/readout.cuh>
#include <mhla/cuda/fused/resident.cuh>
#include <mhla/policy/feature_map.hpp>

using namespace mhla;
using namespace mhla::cuda::fused;

// A user's own feature map.
struct Cube {
  template <class T>
  MHLA_HOST_DEVICE T value(T x) const {
    return x * x * x;
  }
  template <class T>
  MHLA_HOST_DEVICE T derivative(T x) const {
    return T(3) * x * x;
  }
};

inline constexpr bool rotated = true;
inline constexpr bool sums = true;
inline constexpr bool divides = true;

// A kernel of the name that stands in kernel_resources.txt, made as the passes make it.
#define KERNEL(name, ...)       \
  struct name : __VA_ARGS__ {}; \
  template void mhla::cuda::machine::run(const CudaDevice&, Index, const name&)

template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, bool Divides>
using ReadOutCausal =
    ReadOutBlocks<T, Map, Rotates, KeyDim, ValueDim, 1, Divides, OwnTokens<T, Map, Rotates>>;

template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, bool Normalizes>
using QueryGradient =
    FeatureGradient<T, Map, Rotates, KeyDim, ValueDim, 2, Side::queries, Normalizes>;
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, bool Normalizes>
using KeyGradient = FeatureGradient<T, Map, Rotates, KeyDim, ValueDim, 2, Side::keys, Normalizes>;
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, bool Normalizes>
using QueryGradientCausal = FeatureGradient<T, Map, Rotates, KeyDim, ValueDim, 2, Side::queries,
                                            Normalizes, OwnTokens<T, Map, Rotates>>;
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, bool Normalizes>
using KeyGradientCausal = FeatureGradient<T, Map, Rotates, KeyDim, ValueDim, 2, Side::keys,
                                          Normalizes, OwnQueries<T, Map, Rotates>>;
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim>
using ValueGradientCausal =
    ReadOutBlocks<T, Map, Rotates, KeyDim, ValueDim, 2, false, OwnQueries<T, Map, Rotates>>;

template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, int Slice, bool Divides>
using AttendResidentCausal =
    AttendResident<T, Map, Rotates, KeyDim, ValueDim, Slice, Divides, OwnTokens<T, Map, Rotates>>;

template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, int Side, bool Divides>
using AttendPersistentlyCausal = AttendPersistently<T, Map, Rotates, KeyDim, ValueDim, Side,
                                                    Divides, OwnTokens<T, Map, Rotates>>;

// One of each kind. These alone are compiled for other architectures than sm_90.
KERNEL(summarize_128, SummarizeBlocks<BFloat16, EluPlusOne, !rotated, 128, 128, 1, sums>);
KERNEL(mix_128, MixBlocks<BFloat16, 1, 128, true>);
KERNEL(mix_tiled, MixBlocks<BFloat16, 1, 128, false>);
KERNEL(read_out_128, ReadOutBlocks<BFloat16, EluPlusOne, !rotated, 128, 128, 1, divides>);
KERNEL(read_out_causal_128, ReadOutCausal<BFloat16, EluPlusOne, !rotated, 128, 128, divides>);
KERNEL(query_gradient_128, QueryGradient<BFloat16, EluPlusOne, !rotated, 128, 128, divides>);
KERNEL(key_gradient_128, KeyGradient<BFloat16, EluPlusOne, !rotated, 128, 128, divides>);
KERNEL(mixing_gradient_64, MultiplyMixedSummaries<BFloat16, 2, 64>);
KERNEL(attend_64, AttendPairs<BFloat16, Relu, !rotated, 64, 64, Sight::all, divides>);
KERNEL(query_pairs_64, QueryPairsGradient<BFloat16, Relu, !rotated, 64, 64, Sight::all, divides>);
KERNEL(key_pairs_64, KeyPairsGradient<BFloat16, Relu, !rotated, 64, 64, Sight::all, divides>);
KERNEL(mixing_pairs_64, MixingPairsGradient<BFloat16, Relu, !rotated, 64, 64, Sight::all, divides>);
KERNEL(resident_72, AttendResident<BFloat16, Relu, !rotated, 72, 72, 72, divides>);
KERNEL(resident_causal_128,
       AttendResidentCausal<BFloat16, Identity, rotated, 128, 128, 16, !divides>);
KERNEL(persistent_128, AttendPersistently<BFloat16, Relu, rotated, 128, 128, 128, divides>);

#ifndef MHLA_ONE_OF_EACH_KIND

KERNEL(summarize_32, SummarizeBlocks<BFloat16, EluPlusOne, !rotated, 32, 32, 1, sums>);
KERNEL(summarize_64, SummarizeBlocks<BFloat16, Relu, rotated, 64, 64, 1, sums>);
KERNEL(summarize_72, SummarizeBlocks<BFloat16, Relu, !rotated, 72, 72, 1, sums>);
KERNEL(summarize_96, SummarizeBlocks<Half, SquaredRelu, !rotated, 96, 96, 1, sums>);
KERNEL(summarize_128_256, SummarizeBlocks<BFloat16, Identity, rotated, 128, 256, 1, !sums>);
KERNEL(summarize_256, SummarizeBlocks<BFloat16, EluPlusOne, !rotated, 256, 256, 1, sums>);
KERNEL(summarize_64_cube, SummarizeBlocks<Half, Cube, rotated, 64, 64, 2, sums>);
KERNEL(summarize_128_rotated, SummarizeBlocks<BFloat16, Relu, rotated, 128, 128, 2, sums>);

KERNEL(mix_32, MixBlocks<BFloat16, 1, 32, true>);
KERNEL(mix_128_half, MixBlocks<Half, 1, 128, true>);

KERNEL(read_out_32, ReadOutBlocks<BFloat16, EluPlusOne, !rotated, 32, 32, 1, divides>);
KERNEL(read_out_64, ReadOutBlocks<BFloat16, Relu, rotated, 64, 64, 1, divides>);
KERNEL(read_out_64_cube, ReadOutBlocks<Half, Cube, rotated, 64, 64, 2, !divides>);
KERNEL(read_out_72, ReadOutBlocks<BFloat16, Relu, !rotated, 72, 72, 1, divides>);
KERNEL(read_out_96, ReadOutBlocks<Half, SquaredRelu, !rotated, 96, 96, 1, divides>);
KERNEL(read_out_128_rotated, ReadOutBlocks<BFloat16, Relu, rotated, 128, 128, 2, !divides>);
KERNEL(read_out_128_256, ReadOutBlocks<BFloat16, Identity, rotated, 128, 256, 1, !divides>);
KERNEL(read_out_256, ReadOutBlocks<BFloat16, EluPlusOne, !rotated, 256, 256, 1, divides>);
KERNEL(read_out_causal_64, ReadOutCausal<BFloat16, EluPlusOne, !rotated, 64, 64, divides>);
KERNEL(read_out_causal_72, ReadOutCausal<Half, Relu, !rotated, 72, 72, divides>);
KERNEL(read_out_causal_128_256, ReadOutCausal<BFloat16, Identity, rotated, 128, 256, !divides>);
KERNEL(read_out_causal_256, ReadOutCausal<Half, EluPlusOne, !rotated, 256, 256, divides>);

KERNEL(mix_128_of_two, MixBlocks<BFloat16, 2, 128, true>);
KERNEL(mix_tiled_of_two, MixBlocks<BFloat16, 2, 128, false>);
KERNEL(query_gradient_64_cube, QueryGradient<Half, Cube, rotated, 64, 64, divides>);
KERNEL(query_gradient_256, QueryGradient<Half, EluPlusOne, !rotated, 256, 256, divides>);
KERNEL(query_gradient_causal_128,
       QueryGradientCausal<BFloat16, EluPlusOne, !rotated, 128, 128, divides>);
KERNEL(key_gradient_causal_128,
       KeyGradientCausal<BFloat16, EluPlusOne, !rotated, 128, 128, divides>);
KERNEL(value_gradient_causal_128, ValueGradientCausal<BFloat16, EluPlusOne, !rotated, 128, 128>);

KERNEL(attend_72_rotated, AttendPairs<BFloat16, Relu, rotated, 72, 72, Sight::all, divides>);
KERNEL(attend_causal_128,
       AttendPairs<Half, Identity, rotated, 128, 128, Sight::past_tokens, !divides>);
KERNEL(query_pairs_causal_128,
       QueryPairsGradient<Half, Identity, rotated, 128, 128, Sight::past_tokens, !divides>);
KERNEL(key_pairs_causal_128,
       KeyPairsGradient<Half, Identity, rotated, 128, 128, Sight::past_tokens, !divides>);

KERNEL(resident_64_cube, AttendResident<Half, Cube, rotated, 64, 64, 16, divides>);
KERNEL(resident_96, AttendResident<Half, SquaredRelu, !rotated, 96, 96, 96, divides>);
KERNEL(resident_128, AttendResident<BFloat16, Relu, rotated, 128, 128, 64, divides>);
KERNEL(resident_causal_96,
       AttendResidentCausal<BFloat16, EluPlusOne, !rotated, 96, 96, 96, divides>);

KERNEL(persistent_72, AttendPersistently<BFloat16, Relu, !rotated, 72, 72, 32, divides>);
KERNEL(persistent_causal_128,
       AttendPersistentlyCausal<BFloat16, Identity, rotated, 128, 128, 32, !divides>);
KERNEL(persistent_256, AttendPersistently<Half, EluPlusOne, !rotated, 256, 256, 128, divides>);

#endif
