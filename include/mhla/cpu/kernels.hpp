// SPDX-License-Identifier: MIT
// The kernels of kernels.inc for every instruction set, and the choice among them at run time: a
// program compiled without architecture flags uses the machine's vectors. The instruction set is
// part of a kernel's type, so that translation units compiled with different flags can be linked
// into one program.
#pragma once

#include <array>
#include <limits>
#include <mhla/cpu/exponential.hpp>
#include <mhla/cpu/instruction_set.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Rows of a matrix in memory: row r is at data + places[r] * stride, or, without places, at data +
/// r * stride.
template <class T>
struct Rows {
  T* data = nullptr;
  Index stride = 0;
  const Index* places = nullptr;

  T* operator[](Index r) const { return data + (places != nullptr ? places[r] : r) * stride; }
  template <class U, class = std::enable_if_t<std::is_same_v<U, const T> && !std::is_const_v<T>>>
  operator Rows<U>() const {  // NOLINT: adds const, loses nothing
    return {data, stride, places};
  }
};

/// g_r + weight_r h_r: weights are 1 if they are null, and h may be absent.
template <class T>
struct RowGradients {
  Rows<const T> rows;
  const T* weights;
  Rows<const T> weighted;
};

/// Maximum rows of a product's factors that need not be contiguous.
inline constexpr Index max_placed_rows = 128;

/// Places of consecutive rows.
inline constexpr std::array<Index, std::size_t{max_placed_rows}> consecutive_places = [] {
  std::array<Index, std::size_t{max_placed_rows}> places{};
  for (std::size_t r = 0; r < places.size(); ++r) places[r] = static_cast<Index>(r);
  return places;
}();

/// Memory that is needed soon: rows of up to four tensors at the same places, and then contiguous
/// memory. A product prefetches one cache line with every term of its sums: no burst that would
/// stall the product, and no wait later.
class Prefetch {
 public:
  /// Empty until tensors are added.
  Prefetch() = default;
  /// Without places, row r is in place r.
  Prefetch(const Index* places, Index rows) : places_(places), rows_(rows) {}

  /// Row r at data + places[r] * stride; `stride` and `length` of a row in bytes.
  void add(const void* data, Index stride, Index length) { add(data, stride, length, rows_); }
  /// Adds the first `rows` rows only; the first tensor has all of them.
  void add(const void* data, Index stride, Index length, Index rows) {
    if (rows == 0 || length == 0) return;
    tensors_[count_++] = {static_cast<const char*>(data), stride, length, rows};
    if (count_ == 1) lines_ = row();
  }
  /// `bytes` contiguous bytes, after the last row of the tensors.
  void add_piece(const void* data, Index bytes) {
    if (count_ == 0 || bytes == 0) return;
    const char* const begin = static_cast<const char*>(data);
    piece_ = {begin, begin + bytes, line_bytes};
  }

  /// Lines from here to the end of a row: what a loop keeps in registers. After the last line,
  /// one line repeats.
  struct Lines {
    const char* next;
    const char* end;
    Index step;
  };
  const Lines& lines() const { return lines_; }
  void set_lines(const Lines& lines) { lines_ = lines; }

  /// The lines of the next row.
  __attribute__((always_inline)) Lines next_row() {
    if (++tensor_ >= count_ || row_ >= tensors_[tensor_].rows) {
      tensor_ = 0;
      if (++row_ >= rows_) {
        const Lines last = piece_;
        piece_.step = 0;
        return last;
      }
    }
    return row();
  }

 private:
  static constexpr Index line_bytes = 64;
  static constexpr int max_tensors = 4;
  static constexpr char here[1] = {};

  __attribute__((always_inline)) Lines row() const {
    const Tensor& tensor = tensors_[tensor_];
    const char* const begin =
        tensor.data + (places_ != nullptr ? places_[row_] : row_) * tensor.stride;
    return {begin, begin + tensor.length, line_bytes};
  }

  struct Tensor {
    const char* data;
    Index stride;
    Index length;
    Index rows;
  };
  Lines lines_{here, here + 1, 0};
  Lines piece_{here, here + 1, 0};
  const Index* places_ = nullptr;
  Index rows_ = 0;
  Index row_ = 0;
  int tensor_ = 0;
  int count_ = 0;
  Tensor tensors_[max_tensors];
};

/// c [rows, cols] (+)= a b or a^T b, each row times its scale.
template <class T>
struct Product {
  Index rows;
  Index cols;
  Index depth;
  Rows<const T> a;  // [rows, depth], without places; or [depth, rows]
  bool a_transposed = false;
  Rows<const T> b;  // [depth, cols]; without places unless a is transposed
  Rows<T> c;
  bool add = false;
  const T* scale = nullptr;      // [rows]; null: 1
  Prefetch* prefetch = nullptr;  // memory to prefetch meanwhile, or null
  // If set, the product is summed separately and then added to c, so that the error of many
  // products does not grow with all their terms; otherwise c's sum is continued, and has the same
  // bits wherever it is cut.
  bool in_parts = false;
};

/// sum += weight times the rows of a; running_r, unless null, is sum after row r. With `rest`,
/// which carries each part's rounding error to the next, errors of sums of many parts do not
/// accumulate.
template <class T>
struct RowSum {
  Index rows;
  Index cols;
  T weight;
  const T* a;
  Index a_stride;
  T* sum;
  T* rest = nullptr;
  T* running = nullptr;
  Index running_stride = 0;
};

/// Rows of a triangle that are processed together.
inline constexpr Index triangle_rows = 8;

/// Which terms the rows of a product have: all of them; or, past, row i all but the last
/// rows - 1 - i; or, future, all but the first i.
enum class Terms { all, past, future };

// Loops over a tile are unrolled: their sums are registers. g++ optimizes kernels whatever the
// flags of the rest; otherwise it would also omit what makes the transition from AVX to SSE code
// cheap. Of -O3, loops use only the vectorizer: the rest doubles their compile time. On x86 tiles
// go without the passes of -O2 that take a ninth of a program's compile time and find nothing in
// them: their branches are few, and the processor reorders instructions itself.
#define MHLA_NOINLINE __attribute__((noinline))
#define MHLA_INLINE __attribute__((always_inline))
#if defined(__clang__)
#define MHLA_UNROLL _Pragma("clang loop unroll(full)")
#define MHLA_KERNEL __attribute__(())
#define MHLA_KERNEL_LOOP __attribute__(())
#else
#define MHLA_UNROLL _Pragma("GCC unroll 16")
#if defined(__x86_64__)
#define MHLA_KERNEL                                                                \
  __attribute__((optimize("O2", "no-tree-vectorize", "no-tree-vrp", "no-tree-ccp", \
                          "no-tree-dominator-opts", "no-thread-jumps", "no-gcse",  \
                          "no-schedule-insns2")))
#else
#define MHLA_KERNEL __attribute__((optimize("O2", "no-tree-vectorize")))
#endif
#define MHLA_KERNEL_LOOP \
  __attribute__((optimize("O2", "tree-loop-vectorize", "vect-cost-model=dynamic")))
#endif
#define MHLA_KERNEL_FOR(features) MHLA_KERNEL __attribute__((target(features)))
#define MHLA_KERNEL_LOOP_FOR(features) MHLA_KERNEL_LOOP __attribute__((target(features)))

// nvcc warns of g++'s pragmas, which it passes on to g++.
#if defined(__CUDACC__) && defined(__NVCC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675
#endif
#include <mhla/cpu/kernels/cuts.inc>
#include <mhla/cpu/kernels/pairs.inc>

// One element at a time, of any type.
#define MHLA_ISA scalar
#define MHLA_ISA_TARGET MHLA_KERNEL
#define MHLA_ISA_LOOP MHLA_KERNEL_LOOP
#define MHLA_ISA_BYTES 0
#define MHLA_ISA_ROWS 2
#define MHLA_ISA_VECTORS 2
#include <mhla/cpu/kernels.inc>

// Sixteen bytes: NEON, SSE2, or what the compiler maps them to. Few tile shapes where almost every
// machine has longer vectors: every program compiles them.
#define MHLA_ISA portable
#define MHLA_ISA_TARGET MHLA_KERNEL
#define MHLA_ISA_BYTES 16
#if defined(__x86_64__)
#define MHLA_ISA_LOOP MHLA_KERNEL
#define MHLA_ISA_ROWS 4
#define MHLA_ISA_VECTORS 1
#else
#define MHLA_ISA_LOOP MHLA_KERNEL_LOOP
#define MHLA_ISA_ROWS 6
#if defined(__aarch64__)
#define MHLA_ISA_VECTORS 4
#else
#define MHLA_ISA_VECTORS 2
#endif
#endif
#if defined(__aarch64__) && defined(__clang__)
#define MHLA_ISA_PAIR_TARGET MHLA_KERNEL_FOR("bf16")
#define MHLA_ISA_PAIR_LOOP MHLA_KERNEL_LOOP_FOR("bf16")
#elif defined(__aarch64__)
// In the order that they are written in, a tile's loads need no registers beyond those there are.
#define MHLA_ISA_PAIR_TARGET \
  __attribute__((optimize("O2", "no-tree-vectorize", "no-schedule-insns"), target("+bf16")))
#define MHLA_ISA_PAIR_LOOP MHLA_KERNEL_LOOP_FOR("+bf16")
#else
#define MHLA_ISA_PAIR_TARGET MHLA_KERNEL
#define MHLA_ISA_PAIR_LOOP MHLA_KERNEL_LOOP
#endif
#include <mhla/cpu/kernels.inc>

#if defined(__x86_64__)
// Every CPU with AVX2 has F16C.
#define MHLA_ISA avx2
#define MHLA_ISA_TARGET MHLA_KERNEL_FOR("avx2,fma,f16c")
#define MHLA_ISA_LOOP MHLA_KERNEL_LOOP_FOR("avx2,fma,f16c")
#define MHLA_ISA_BYTES 32
#define MHLA_ISA_ROWS 6
#define MHLA_ISA_VECTORS 2
#include <mhla/cpu/kernels.inc>

// In these versions of clang 512-bit registers are a separate feature, which zig switches off.
#if defined(__clang__) && !defined(__apple_build_version__) && __clang_major__ >= 18 && \
    __clang_major__ <= 21
#define MHLA_AVX512_FEATURES "avx512f,avx512vl,avx512dq,fma,evex512"
#else
#define MHLA_AVX512_FEATURES "avx512f,avx512vl,avx512dq,fma"
#endif
#define MHLA_ISA avx512
#define MHLA_ISA_TARGET MHLA_KERNEL_FOR(MHLA_AVX512_FEATURES)
#define MHLA_ISA_LOOP MHLA_KERNEL_LOOP_FOR(MHLA_AVX512_FEATURES)
#define MHLA_ISA_BYTES 64
#define MHLA_ISA_ROWS 6
#define MHLA_ISA_VECTORS 4
// Compilers use none of these but where they are written.
#define MHLA_PAIR_FEATURES MHLA_AVX512_FEATURES ",avx512bw,avx512bf16,amx-tile,amx-bf16"
#define MHLA_ISA_PAIR_TARGET MHLA_KERNEL_FOR(MHLA_PAIR_FEATURES)
#define MHLA_ISA_PAIR_LOOP MHLA_KERNEL_LOOP_FOR(MHLA_PAIR_FEATURES)
#include <mhla/cpu/kernels.inc>
#undef MHLA_PAIR_FEATURES
#undef MHLA_AVX512_FEATURES

#endif
#if defined(__CUDACC__) && defined(__NVCC__)
#pragma nv_diagnostic pop
#endif
#undef MHLA_UNROLL
#undef MHLA_NOINLINE
#undef MHLA_INLINE
#undef MHLA_KERNEL
#undef MHLA_KERNEL_LOOP
#undef MHLA_KERNEL_FOR
#undef MHLA_KERNEL_LOOP_FOR

/// Calls f with the kernels for T of the best instruction set that this machine has.
template <class T, class F>
void with_kernels(F&& f) {
  if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
#if defined(__x86_64__)
    const InstructionSet set = instruction_set();
    if (set == InstructionSet::avx512) return f(avx512::Kernels<T>{});
    if (set == InstructionSet::avx2) return f(avx2::Kernels<T>{});
#endif
    return f(portable::Kernels<T>{});
  } else {
    return f(scalar::Kernels<T>{});
  }
}

/// Calls f with the kernels of pair_instruction(), or any if there is none; T is float.
template <class T, class F>
void with_pair_kernels(F&& f) {
#if defined(MHLA_PAIR_PRODUCTS_STAND_IN)
  using portable::PairKernels;
  using namespace portable::stand_in;
  switch (pair_instruction()) {
    case PairInstruction::bfmmla:
      return f(PairKernels<T, Bfmmla>{});
    case PairInstruction::tdpbf16ps:
      return f(portable::TiledPairKernels<T, PairKernels<T, Vdpbf16ps>, Tdpbf16ps>{});
    default:
      return f(PairKernels<T, Vdpbf16ps>{});
  }
#elif defined(__x86_64__)
  using Vectors = avx512::PairKernels<T, avx512::Vdpbf16ps>;
  if (has_tdpbf16ps()) return f(avx512::TiledPairKernels<T, Vectors, avx512::Tdpbf16ps>{});
  return f(Vectors{});
#elif defined(__aarch64__)
  return f(portable::PairKernels<T, portable::Bfmmla>{});
#else
  return f(portable::PairKernels<T, portable::stand_in::Vdpbf16ps>{});
#endif
}

}  // namespace cpu

MHLA_NAMESPACE_END
