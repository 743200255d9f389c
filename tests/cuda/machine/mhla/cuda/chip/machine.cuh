// SPDX-License-Identifier: MIT
// In place of the library's machine.cuh: runs kernels' bodies, their true source, on the CPU, a
// fiber for each thread. Blocks run in any order, warps starve each other for random stretches,
// lanes go on in any order between two meetings; all of it follows from cublasContext::seed.
//
// run() throws stand_in::KernelFault, in words, where a body
//   - comes to a meeting of a warp without the other lanes, or of another kind or place in the
//     source than theirs; to a barrier that others never come to; reads forever what none can
//     write;
//   - accesses shared memory outside shared_bytes_of(body), or any memory not aligned to the
//   access;
//   - accesses global memory, before it has waited for earlier kernels, in a way that machine.cuh
//     forbids; or ends without having waited for them. Whether it may be the first of a call is
//     what cublasContext::under_way says. What launch() writes is not known here;
//   - races: threads access one place, one of them writing, without a barrier between them that
//     both came to (for threads of one warp sync_warp() is one, for others only sync(); matrix
//     loads, products and exchanges are none). In shared and in global memory; there the blocks of
//     a launch race, too. The source of a copy is read when it begins;
//   - touches what a copy writes before its own thread has waited for it, whether the copy landed
//     at once, at the wait or at some meeting in between; or ends with copies not waited for.
// Shared memory is NaN when a block begins. Bytes of global memory are counted in cublasContext.
//
// What none of this proves:
//   - time: occupancy, registers and spills, conflicts of banks, coalescing, caches (cp.async.cg,
//     L2). A launch whose registers have no room on a chip runs here; more shared memory than
//     the chip has is refused;
//   - the last bits of products: multiply_add sums in double and rounds once with c; a tensor core
//     sums in float, in an order and with a truncation that NVIDIA does not document;
//   - the memory model of a warp beyond barriers, and forward progress of threads that wait for
//     each other without one;
//   - that lanes which meet here do so in one instruction: two calls of one inlined function are
//     one place in the source; and what nvcc makes of the source, its unrolling, its fast division;
//   - accesses that do not go through these functions, such as a table read through a plain
//     pointer, and addresses outside of the tensors, which AddressSanitizer and canaries find;
//   - stale or uninitialized registers, exponentials and conversions of the chip, streams, graphs,
//     and everything asynchronous but copies: launches do not overlap here, they are held to what
//     lets them.
#pragma once

#include <cstdint>
#include <cstring>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/cuda/chip/device_memory.cuh>
#include <mhla/cuda/chip/shared_layout.hpp>
#include <mhla/cuda/device.hpp>
#include <type_traits>

#include "cublas_v2.h"
#include "cuda_runtime_api.h"
#include "emulation/launch.hpp"
#include "emulation/thread_block.hpp"

#define MHLA_DEVICE inline
#define MHLA_DEVICE_UNROLL
#define MHLA_DEVICE_ROLLED

MHLA_NAMESPACE_BEGIN

namespace cuda::machine {

// Every name means what it means there.

using stand_in::max_blocks;

using Shared = std::uint32_t;

using stand_in::Meeting;
using stand_in::Site;
inline stand_in::ThreadBlock& threads_of_block() { return stand_in::ThreadBlock::current(); }

struct Block {
  Index number;
  Index blocks;
  int thread;

  int lane() const { return thread % 32; }
  int warp() const { return thread / 32; }
  Block in_team(int threads) const { return {number, blocks, thread % threads}; }
  void sync(Site site = Site::current()) const { threads_of_block().meet(Meeting::sync, site); }
  void sync_warp(Site site = Site::current()) const {
    threads_of_block().meet(Meeting::sync_warp, site);
  }
};

template <class U>
inline constexpr bool is_element = std::is_trivially_copyable_v<U> &&
                                   (sizeof(U) == 1 || sizeof(U) == 2 || sizeof(U) == 4 ||
                                    sizeof(U) == 8 || sizeof(U) == 16);

template <class U>
U read(Shared at, Site site = Site::current()) {
  static_assert(is_element<U>, "an element has 1, 2, 4, 8 or 16 bytes");
  U value;
  std::memcpy(&value, threads_of_block().shared(stand_in::Access::read, at, sizeof(U), site),
              sizeof(U));
  return value;
}
template <class U>
void write(Shared at, const U& value, Site site = Site::current()) {
  static_assert(is_element<U>, "an element has 1, 2, 4, 8 or 16 bytes");
  std::memcpy(threads_of_block().shared(stand_in::Access::write, at, sizeof(U), site), &value,
              sizeof(U));
}
template <class U>
U load_from(const U* from, Site site = Site::current()) {
  static_assert(is_element<U>, "an element has 1, 2, 4, 8 or 16 bytes");
  threads_of_block().global(stand_in::GlobalAccess::load, from, sizeof(U), site);
  U value;
  std::memcpy(&value, from, sizeof(U));
  return value;
}
template <class U>
void store_to(U* to, const std::type_identity_t<U>& value, Site site = Site::current()) {
  static_assert(is_element<U>, "an element has 1, 2, 4, 8 or 16 bytes");
  threads_of_block().global(stand_in::GlobalAccess::store, to, sizeof(U), site);
  std::memcpy(static_cast<void*>(to), &value, sizeof(U));
}

struct alignas(16) Chunk {
  std::uint32_t word[4];
};

inline void copy_chunk(Shared to, const void* from, bool present, Site site = Site::current()) {
  threads_of_block().begin_copy(to, from, present, site);
}
inline void commit_copies() { threads_of_block().commit_copies(); }
template <int pending>
void wait_for_copies() {
  static_assert(pending >= 0);
  threads_of_block().wait_for_copies(pending);
}

inline void wait_for_earlier_kernels() { threads_of_block().wait_for_earlier_kernels(); }

inline Block known_anew(const Block& block) { return block; }
inline Index wide_product(int a, int b) { return Index{a} * b; }
inline Index found(Index number) { return number; }

inline void load_matrices(std::uint32_t (&registers)[4], Shared row, Site site = Site::current()) {
  stand_in::Part& part = threads_of_block().part();
  part.registers = registers;
  part.row = row;
  threads_of_block().meet(Meeting::load_matrices, site);
}
inline void load_matrices_transposed(std::uint32_t (&registers)[4], Shared row,
                                     Site site = Site::current()) {
  stand_in::Part& part = threads_of_block().part();
  part.registers = registers;
  part.row = row;
  threads_of_block().meet(Meeting::load_matrices_transposed, site);
}

template <class T>
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                  Site site = Site::current()) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>);
  stand_in::Part& part = threads_of_block().part();
  part.c = c;
  part.a = {a[0], a[1], a[2], a[3]};
  part.b = {b0, b1};
  threads_of_block().meet(
      std::is_same_v<T, BFloat16> ? Meeting::multiply_add_bfloat16 : Meeting::multiply_add_half,
      site);
}
template <class T>
void multiply_add(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b,
                  Site site = Site::current()) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Half>);
  stand_in::Part& part = threads_of_block().part();
  part.c = c;
  part.a = {a0, a1};
  part.b = {b};
  threads_of_block().meet(
      std::is_same_v<T, BFloat16> ? Meeting::multiply_add_8_bfloat16 : Meeting::multiply_add_8_half,
      site);
}

template <class U>
U exchange(U value, int mask, Site site = Site::current()) {
  static_assert(sizeof(U) == 4 && std::is_trivially_copyable_v<U>);
  stand_in::Part& part = threads_of_block().part();
  std::memcpy(&part.value, &value, 4);
  part.mask = mask;
  threads_of_block().meet(Meeting::exchange, site);
  std::memcpy(&value, &part.value, 4);
  return value;
}

template <class T>
std::uint32_t rounded_pair(float first, float second) {
  T low, high;
  store(low, first);
  store(high, second);
  return static_cast<std::uint32_t>(low.bits) | static_cast<std::uint32_t>(high.bits) << 16;
}
template <class T>
float first_of(std::uint32_t pair) {
  return load(T::from_bits(static_cast<std::uint16_t>(pair & 0xffffu)));
}
template <class T>
float second_of(std::uint32_t pair) {
  return load(T::from_bits(static_cast<std::uint16_t>(pair >> 16)));
}

/// A body whatever its type: what does not depend on that is compiled once.
template <class Body>
stand_in::Kernel kernel_of(const Body& body) {
  static_assert(sizeof(Body) <= 4000, "mhla: a kernel's arguments are limited to 4 KB");
  static_assert(std::is_trivially_copyable_v<Body>, "a kernel's arguments are copied as bytes");
  static_assert(Body::threads % 32 == 0 && Body::threads <= 1024);
  static_assert(Body::min_blocks_per_sm > 0);
  return {&body, Body::threads, shared_bytes_of(body),
          [](const void* of, Index number, Index blocks, int thread) {
            (*static_cast<const Body*>(of))(Block{number, blocks, thread});
          }};
}

/// Runs a body on so many thread blocks, one after the other.
template <class Body>
void run(const CudaDevice& device, Index blocks, const Body& body) {
  stand_in::run(device, blocks, kernel_of(body));
}

}  // namespace cuda::machine

MHLA_NAMESPACE_END
