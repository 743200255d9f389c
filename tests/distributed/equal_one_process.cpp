// SPDX-License-Identifier: MIT
// Shared calls have the bits of one process, whatever the ranks and their shares: threads. mpi.cpp
// is the same on processes.
#include <string>
#include <vector>

#include "tests/distributed/cases.hpp"
#include "tests/distributed/thread_ranks.hpp"
#include "tests/support/catch.hpp"

namespace {

constexpr mhla::Index numbers_of_ranks[] = {MHLA_NUMBERS_OF_RANKS};

void check(const std::vector<distributed_calls::Case>& cases) {
  for (const auto& of : cases)
    for (const mhla::Index ranks : numbers_of_ranks)
      for (const std::uint64_t seed : {0u, 3u}) {
        INFO(of.name << ", " << ranks << " ranks, shares " << seed);
        for (const std::string& outcome : thread_ranks::run(
                 ranks, [&](const auto& communicator) { of.run(communicator, seed); }))
          CHECK(outcome == "");
      }
}

}  // namespace

TEST_CASE("by sequence: the bits of one process") { check(distributed_calls::cases_by_sequence()); }

TEST_CASE("by heads: the bits of one process") { check(distributed_calls::cases_by_heads()); }
