// SPDX-License-Identifier: MIT
// What fused kernels need of the chip (sm_80 and later), as plain functions: a thread block with
// its shared memory, asynchronous copies, and products of 16-bit matrices by a warp. Everything
// that only a CUDA compiler understands is here and in launch.cuh, so that the tests can replace it
// by an emulation and run the kernels' own source.
//
// A kernel is a body, a function object run by every thread of a thread block:
//
//   struct Body {
//     static constexpr int threads = 256;          // of a thread block, a multiple of 32
//     static constexpr int shared_bytes = 65536;   // or int shared_bytes() const
//     static constexpr int min_blocks_per_sm = 2;  // for __launch_bounds__
//     MHLA_DEVICE void operator()(const machine::Block& block) const;
//   };
//   machine::run(device, number_of_blocks, body);
//
// "The warp meets" in a comment: all 32 lanes call the function together.
//
// From sm_90 on a kernel may start before earlier kernels of the stream have ended (programmatic
// dependent launch), so that its thread blocks are resident, and have read what they can, when
// those end. Hence every thread of a body, on every path, calls wait_for_earlier_kernels() once.
// Since later kernels can start only when all thread blocks have reached that call, the only
// kernels still running before it are the last one that run() launched and what cuBLAS and launch()
// enqueued after it. So before it waits, a body
//   - writes nothing to global memory: those kernels may still read it;
//   - reads nothing that they write: results of earlier stages. It may read tables that were filled
//     before that last kernel, and the caller's tensors, whose kernels precede it as well;
//   - reads nothing at all if it may be the first of a call: the caller's kernels may still be
//     writing the tensors.
#pragma once

#include <cuda_runtime.h>

#include <mhla/cuda/chip/device_memory.cuh>
#include <mhla/cuda/chip/shared_layout.hpp>
#include <mhla/cuda/device.hpp>

/// Functions that run only on the device.
#define MHLA_DEVICE __device__ __forceinline__
/// Before a loop whose counter indexes registers.
#define MHLA_DEVICE_UNROLL _Pragma("unroll")
/// Before a loop whose unrolling gains nothing.
#define MHLA_DEVICE_ROLLED _Pragma("unroll 1")

MHLA_NAMESPACE_BEGIN

namespace cuda::machine {

inline constexpr Index max_blocks = 0x7fffffff;

/// An address in the thread block's shared memory, in bytes from its start.
using Shared = std::uint32_t;

extern __shared__ __align__(128) unsigned char shared_memory[];

MHLA_DEVICE std::uint32_t address_of(Shared at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared_memory)) + at;
}

/// A thread block, as one of its threads sees it.
struct Block {
  Index number;  ///< of the block, in [0, blocks)
  Index blocks;
  int thread;      ///< in [0, threads)
  int warp_index;  ///< known to the compiler to be the same for all lanes: branches are uniform

  MHLA_DEVICE int lane() const { return thread % 32; }
  MHLA_DEVICE int warp() const { return warp_index; }
  /// As one of the threads of a team of so many, whole warps. sync() still waits for all.
  MHLA_DEVICE Block in_team(int threads) const {
    return {number, blocks, thread % threads, warp_index % (threads / 32)};
  }
  /// Waits for all threads of the block (__syncthreads); what they wrote to shared memory can be
  /// read then.
  MHLA_DEVICE void sync() const { __syncthreads(); }
  /// Synchronizes the threads of a warp.
  MHLA_DEVICE void sync_warp() const { __syncwarp(); }
};

/// An element of shared memory, or of the tensors: 1, 2, 4, 8 or 16 bytes, aligned to its size.
template <class U>
MHLA_DEVICE U read(Shared at) {
  return *reinterpret_cast<const U*>(shared_memory + at);
}
template <class U>
MHLA_DEVICE void write(Shared at, const U& value) {
  *reinterpret_cast<U*>(shared_memory + at) = value;
}
template <class U>
MHLA_DEVICE U load_from(const U* from) {
  return *from;
}
template <class U>
MHLA_DEVICE void store_to(U* to, const std::type_identity_t<U>& value) {
  *to = value;
}

/// Sixteen bytes, aligned to that; moved, never computed with.
struct alignas(16) Chunk {
  std::uint32_t word[4];
};
/// In one store: the compiler would cut a chunk of computed words into four.
MHLA_DEVICE void store_to(Chunk* to, const Chunk& value) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(to), "r"(value.word[0]),
               "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3])
               : "memory");
}

/// Starts an asynchronous copy of 16 bytes, aligned to 16 on both sides; if not `present` it writes
/// zeros and does not read `from`.
MHLA_DEVICE void copy_chunk(Shared to, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address_of(to)), "l"(from),
               "r"(present ? 16 : 0)
               : "memory");
}
/// Commits the copies that this thread started since the last call as a group.
MHLA_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until at most `pending` of this thread's groups are in flight. Other threads see what was
/// copied after the next sync().
template <int pending>
MHLA_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

/// Waits until all earlier work of the stream is done and its results can be read; the next kernel
/// may start from then on. Not before: it assumes that whatever precedes this one has ended. Below
/// sm_90 kernels do not start early, and this does nothing.
MHLA_DEVICE void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

/// This thread and block, opaque to the compiler: what depends on them is recomputed after
/// this, instead of being kept in registers across a loop.
MHLA_DEVICE Block known_anew(Block block) {
  asm volatile("" : "+r"(block.thread));
  std::uint32_t number;  // read here, as it depends on the thread
  asm("mov.u32 %0, %%ctaid.x;  // %1" : "=r"(number) : "r"(block.thread));
  block.number = number;
  return block;
}

/// The product of two 32-bit numbers in 64 bits: one instruction, which compilers miss where they
/// have extended a factor before.
MHLA_DEVICE Index wide_product(int a, int b) {
  Index product;
  asm("mul.wide.s32 %0, %1, %2;\n" : "=l"(product) : "r"(a), "r"(b));
  return product;
}

/// A number that is opaque to the compiler: found once, not from its parts wherever it is used.
MHLA_DEVICE Index found(Index number) {
  asm("" : "+l"(number));
  return number;
}

/// Four 8 x 8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8,
/// 16 bytes aligned to 16. Register m then holds elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4
/// of matrix m. The warp meets.
MHLA_DEVICE void load_matrices(std::uint32_t (&registers)[4], Shared row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address_of(row))
               : "memory");
}
/// Loads the matrices' transposes.
MHLA_DEVICE void load_matrices_transposed(std::uint32_t (&registers)[4], Shared row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(address_of(row))
               : "memory");
}

/// c += a b for a of 16 x 16, b of 16 x 8 and c of 16 x 8, with lane l, g = l / 4, t = 2 (l % 4):
///   a[0] = a(g, t..), a[1] = a(g + 8, t..), a[2] = a(g, t + 8..), a[3] = a(g + 8, t + 8..)
///   b[0] = b(t.., g), b[1] = b(t + 8.., g)
///   c[0] = c(g, t), c[1] = c(g, t + 1), c[2] = c(g + 8, t), c[3] = c(g + 8, t + 1)
/// T, BFloat16 or Half, is the type of a and b. The warp meets.
template <class T>
MHLA_DEVICE void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                              std::uint32_t b1) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, Half>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}
/// The first half of that: a of 16 x 8 in a[0] and a[1], b of 8 x 8.
template <class T>
MHLA_DEVICE void multiply_add(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
  } else {
    static_assert(std::is_same_v<T, Half>);
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
  }
}

/// The value, of 4 bytes, of lane `lane() ^ mask`. The warp meets.
template <class U>
MHLA_DEVICE U exchange(U value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

/// Two floats rounded to T, to nearest and ties to even, the first in the lower half.
template <class T>
MHLA_DEVICE std::uint32_t rounded_pair(float first, float second) {
  std::uint32_t pair;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    static_assert(std::is_same_v<T, Half>);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}
/// The elements of such a pair.
template <class T>
MHLA_DEVICE float first_of(std::uint32_t pair) {
  float first;
  if constexpr (std::is_same_v<T, BFloat16>) {
    first = __uint_as_float(pair << 16);
  } else {
    static_assert(std::is_same_v<T, Half>);
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}\n"
        : "=f"(first)
        : "r"(pair));
  }
  return first;
}
template <class T>
MHLA_DEVICE float second_of(std::uint32_t pair) {
  return first_of<T>(pair >> 16);
}

// The kernel that runs a body, on a one-dimensional grid: other dimensions are limited to 65535.
template <class Body>
__global__ void __launch_bounds__(Body::threads, Body::min_blocks_per_sm)
    run_blocks(const Body body) {
  body(Block{static_cast<Index>(blockIdx.x), static_cast<Index>(gridDim.x),
             static_cast<int>(threadIdx.x),
             __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0)});
}

/// Runs a body on that many thread blocks, on the device's stream; it may start before earlier
/// kernels have ended, as described above. Stream capture preserves that.
template <class Body>
void run(const CudaDevice& device, Index blocks, const Body& body) {
  static_assert(sizeof(Body) <= 4000, "mhla: a kernel's arguments are limited to 4 KB");
  static_assert(Body::threads % 32 == 0 && Body::threads <= 1024);
  if (blocks == 0) return;
  if (blocks > max_blocks)
    throw ShapeError({"mhla: ", blocks, " thread blocks are more than a CUDA launch can have"});
  const auto kernel = reinterpret_cast<const void*>(&run_blocks<Body>);
  const int shared_bytes = shared_bytes_of(body);
  give_shared_memory(kernel, shared_bytes);
  // Only code that waits may start early; code compiled for sm_80 does not wait, even on newer
  // chips.
  cudaFuncAttributes code{};
  check_launch(cudaFuncGetAttributes(&code, kernel));
  cudaLaunchAttribute begins_early{};
  begins_early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  begins_early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(blocks));
  launch.blockDim = dim3(Body::threads);
  launch.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
  launch.stream = device.stream();
  launch.attrs = &begins_early;
  launch.numAttrs = code.ptxVersion >= 90 ? 1 : 0;
  Body argument = body;
  void* arguments[] = {&argument};
  check_launch(cudaLaunchKernelExC(&launch, kernel, arguments));
}

}  // namespace cuda::machine

MHLA_NAMESPACE_END
