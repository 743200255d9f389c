// SPDX-License-Identifier: MIT
// Fused kernels whose registers and spills kernel_resources.cmake compares with the ceilings in
// kernel_resources.txt. They are few, 60 at the most: every kind of kernel, storage type, feature
// map, rotation, number of planes and head dimension is here, but not their product.
#include <mhla/cuda/fused/block_mixing.cuh>
#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/feature_gradient.cuh>
#include <mhla/cuda/fused/mixing_gradient.cuh>
#include <mhla/cuda/fused/quadratic.cuh>
#include <mhla/cuda/fused/quadratic_gradient.cuh>
#include <mhla/cuda/fused/readout.cuh>
#include <mhla/cuda/fused/resident.cuh>
#include <mhla/cuda/fused/token_pairs.cuh>
#include <mhla/cuda/tables.cuh>
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
using ReadOutCausal = ReadOutBlocks<KernelTraits<T, Map, Rotates, KeyDim, ValueDim>, Divides,
                                    OwnTokens<T, Map, Rotates, Side::keys>>;

template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, bool Normalizes>
using QueryGradient =
    FeatureGradient<KernelTraits<T, Map, Rotates, KeyDim, ValueDim>, 2, Side::queries, Normalizes>;
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, bool Normalizes>
using KeyGradient =
    FeatureGradient<KernelTraits<T, Map, Rotates, KeyDim, ValueDim>, 2, Side::keys, Normalizes>;
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, bool Normalizes>
using QueryGradientCausal =
    FeatureGradient<KernelTraits<T, Map, Rotates, KeyDim, ValueDim>, 2, Side::queries, Normalizes,
                    OwnTokens<T, Map, Rotates, Side::keys>>;
template <class T, class Map, bool Rotates, int KeyDim, int ValueDim, bool Normalizes>
using KeyGradientCausal =
    FeatureGradient<KernelTraits<T, Map, Rotates, KeyDim, ValueDim>, 2, Side::keys, Normalizes,
                    OwnTokens<T, Map, Rotates, Side::queries>>;

template <class T, class Map, bool Rotates, int Dim, Sight sees, bool Divides>
using Pairs = PairTraits<T, Map, Rotates, Dim, Dim, sees, Divides>;
using Pairs64 = Pairs<BFloat16, Relu, !rotated, 64, Sight::all, divides>;
using Pairs72 = Pairs<BFloat16, Relu, !rotated, 72, Sight::all, divides>;
using PairsRotated72 = Pairs<BFloat16, Relu, rotated, 72, Sight::all, divides>;
using PairsCausal128 = Pairs<Half, Identity, rotated, 128, Sight::past_tokens, !divides>;

// One of each kind. These alone are compiled for other architectures than sm_90.
KERNEL(summarize_128,
       SummarizeBlocks<KernelTraits<BFloat16, EluPlusOne, !rotated, 128, 128>, 1, KeySums::plain>);
KERNEL(mix_128, MixBlocks<BFloat16, 1, 128, true>);
KERNEL(mix_tiled, MixBlocks<BFloat16, 1, 128, false>);
KERNEL(read_out_128,
       ReadOutBlocks<KernelTraits<BFloat16, EluPlusOne, !rotated, 128, 128>, divides>);
KERNEL(read_out_causal_128, ReadOutCausal<BFloat16, EluPlusOne, !rotated, 128, 128, divides>);
KERNEL(query_gradient_128, QueryGradient<BFloat16, EluPlusOne, !rotated, 128, 128, divides>);
KERNEL(key_gradient_128, KeyGradient<BFloat16, EluPlusOne, !rotated, 128, 128, divides>);
KERNEL(mixing_gradient_64, MultiplyMixedSummaries<BFloat16, 2, 64>);
KERNEL(tables_of_call, mhla::cuda::FillTables<float>);
KERNEL(key_sum_mixing, MixKeySums);
KERNEL(key_sum_products, AddKeySumProducts);
KERNEL(attend_64, AttendPairs<Pairs64>);
KERNEL(query_pairs_64, QueryPairsGradient<Pairs64>);
KERNEL(key_pairs_64, KeyPairsGradient<Pairs64>);
KERNEL(resident_72, AttendResident<KernelTraits<BFloat16, Relu, !rotated, 72, 72>, 72, divides>);
KERNEL(resident_one_team_128,
       AttendResident<KernelTraits<BFloat16, Relu, rotated, 128, 128>, 16, divides>);

#ifndef MHLA_ONE_OF_EACH_KIND

KERNEL(summarize_32,
       SummarizeBlocks<KernelTraits<BFloat16, EluPlusOne, !rotated, 32, 32>, 1, KeySums::plain>);
KERNEL(summarize_64,
       SummarizeBlocks<KernelTraits<BFloat16, Relu, rotated, 64, 64>, 1, KeySums::plain>);
KERNEL(summarize_72,
       SummarizeBlocks<KernelTraits<BFloat16, Relu, !rotated, 72, 72>, 1, KeySums::plain>);
KERNEL(summarize_96,
       SummarizeBlocks<KernelTraits<Half, SquaredRelu, !rotated, 96, 96>, 1, KeySums::plain>);
KERNEL(summarize_128_256,
       SummarizeBlocks<KernelTraits<BFloat16, Identity, rotated, 128, 256>, 1, KeySums::none>);
KERNEL(summarize_256,
       SummarizeBlocks<KernelTraits<BFloat16, EluPlusOne, !rotated, 256, 256>, 1, KeySums::plain>);
KERNEL(summarize_64_cube,
       SummarizeBlocks<KernelTraits<Half, Cube, rotated, 64, 64>, 2, KeySums::plain>);
KERNEL(summarize_128_rotated,
       SummarizeBlocks<KernelTraits<BFloat16, Relu, rotated, 128, 128>, 2, KeySums::plain>);

KERNEL(mix_32, MixBlocks<BFloat16, 1, 32, true>);
KERNEL(mix_128_half, MixBlocks<Half, 1, 128, true>);

KERNEL(read_out_32, ReadOutBlocks<KernelTraits<BFloat16, EluPlusOne, !rotated, 32, 32>, divides>);
KERNEL(read_out_64, ReadOutBlocks<KernelTraits<BFloat16, Relu, rotated, 64, 64>, divides>);
KERNEL(read_out_64_cube, ReadOutBlocks<KernelTraits<Half, Cube, rotated, 64, 64>, !divides>);
KERNEL(read_out_72, ReadOutBlocks<KernelTraits<BFloat16, Relu, !rotated, 72, 72>, divides>);
KERNEL(read_out_96, ReadOutBlocks<KernelTraits<Half, SquaredRelu, !rotated, 96, 96>, divides>);
KERNEL(read_out_128_rotated,
       ReadOutBlocks<KernelTraits<BFloat16, Relu, rotated, 128, 128>, !divides>);
KERNEL(read_out_128_256,
       ReadOutBlocks<KernelTraits<BFloat16, Identity, rotated, 128, 256>, !divides>);
KERNEL(read_out_256,
       ReadOutBlocks<KernelTraits<BFloat16, EluPlusOne, !rotated, 256, 256>, divides>);
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
KERNEL(key_gradient_72, KeyGradient<BFloat16, Relu, !rotated, 72, 72, divides>);
KERNEL(key_gradient_128_rotated, KeyGradient<Half, Cube, rotated, 128, 128, divides>);
KERNEL(key_gradient_256, KeyGradient<Half, EluPlusOne, !rotated, 256, 256, divides>);
KERNEL(key_gradient_causal_128_256,
       KeyGradientCausal<BFloat16, Identity, rotated, 128, 256, !divides>);

KERNEL(attend_72, AttendPairs<Pairs72>);
KERNEL(query_pairs_72, QueryPairsGradient<Pairs72>);
KERNEL(key_pairs_72, KeyPairsGradient<Pairs72>);
KERNEL(attend_72_rotated, AttendPairs<PairsRotated72>);
KERNEL(attend_causal_128, AttendPairs<PairsCausal128>);
KERNEL(query_pairs_causal_128, QueryPairsGradient<PairsCausal128>);
KERNEL(key_pairs_causal_128, KeyPairsGradient<PairsCausal128>);

KERNEL(resident_64_cube, AttendResident<KernelTraits<Half, Cube, rotated, 64, 64>, 16, divides>);
KERNEL(resident_96, AttendResident<KernelTraits<Half, SquaredRelu, !rotated, 96, 96>, 96, divides>);
KERNEL(resident_128, AttendResident<KernelTraits<BFloat16, Relu, rotated, 128, 128>, 64, divides>);

#endif
