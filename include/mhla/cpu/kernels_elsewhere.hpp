// SPDX-License-Identifier: MIT
// What takes long to compile and is the same for every variant: products, rows in and out of
// storage, element-wise feature maps. In a program whose translation units all define
// MHLA_KERNELS_ELSEWHERE, one of them includes <mhla/cpu/instantiate_kernels.hpp>; CMake's
// mhla::kernels does both.
#pragma once

#include <mhla/cpu/pairs/panel.hpp>
#include <mhla/cpu/quadratic/score_gradients.hpp>
#include <mhla/cpu/rotation_table.hpp>
#include <mhla/cpu/strided_rows.hpp>

// For an accumulator type.
#define MHLA_KERNELS(prefix, T)                                                                \
  prefix template const ProductTiles<T>& product_tiles<T>();                                   \
  prefix template const DotTiles<T>& dot_tiles<T>();                                           \
  prefix template void multiply<T>(const Product<T>&);                                         \
  prefix template void multiply_right_transposed<T>(const Panel<T>&, const Panel<const T>&,    \
                                                    const Panel<const T>&, Into, Index);       \
  prefix template void mix_rows<T>(const Panel<T>&, const Panel<const T>&, bool,               \
                                   const Panel<const T>&, Into);                               \
  prefix template void mix_rows<T>(const Panel<T>&, const Panel<const T>&, bool,               \
                                   const Panel<const T>&, Into, Terms);                        \
  prefix template void row_products<T>(const Span<T>&, const Panel<const T>&,                  \
                                       const Panel<const T>&);                                 \
  prefix template void add_rows<T>(const CompensatedSum<T>&, T, const Panel<const T>&, Into,   \
                                   const Panel<T>&);                                           \
  prefix template void add_scaled_row<T>(T*, T, const T*, Index);                              \
  prefix template T inner_product<T>(const Panel<const T>&, const Panel<const T>&);            \
  prefix template bool invert<T>(const Span<const T>&, const Span<T>&);                        \
  prefix template void RotationTable<T>::turn(const Panel<T>&, const Index(&)[3], Turn) const; \
  MHLA_SCORE_KERNELS(prefix, T)

// Of scores, by what queries see.
#define MHLA_SCORE_KERNELS(prefix, T)                  \
  MHLA_SCORE_KERNELS_OF(prefix, T, Sight::all)         \
  MHLA_SCORE_KERNELS_OF(prefix, T, Sight::past_blocks) \
  MHLA_SCORE_KERNELS_OF(prefix, T, Sight::past_tokens)
#define MHLA_SCORE_KERNELS_OF(prefix, T, S)                                                        \
  prefix template void quadratic::read_out_scores<T, S>(                                           \
      const quadratic::Weights<T, S>&, const TokenTile&, const quadratic::KeyPanels<T>&,           \
      const Panel<const T>&, const Panel<const T>&, const quadratic::Scratch<T>&, const Panel<T>&, \
      Span<T>);                                                                                    \
  prefix template struct quadratic::TileGradient<T, S>;

// For a storage type.
#define MHLA_STORAGE_KERNELS(prefix, T, Stored)                                         \
  prefix template void weighted_rows<T, Stored>(const Panel<T>&, const Span<const T>&,  \
                                                const Rows<const Stored>&);             \
  prefix template void store_rows<Stored, T>(const Rows<Stored>&, const Span<const T>&, \
                                             const Panel<const T>&, Update);            \
  prefix template void gather_strided<T, Stored>(const Panel<T>&,                       \
                                                 const StridedRows<const Stored>&);     \
  prefix template void scatter_strided<Stored, T>(                                      \
      const StridedRows<Stored>&, const Span<const T>&, const Panel<const T>&, Update); \
  MHLA_ELEMENTWISE_MAPS(MHLA_MAP_KERNELS, prefix, T, Stored)

// For a feature map.
#define MHLA_MAP_KERNELS(Map, prefix, T, Stored)                                          \
  prefix template void map_rows<Map, Stored, T>(const Map&, T, const Rows<const Stored>&, \
                                                const Panel<T>&);                         \
  prefix template void unmap_rows<Map, Stored, T>(                                        \
      const Map&, T, const Rows<const Stored>&, const Panel<const T>&, Span<const T>,     \
      const Rows<const T>&, const Rows<Stored>&, Update);

// For products of bfloat16 in pairs.
#define MHLA_PAIR_KERNELS(prefix)                                      \
  prefix template const PairFunctions<float>& pair_functions<float>(); \
  MHLA_ELEMENTWISE_MAPS(MHLA_PAIR_MAP_KERNELS, prefix)
#define MHLA_PAIR_MAP_KERNELS(Map, prefix)                                                     \
  prefix template void map_pair_rows<Map, BFloat16>(const Map&, const VnniPanel&, Index,       \
                                                    const Rows<const BFloat16>&, Span<float>); \
  prefix template void map_pair_columns<Map, BFloat16>(const Map&, float, const PairedRows&,   \
                                                       const Rows<const BFloat16>&,            \
                                                       Span<const float>, Span<float>);

#define MHLA_EVERY_KERNEL(prefix)               \
  MHLA_KERNELS(prefix, float)                   \
  MHLA_KERNELS(prefix, double)                  \
  MHLA_STORAGE_KERNELS(prefix, float, float)    \
  MHLA_STORAGE_KERNELS(prefix, float, BFloat16) \
  MHLA_STORAGE_KERNELS(prefix, float, Half)     \
  MHLA_STORAGE_KERNELS(prefix, double, double)  \
  MHLA_PAIR_KERNELS(prefix)

#if defined(MHLA_KERNELS_ELSEWHERE)
MHLA_NAMESPACE_BEGIN
namespace cpu {
MHLA_EVERY_KERNEL(extern)
}  // namespace cpu
MHLA_NAMESPACE_END
#endif
