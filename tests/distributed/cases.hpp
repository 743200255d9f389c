// SPDX-License-Identifier: MIT
// Calls that ranks share, compiled once for ranks that are threads and ranks that are processes.
#pragma once

#include <cstdint>
#include <functional>
#include <mhla/distributed/communicator.hpp>
#include <vector>

namespace distributed_calls {

/// A borrowed communicator of any type.
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
        }) {}

  mhla::Index rank() const { return rank_; }
  mhla::Index size() const { return size_; }
  void all_gather(const void* sent, void* received, mhla::Span<const mhla::Part> parts) const {
    all_gather_(sent, received, parts);
  }
  void all_to_all(const void* sent, mhla::Span<const mhla::Part> to, void* received,
                  mhla::Span<const mhla::Part> from) const {
    all_to_all_(sent, to, received, from);
  }

 private:
  using Parts = mhla::Span<const mhla::Part>;
  mhla::Index rank_;
  mhla::Index size_;
  std::function<void(const void*, void*, Parts)> all_gather_;
  std::function<void(const void*, Parts, void*, Parts)> all_to_all_;
};

/// What every rank runs; throws where results are not those of one process. Of two seeds, 0 stands
/// for equal shares.
struct Case {
  const char* name;
  std::function<void(const AnyCommunicator&, std::uint64_t seed)> run;
};
std::vector<Case> cases_by_sequence();
std::vector<Case> cases_by_heads();

}  // namespace distributed_calls
