// SPDX-License-Identifier: MIT
// Kernels whose hot loops instruction_budget.py counts, each under the name that stands in
// instruction_budget.txt.
#include <mhla/cuda/fused/block_mixing.cuh>
#include <mhla/cuda/fused/block_summary.cuh>
#include <mhla/cuda/fused/feature_gradient.cuh>
#include <mhla/cuda/fused/quadratic.cuh>
#include <mhla/cuda/fused/quadratic_gradient.cuh>
#include <mhla/cuda/fused/readout.cuh>
#include <mhla/cuda/fused/resident.cuh>
#include <mhla/cuda/token_block.cuh>
#include <mhla/policy/feature_map.hpp>

using namespace mhla;
using namespace mhla::cuda::fused;

inline constexpr bool rotated = true;
inline constexpr bool divides = true;
inline constexpr bool adds = true;

#define KERNEL(name, ...)       \
  struct name : __VA_ARGS__ {}; \
  template void mhla::cuda::machine::run(const CudaDevice&, Index, const name&)

KERNEL(summarize_128,
       SummarizeBlocks<KernelTraits<BFloat16, Relu, rotated, 128, 128>, 1, KeySums::plain>);
KERNEL(summarize_64,
       SummarizeBlocks<KernelTraits<BFloat16, Relu, !rotated, 64, 64>, 1, KeySums::plain>);
KERNEL(read_out_128, ReadOutBlocks<KernelTraits<BFloat16, Relu, rotated, 128, 128>, divides>);
KERNEL(read_out_64, ReadOutBlocks<KernelTraits<BFloat16, Relu, !rotated, 64, 64>, divides>);

using Pairs72 = PairTraits<BFloat16, Relu, !rotated, 72, 72, Sight::all, divides>;
KERNEL(attend_72, AttendPairs<Pairs72>);
KERNEL(query_pairs_72, QueryPairsGradient<Pairs72>);
KERNEL(key_pairs_72, KeyPairsGradient<Pairs72>);

// The same for kernels of rows.
#define ROWS(name, ...)         \
  struct name : __VA_ARGS__ {}; \
  template void mhla::cuda::launch_rows(const CudaDevice&, Index, Index, name)

ROWS(gather_float, mhla::cuda::Gather<float, float>);
ROWS(gather_bfloat16, mhla::cuda::Gather<BFloat16, float>);
ROWS(scatter_float, mhla::cuda::Scatter<float, float, adds>);
ROWS(scatter_bfloat16, mhla::cuda::Scatter<BFloat16, float, adds>);
ROWS(map_float, mhla::cuda::MapFeatures<Relu, float, float, !rotated>);
ROWS(map_bfloat16, mhla::cuda::MapFeatures<Relu, BFloat16, float, !rotated>);
ROWS(map_float_rotated, mhla::cuda::MapFeatures<Relu, float, float, rotated>);
ROWS(unmap_float, mhla::cuda::UnmapFeatures<Relu, float, float, !rotated, adds>);
ROWS(unmap_float_rotated, mhla::cuda::UnmapFeatures<Relu, float, float, rotated, adds>);
ROWS(clear_masked_float, mhla::cuda::ClearMasked<float>);
KERNEL(summarize_dy_128,
       SummarizeBlocks<KernelTraits<BFloat16, Relu, rotated, 128, 128>, 2, KeySums::weighted>);
KERNEL(summarize_dy_64,
       SummarizeBlocks<KernelTraits<BFloat16, Relu, !rotated, 64, 64>, 2, KeySums::weighted>);
KERNEL(query_gradient_128,
       FeatureGradient<KernelTraits<BFloat16, Relu, rotated, 128, 128>, 2, Side::queries, divides>);
KERNEL(query_gradient_64,
       FeatureGradient<KernelTraits<BFloat16, Relu, !rotated, 64, 64>, 2, Side::queries, divides>);
KERNEL(key_gradient_128,
       FeatureGradient<KernelTraits<BFloat16, Relu, rotated, 128, 128>, 2, Side::keys, divides>);
KERNEL(key_gradient_64,
       FeatureGradient<KernelTraits<BFloat16, Relu, !rotated, 64, 64>, 2, Side::keys, divides>);
KERNEL(mix_128, MixBlocks<BFloat16, 1, 128, true>);
KERNEL(resident_72, AttendResident<KernelTraits<BFloat16, Relu, !rotated, 72, 72>, 72, divides>);

// Copies alone.
template <int Dim>
struct CopyTiles {
  static constexpr int threads = 256;
  static constexpr int shared_bytes = Tile<64, Dim>::bytes;
  static constexpr int min_blocks_per_sm = 2;
  Tokens<const BFloat16> x;

  MHLA_DEVICE void operator()(const Block& block) const {
    mhla::cuda::machine::wait_for_earlier_kernels();
    TokenRange range(Index{0}, Index{0}, Index{0}, block.number);
    for (; range.begin < range.end; range.begin += 64) {
      copy_tokens<threads>(block, x, range, Tile<64, Dim>{0});
      mhla::cuda::machine::commit_copies();
      mhla::cuda::machine::wait_for_copies<0>();
      block.sync();
    }
  }
};
KERNEL(copy_128, CopyTiles<128>);
KERNEL(copy_72, CopyTiles<72>);
