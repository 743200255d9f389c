// SPDX-License-Identifier: MIT
// The head dimensions that a variant's fused kernels are compiled for: listed after the scalar in
// MHLA_INSTANTIATE_CUDA, and known to the program's plain .cpp files at link time, so that they
// size a workspace as the kernels do.
#pragma once

#include <iterator>
#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Key and value dimension of a head.
struct HeadDimsPair {
  Index key_dim;
  Index value_dim;

  bool operator==(const HeadDimsPair&) const = default;
};

/// A borrowed list of head dimensions.
struct HeadDimsList {
  const HeadDimsPair* data = nullptr;
  Index size = 0;

  constexpr bool has(Index key_dim, Index value_dim) const {
    for (Index i = 0; i < size; ++i)
      if (data[i].key_dim == key_dim && data[i].value_dim == value_dim) return true;
    return false;
  }
};

// Head dimensions that fused kernels are written for: of keys, of values.
#define MHLA_FUSED_HEAD_DIMS(f) \
  f(32, 32) f(64, 64) f(72, 72) f(96, 96) f(128, 128) f(256, 256) f(128, 256)

#define MHLA_PAIR(key_dim, value_dim) {key_dim, value_dim},
inline constexpr HeadDimsPair fused_head_dims[] = {MHLA_FUSED_HEAD_DIMS(MHLA_PAIR)};
#undef MHLA_PAIR

constexpr bool has_fused_kernels(Index key_dim, Index value_dim) {
  return HeadDimsList{fused_head_dims, std::size(fused_head_dims)}.has(key_dim, value_dim);
}

// How messages list them.
#define MHLA_SAID(key_dim, value_dim) #key_dim "/" #value_dim ", "
#define MHLA_FUSED_HEAD_DIMS_SAID MHLA_FUSED_HEAD_DIMS(MHLA_SAID) "and no others"
inline constexpr const char* fused_head_dims_said = MHLA_FUSED_HEAD_DIMS_SAID;

/// Tokens of a tile: fewer if rows are long.
MHLA_HOST_DEVICE constexpr int tile_rows(Index key_dim) { return key_dim > 128 ? 32 : 64; }
/// Strips of a row of features (fused/features.cuh): elements of each half, 16 or 8 bytes, and the
/// lanes that share a row, as few as give every thread a row of a tile.
MHLA_HOST_DEVICE constexpr int strip_width(Index dim) { return dim % 64 == 0 ? 8 : 4; }
MHLA_HOST_DEVICE constexpr int lanes_of_row(Index dim) {
  return dim < 128 ? 4 : static_cast<int>(dim / 16);
}

}  // namespace cuda

/// \ingroup cuda
/// Head dimensions to compile fused kernels for, in MHLA_INSTANTIATE_CUDA: those that
/// cuda/README.md lists.
template <int KeyDim, int ValueDim>
struct HeadDims {
  static_assert(cuda::has_fused_kernels(KeyDim, ValueDim),
                "mhla: fused CUDA kernels exist for head dimensions " MHLA_FUSED_HEAD_DIMS_SAID
                ": leave those out, they run on cuBLAS");
  static constexpr int key_dim = KeyDim;      ///< of q and k
  static constexpr int value_dim = ValueDim;  ///< of v
};

#undef MHLA_FUSED_HEAD_DIMS_SAID
#undef MHLA_SAID
#undef MHLA_FUSED_HEAD_DIMS

namespace cuda {

template <class Dims>
inline constexpr bool is_head_dims = false;
template <int KeyDim, int ValueDim>
inline constexpr bool is_head_dims<HeadDims<KeyDim, ValueDim>> = true;

/// Head dimensions as types.
template <class... Dims>
struct HeadDimsOf {
  static_assert((is_head_dims<Dims> && ...),
                "mhla: MHLA_INSTANTIATE_CUDA(Variant, Scalar, ...) takes head dimensions after "
                "the scalar: mhla::HeadDims<128, 128>, mhla::HeadDims<64, 64>");
  static constexpr Index size = sizeof...(Dims);

  static constexpr HeadDimsList list() { return {pairs, size}; }

  /// Calls f(HeadDims<...>()) for the entry that fits a call; false if none does.
  template <class F>
  static bool visit([[maybe_unused]] Index key_dim, [[maybe_unused]] Index value_dim,
                    [[maybe_unused]] const F& f) {
    return ((Dims::key_dim == key_dim && Dims::value_dim == value_dim && (f(Dims()), true)) || ...);
  }

 private:
  static constexpr HeadDimsPair pairs[sizeof...(Dims) + 1] = {{Dims::key_dim, Dims::value_dim}...,
                                                              {0, 0}};
};

}  // namespace cuda

MHLA_NAMESPACE_END
