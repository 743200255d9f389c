// SPDX-License-Identifier: MIT
// A sequence shared out by blocks: the bits of one process, whatever the ranks and their shares.
#include <mhla/distributed.hpp>

#include "tests/cpu/executors.hpp"
#include "tests/distributed/calls.hpp"
#include "tests/distributed/sequence_call.hpp"
#include "tests/distributed/thread_ranks.hpp"
#include "tests/support/catch.hpp"

namespace {

using mhla::Index;
using mhla::Shape;

template <class T, class V>
void check(const V& attention, const Shape& shape) {
  for (const Index ranks : {1, 2, 4, 7})
    for (const std::uint64_t seed : {0u, 3u}) {
      INFO(ranks << " ranks, shares " << seed);
      const auto outcomes = thread_ranks::run(ranks, [&](const auto& communicator) {
        distributed_calls::run_by_sequence<T>(communicator, attention, shape, seed);
      });
      for (const std::string& outcome : outcomes) CHECK(outcome == "");
    }
}

}  // namespace

TEST_CASE("by sequence: the bits of one process") {
  distributed_calls::for_each_call(
      [&](const char* name, auto scalar, const auto& attention, const Shape& shape) {
        SECTION(name) { check<decltype(scalar)>(attention, shape); }
      });
}
