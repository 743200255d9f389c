// SPDX-License-Identifier: MIT
// What the machine could do: fused multiply-adds per second at the vector width of the compiler's
// flags, and bytes per second to memory. Measured beside every result, because the clock of a busy
// or shared machine does not stand still.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <mhla/core/executor.hpp>
#include <type_traits>
#include <vector>

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

/// Seconds of this clock are what work on an executor is measured in: of the calling thread's
/// processor time where it does everything itself, so that what other programs take of a busy
/// machine does not count, and of the wall's clock where it waits for others.
template <class Executor>
double now_in_seconds(const Executor&) {
#if defined(CLOCK_THREAD_CPUTIME_ID)
  if constexpr (std::is_same_v<Executor, mhla::SerialExecutor>) {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }
#endif
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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

/// GFLOP/s of one burst of about a quarter of a millisecond on every slot of the executor.
template <class T, class Executor>
double fma_peak(const Executor& executor) {
  constexpr std::ptrdiff_t rounds = 60000;
  const auto slots = static_cast<std::ptrdiff_t>(executor.slots());
  const double begin = now_in_seconds(executor);
  executor.parallel_for(slots, [](auto, auto) { fma_burst<T>(rounds); });
  const double seconds = now_in_seconds(executor) - begin;
  return burst_flops<T>(rounds) * static_cast<double>(slots) / seconds * 1e-9;
}

/// GB/s of copying a buffer that no cache holds to another: bytes read plus bytes written.
class MemoryCopy {
 public:
  explicit MemoryCopy(std::size_t bytes) : from_(bytes, 1), to_(bytes) {}

  template <class Executor>
  double gigabytes_per_second(const Executor& executor) {
    const auto slots = static_cast<std::size_t>(executor.slots());
    const std::size_t part = from_.size() / slots;
    const double begin = now_in_seconds(executor);
    executor.parallel_for(static_cast<std::ptrdiff_t>(slots), [&](auto task, auto) {
      const std::size_t at = static_cast<std::size_t>(task) * part;
      std::memcpy(to_.data() + at, from_.data() + at, part);
    });
    const double seconds = now_in_seconds(executor) - begin;
    return 2.0 * static_cast<double>(part * slots) / seconds * 1e-9;
  }

 private:
  std::vector<char> from_;
  std::vector<char> to_;
};

}  // namespace bench
