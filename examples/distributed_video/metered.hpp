// SPDX-License-Identifier: MIT
// A communicator around another one that counts bytes and takes the time: what a Communicator of
// one's own looks like.
#pragma once

#include <algorithm>
#include <chrono>
#include <mhla/distributed/communicator.hpp>
#include <thread>
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

/// If `megabytes_per_second` is more than 0, messages arrive as late as they would by a link that
/// carries so many each way.
template <mhla::Communicator C>
class Metered {
 public:
  Metered(const C& ranks, double megabytes_per_second)
      : ranks_(&ranks), rate_(megabytes_per_second) {}

  Index rank() const { return ranks_->rank(); }
  Index size() const { return ranks_->size(); }

  void all_gather(const void* sent, void* received, Span<const Part> parts) const {
    const Waiting waiting(*this);
    const auto arrival = count([&](Index) { return parts[rank()].bytes; }, parts);
    ranks_->all_gather(sent, received, parts);
    std::this_thread::sleep_until(arrival);
  }
  void all_to_all(const void* sent, Span<const Part> to, void* received,
                  Span<const Part> from) const {
    const Waiting waiting(*this);
    const auto arrival = count([&](Index r) { return to[r].bytes; }, from);
    ranks_->all_to_all(sent, to, received, from);
    std::this_thread::sleep_until(arrival);
  }
  auto start_all_to_all(const void* sent, Span<const Part> to, void* received,
                        Span<const Part> from) const requires mhla::OverlapsMessages<C> {
    const Waiting waiting(*this);
    const auto arrival = count([&](Index r) { return to[r].bytes; }, from);
    return Pending{this, arrival, ranks_->start_all_to_all(sent, to, received, from)};
  }

  /// Since the last call.
  Meter take() const { return std::exchange(meter_, {}); }

 private:
  struct Waiting {
    const Metered& metered;
    Clock::time_point start = Clock::now();
    explicit Waiting(const Metered& of) : metered(of) {}
    ~Waiting() { metered.meter_.milliseconds += milliseconds_since(start); }
  };
  template <class Started>
  struct Pending {
    const Metered* metered;
    Clock::time_point arrival;
    Started started;

    void wait() {
      const Waiting waiting(*metered);
      started.wait();
      std::this_thread::sleep_until(arrival);
    }
  };
  template <class Started>
  Pending(const Metered*, Clock::time_point, Started) -> Pending<Started>;

  // When a message has arrived.
  template <class Sent>
  Clock::time_point count(const Sent& sent_to, Span<const Part> from) const {
    Meter message;
    for (Index r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      message.sent += sent_to(r);
      message.received += from[r].bytes;
    }
    meter_.sent += message.sent;
    meter_.received += message.received;
    if (rate_ == 0) return {};
    const auto bytes = static_cast<double>(std::max(message.sent, message.received));
    link_free_ = std::max(link_free_, Clock::now()) +
                 std::chrono::duration_cast<Clock::duration>(
                     std::chrono::duration<double, std::micro>(bytes / rate_));
    return link_free_;
  }

  const C* ranks_;
  double rate_;
  mutable Meter meter_;
  mutable Clock::time_point link_free_;
};

}  // namespace distributed_video
