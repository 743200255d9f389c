// SPDX-License-Identifier: MIT
// Times of work on a stream, by CUDA's events.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include "tests/gpu/cuda_resources.hpp"

namespace bench {

/// Microseconds of one run.
struct Quantiles {
  double median = 0;
  double p10 = 0;
  double p90 = 0;
  std::size_t samples = 0;
};

inline Quantiles quantiles(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double share) {
    return samples[static_cast<std::size_t>(share * static_cast<double>(samples.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.1), at(0.9), samples.size()};
}

class Event {
 public:
  Event() { gpu::check(cudaEventCreate(&event_), "cudaEventCreate"); }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }

  void record(cudaStream_t stream) const {
    gpu::check(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  double microseconds_since(const Event& earlier) const {
    float milliseconds = 0;
    gpu::check(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "cudaEventElapsedTime");
    return 1e3 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Runs `before` and `work` one after the other for about `seconds`, at least three times, and says
/// how long `work` took: on the stream, from the end of `before` on.
template <class Before, class Work>
Quantiles time_on(const gpu::Stream& stream, double seconds, const Before& before,
                  const Work& work) {
  using Clock = std::chrono::steady_clock;
  before();
  work();  // kernels are loaded, clocks rise
  stream.wait();
  std::vector<Event> begin, end;
  std::vector<double> samples;
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  // Rounds of as many runs as all before, so that the stream is waited for now and then only.
  for (std::size_t runs = 1; samples.size() < 3 || elapsed() < seconds; runs = samples.size()) {
    if (samples.size() >= 3) {
      const double one = elapsed() / static_cast<double>(samples.size());
      const double room = (seconds - elapsed()) / one;
      runs = std::min({runs, std::size_t{100}, static_cast<std::size_t>(std::max(1.0, room))});
    }
    while (begin.size() < runs) begin.emplace_back(), end.emplace_back();
    for (std::size_t i = 0; i < runs; ++i) {
      before();
      begin[i].record(stream);
      work();
      end[i].record(stream);
    }
    stream.wait();
    for (std::size_t i = 0; i < runs; ++i) samples.push_back(end[i].microseconds_since(begin[i]));
    if (samples.size() >= 2000) break;
  }
  return quantiles(samples);
}

}  // namespace bench
