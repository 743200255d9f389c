// SPDX-License-Identifier: MIT
// What the machine could move: bytes per second read from, and copied in, buffers that no cache
// holds.
#pragma once

#include <cstddef>
#include <cstring>
#include <mhla/core/executor.hpp>
#include <vector>

#include "clock.hpp"
#include "fma_peak.hpp"

namespace bench {

/// Reads bytes; the sum keeps the compiler from leaving it out. Several sums, so that additions do
/// not wait for each other.
inline float read_bytes(const char* data, std::size_t bytes) {
  using V = Vector<float>::type;
  constexpr std::size_t sums = 8;
  V sum[sums] = {};
  for (std::size_t at = 0; at + sums * sizeof(V) <= bytes; at += sums * sizeof(V))
    for (std::size_t s = 0; s < sums; ++s) {
      V value;
      std::memcpy(&value, data + at + s * sizeof(V), sizeof(V));
      sum[s] += value;
    }
  for (std::size_t s = 1; s < sums; ++s) sum[0] += sum[s];
  return sum[0][0];
}

class MemoryBandwidth {
 public:
  explicit MemoryBandwidth(std::size_t bytes) : from_(bytes, 0), to_(bytes) {}

  /// GB/s read.
  double read(const mhla::ExecutorRef& executor, Clock clock) {
    return rate(executor, clock, 1, [this](std::size_t at, std::size_t part) {
      volatile float sink = read_bytes(from_.data() + at, part);
      static_cast<void>(sink);
    });
  }
  /// GB/s read plus GB/s written.
  double copy(const mhla::ExecutorRef& executor, Clock clock) {
    return rate(executor, clock, 2, [this](std::size_t at, std::size_t part) {
      std::memcpy(to_.data() + at, from_.data() + at, part);
    });
  }

 private:
  template <class F>
  double rate(const mhla::ExecutorRef& executor, Clock clock, double times, F&& f) {
    const auto num_slots = static_cast<std::size_t>(executor.num_slots());
    const std::size_t part = from_.size() / num_slots;
    const double begin = now_in_seconds(clock);
    const auto task = [&](mhla::Index index, mhla::Index) {
      f(static_cast<std::size_t>(index) * part, part);
    };
    executor.parallel_for(static_cast<mhla::Index>(num_slots), task);
    return times * static_cast<double>(part * num_slots) / (now_in_seconds(clock) - begin) * 1e-9;
  }

  std::vector<char> from_;
  std::vector<char> to_;
};

}  // namespace bench
