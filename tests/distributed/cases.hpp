// SPDX-License-Identifier: MIT
// Calls that ranks share, compiled once for ranks that are threads and ranks that are processes.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <mhla/distributed/communicator.hpp>
#include <mhla/distributed/propose_split.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace distributed_calls {

/// A borrowed communicator of any type, that counts bytes to and from other ranks.
class AnyCommunicator {
 public:
  template <mhla::Communicator C>
  requires(!std::same_as<C, AnyCommunicator>)
      AnyCommunicator(const C& communicator)  // NOLINT: stands for the communicator
      : rank_(communicator.rank()),
        size_(communicator.size()),
        all_gather_([&](const void* sent, void* received, Parts parts) {
          communicator.all_gather(sent, received, parts);
        }),
        all_to_all_([&](const void* sent, Parts to, void* received, Parts from) {
          communicator.all_to_all(sent, to, received, from);
        }),
        start_([&](const void* sent, Parts to, void* received, Parts from) -> Wait {
          if constexpr (mhla::OverlapsMessages<C>) {
            auto pending = communicator.start_all_to_all(sent, to, received, from);
            return [all = std::make_shared<decltype(pending)>(std::move(pending))] { all->wait(); };
          } else {
            communicator.all_to_all(sent, to, received, from);
            return [] {};
          }
        }) {}

  mhla::Index rank() const { return rank_; }
  mhla::Index size() const { return size_; }
  void all_gather(const void* sent, void* received, mhla::Span<const mhla::Part> parts) const {
    sent_ += (size_ - 1) * parts[rank_].bytes;
    count(received_, parts);
    all_gather_(sent, received, parts);
  }
  void all_to_all(const void* sent, mhla::Span<const mhla::Part> to, void* received,
                  mhla::Span<const mhla::Part> from) const {
    count(sent_, to);
    count(received_, from);
    all_to_all_(sent, to, received, from);
  }
  /// As soon as it can be.
  auto start_all_to_all(const void* sent, mhla::Span<const mhla::Part> to, void* received,
                        mhla::Span<const mhla::Part> from) const {
    struct Pending {
      Wait take;
      void wait() const { take(); }
    };
    count(sent_, to);
    count(received_, from);
    return Pending{start_(sent, to, received, from)};
  }

  /// Throws unless these are the bytes since the last call.
  void require_bytes(const char* pass, const mhla::RankTraffic& said) const {
    const mhla::Index sent = std::exchange(sent_, 0);
    const mhla::Index received = std::exchange(received_, 0);
    if (sent != said.sent || received != said.received)
      throw std::runtime_error(std::string(pass) + " sends " + std::to_string(sent) + " for " +
                               std::to_string(said.sent) + " bytes, receives " +
                               std::to_string(received) + " for " + std::to_string(said.received));
  }
  void forget_bytes() const { sent_ = received_ = 0; }

 private:
  void count(mhla::Index& total, mhla::Span<const mhla::Part> parts) const {
    for (mhla::Index r = 0; r < size_; ++r)
      if (r != rank_) total += parts[r].bytes;
  }

  using Parts = mhla::Span<const mhla::Part>;
  using Wait = std::function<void()>;
  mhla::Index rank_;
  mhla::Index size_;
  mutable mhla::Index sent_ = 0;
  mutable mhla::Index received_ = 0;
  std::function<void(const void*, void*, Parts)> all_gather_;
  std::function<void(const void*, Parts, void*, Parts)> all_to_all_;
  std::function<Wait(const void*, Parts, void*, Parts)> start_;
};

/// What every rank runs; throws where results are not those of one process, or bytes not those of
/// SplitTraffic. Of two seeds, 0 stands
/// for equal shares.
struct Case {
  const char* name;
  std::function<void(const AnyCommunicator&, std::uint64_t seed)> run;
};
std::vector<Case> cases_by_sequence();
std::vector<Case> cases_by_heads();

}  // namespace distributed_calls
