// SPDX-License-Identifier: MIT
// What the machine could compute: fused multiply-adds per second at the vector width of the
// compiler's flags. Measured beside every result, because the clock of a busy or shared machine
// does not stand still.
#pragma once

#include <cstddef>
#include <mhla/core/executor.hpp>
#include <mhla/core/scalar.hpp>

#include "clock.hpp"

namespace bench {

#if defined(__AVX512F__)
inline constexpr int vector_bytes = 64;
inline constexpr const char* vector_isa = "AVX-512";
#elif defined(__AVX__)
inline constexpr int vector_bytes = 32;
#if defined(__FMA__)
inline constexpr const char* vector_isa = "AVX with FMA";
#else
inline constexpr const char* vector_isa = "AVX without FMA";
#endif
#else
inline constexpr int vector_bytes = 16;
inline constexpr const char* vector_isa = "128-bit vectors, the compiler's default";
#endif
#if defined(MHLA_MAX_VECTOR_BYTES)
static_assert(vector_bytes <= MHLA_MAX_VECTOR_BYTES,
              "the flags allow wider vectors than the library may use: percent of peak would be of "
              "another machine's");
#endif

template <class T>
struct Vector;
template <>
struct Vector<float> {
  typedef float type __attribute__((vector_size(vector_bytes)));
};
template <>
struct Vector<double> {
  typedef double type __attribute__((vector_size(vector_bytes)));
};

/// Multiply-adds of this many dependent chains are in flight at once: more than the latency of a
/// multiply-add times the number of units that today's cores have, and no more than their
/// registers.
inline constexpr int fma_chains = 12;

/// FLOPs of a burst of `rounds`.
template <class T>
constexpr double burst_flops(std::ptrdiff_t rounds) {
  return 2.0 * fma_chains * static_cast<double>(vector_bytes) / sizeof(T) *
         static_cast<double>(rounds);
}

/// Runs chain = chain * factor + term, `rounds` times for every chain, on this thread.
template <class T>
void fma_burst(std::ptrdiff_t rounds) {
  using V = typename Vector<T>::type;
  const volatile T opaque_factor = T(0.999);  // keeps the loop from being computed in advance
  const volatile T opaque_term = T(0.001);
  const V factor = V{} + opaque_factor;
  const V term = V{} + opaque_term;
  V chain[fma_chains];
  for (int c = 0; c < fma_chains; ++c) chain[c] = V{} + static_cast<T>(c);
  for (std::ptrdiff_t round = 0; round < rounds; ++round)
    for (int c = 0; c < fma_chains; ++c) chain[c] = chain[c] * factor + term;
  V sum{};
  for (int c = 0; c < fma_chains; ++c) sum += chain[c];
  volatile T sink = sum[0];
  static_cast<void>(sink);
}

/// Chains of VDPBF16PS, whose latency is longer.
inline constexpr int pair_chains = 24;

/// The same of bfloat16, two multiply-adds a lane: VDPBF16PS, only for machines that have it.
template <>
constexpr double burst_flops<mhla::BFloat16>(std::ptrdiff_t rounds) {
  return 4.0 * pair_chains * 16 * static_cast<double>(rounds);
}
#if defined(__x86_64__)
#if defined(__clang__)
#define MHLA_BENCH_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MHLA_BENCH_UNROLL _Pragma("GCC unroll 24")
#endif
template <>
__attribute__((target("avx512f,avx512bf16"))) inline void fma_burst<mhla::BFloat16>(
    std::ptrdiff_t rounds) {
  typedef float Floats __attribute__((vector_size(64)));
  const volatile float opaque = 0x1.067506p-10f;  // two bfloat16, 0.001 each
  const Floats factor = Floats{} + opaque;
  Floats chain[pair_chains];
  for (int c = 0; c < pair_chains; ++c) chain[c] = Floats{} + static_cast<float>(c);
  for (std::ptrdiff_t round = 0; round < rounds; ++round)
    MHLA_BENCH_UNROLL for (int c = 0; c < pair_chains; ++c) {
      Floats one = chain[c];  // an operand of its own: g++ leaves elements of arrays in memory
      asm("vdpbf16ps %1, %1, %0" : "+v"(one) : "v"(factor));
      chain[c] = one;
    }
  Floats sum{};
  for (int c = 0; c < pair_chains; ++c) sum += chain[c];
  volatile float sink = sum[0];
  static_cast<void>(sink);
}
#undef MHLA_BENCH_UNROLL
#else
template <>
inline void fma_burst<mhla::BFloat16>(std::ptrdiff_t) {}
#endif

/// GFLOP/s of one burst of about a quarter of a millisecond on every slot of the executor.
template <class T>
double fma_peak(const mhla::ExecutorRef& executor, Clock clock) {
  constexpr std::ptrdiff_t rounds = 60000;
  const mhla::Index num_slots = executor.num_slots();
  const double begin = now_in_seconds(clock);
  const auto burst = [](mhla::Index, mhla::Index) { fma_burst<T>(rounds); };
  executor.parallel_for(num_slots, burst);
  const double seconds = now_in_seconds(clock) - begin;
  return burst_flops<T>(rounds) * static_cast<double>(num_slots) / seconds * 1e-9;
}

}  // namespace bench
