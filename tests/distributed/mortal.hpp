// SPDX-License-Identifier: MIT
// A rank that goes away.
#pragma once

#include <mhla/distributed/communicator.hpp>

namespace distributed_calls {

/// The rank that goes away.
inline constexpr mhla::Index victim = 1;

/// A communicator of whose ranks the victim calls die() in its `exchange`-th exchange, before it
/// has sent anything.
template <class Communicator>
struct Mortal {
  const Communicator* ranks;
  int exchange;
  void (*die)();
  mutable int done = 0;

  mhla::Index rank() const { return ranks->rank(); }
  mhla::Index size() const { return ranks->size(); }
  void all_gather(const void* sent, void* received, mhla::Span<const mhla::Part> parts) const {
    live();
    ranks->all_gather(sent, received, parts);
  }
  void all_to_all(const void* sent, mhla::Span<const mhla::Part> to, void* received,
                  mhla::Span<const mhla::Part> from) const {
    live();
    ranks->all_to_all(sent, to, received, from);
  }
  auto start_all_to_all(const void* sent, mhla::Span<const mhla::Part> to, void* received,
                        mhla::Span<const mhla::Part> from) const {
    live();
    return ranks->start_all_to_all(sent, to, received, from);
  }

 private:
  void live() const {
    if (rank() == victim && done++ == exchange) die();
  }
};

}  // namespace distributed_calls
