// SPDX-License-Identifier: MIT
// A communicator around another one that counts bytes and takes the time: what a Communicator of
// one's own looks like.
#pragma once

#include <chrono>
#include <mhla/distributed/communicator.hpp>
#include <utility>

namespace distributed_video {

using mhla::Index;
using mhla::Part;
using mhla::Span;

using Clock = std::chrono::steady_clock;
inline double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Between this rank and the others.
struct Meter {
  Index sent = 0;      ///< bytes
  Index received = 0;  ///< bytes
  double milliseconds = 0;
};

template <mhla::Communicator C>
class Metered {
 public:
  explicit Metered(const C& ranks) : ranks_(&ranks) {}

  Index rank() const { return ranks_->rank(); }
  Index size() const { return ranks_->size(); }

  void all_gather(const void* sent, void* received, Span<const Part> parts) const {
    const auto start = Clock::now();
    ranks_->all_gather(sent, received, parts);
    count(
        start, [&](Index) { return parts[rank()].bytes; }, parts);
  }
  void all_to_all(const void* sent, Span<const Part> to, void* received,
                  Span<const Part> from) const {
    const auto start = Clock::now();
    ranks_->all_to_all(sent, to, received, from);
    count(
        start, [&](Index r) { return to[r].bytes; }, from);
  }

  /// Since the last call.
  Meter take() const { return std::exchange(meter_, {}); }

 private:
  template <class Sent>
  void count(Clock::time_point start, const Sent& sent_to, Span<const Part> from) const {
    meter_.milliseconds += milliseconds_since(start);
    for (Index r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      meter_.sent += sent_to(r);
      meter_.received += from[r].bytes;
    }
  }

  const C* ranks_;
  mutable Meter meter_;
};

}  // namespace distributed_video
