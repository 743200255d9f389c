// SPDX-License-Identifier: MIT
// Products by libxsmm, where bench/CMakeLists.txt has found it: MHLA_BENCH_LIBXSMM.
#pragma once

#include <functional>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <string>
#if defined(MHLA_BENCH_LIBXSMM)
#include <libxsmm.h>
#endif

namespace bench {

/// c [rows, cols] = a b, row-major; a is [rows, depth], or [depth, rows] if transposed. Strides are
/// in elements; of bfloat16, b is in pairs of rows (libxsmm's VNNI format) and b_stride in pairs.
template <class T, class Sum>
struct LibxsmmProduct {
  mhla::Index rows, cols, depth;
  const T* a;
  mhla::Index a_stride;
  bool transposed;
  const T* b;
  mhla::Index b_stride;
  Sum* c;
  mhla::Index c_stride;
};

#if defined(MHLA_BENCH_LIBXSMM)

/// What it compiles for.
inline std::string libxsmm_target() {
  libxsmm_init();
  return std::string(LIBXSMM_VERSION) + ", " + libxsmm_get_target_arch();
}

/// Empty if libxsmm has no kernel for it. Its matrices are column-major: those of the transposed
/// product, c^T = b^T a^T.
template <class T, class Sum, class Kernel, class Dispatch>
std::function<void()> libxsmm_call(const LibxsmmProduct<T, Sum>& p, int flags, Dispatch dispatch) {
  const auto extent = [](mhla::Index i) { return static_cast<libxsmm_blasint>(i); };
  const libxsmm_blasint lda = extent(p.b_stride);
  const libxsmm_blasint ldb = extent(p.a_stride);
  const libxsmm_blasint ldc = extent(p.c_stride);
  const float alpha = 1;
  const float beta = 0;
  if (p.transposed) flags |= LIBXSMM_GEMM_FLAG_TRANS_B;
  const Kernel kernel = dispatch(extent(p.cols), extent(p.rows), extent(p.depth), &lda, &ldb, &ldc,
                                 &alpha, &beta, &flags, nullptr);
  if (kernel == nullptr) return {};
  return [=] { kernel(p.b, p.a, p.c); };
}

inline std::function<void()> libxsmm_product(const LibxsmmProduct<float, float>& p) {
  return libxsmm_call<float, float, libxsmm_smmfunction>(p, 0, libxsmm_smmdispatch);
}
inline const libxsmm_bfloat16* libxsmm_bits(const mhla::BFloat16* x) {
  return reinterpret_cast<const libxsmm_bfloat16*>(x);
}
inline std::function<void()> libxsmm_product(const LibxsmmProduct<mhla::BFloat16, float>& p) {
  return libxsmm_call<libxsmm_bfloat16, float, libxsmm_bsmmfunction>(
      {p.rows, p.cols, p.depth, libxsmm_bits(p.a), p.a_stride, p.transposed, libxsmm_bits(p.b),
       p.b_stride, p.c, p.c_stride},
      LIBXSMM_GEMM_FLAG_VNNI_A, libxsmm_bsmmdispatch);
}
inline std::function<void()> libxsmm_product(
    const LibxsmmProduct<mhla::BFloat16, mhla::BFloat16>& p) {
  return libxsmm_call<libxsmm_bfloat16, libxsmm_bfloat16, libxsmm_bmmfunction>(
      {p.rows, p.cols, p.depth, libxsmm_bits(p.a), p.a_stride, p.transposed, libxsmm_bits(p.b),
       p.b_stride, reinterpret_cast<libxsmm_bfloat16*>(p.c), p.c_stride},
      LIBXSMM_GEMM_FLAG_VNNI_A, libxsmm_bmmdispatch);
}

#else

inline std::string libxsmm_target() { return "was not found; no peer of products"; }

template <class T, class Sum>
std::function<void()> libxsmm_product(const LibxsmmProduct<T, Sum>&) {
  return {};
}

#endif

}  // namespace bench
