// SPDX-License-Identifier: MIT
// NCCL as a communicator: what is in nccl/nccl.h stands in for it. What ranks receive, in which
// calls it goes, and that whatever fails ends in time, aborts the communicator, and is said.
#include <mhla/nccl.hpp>
// After it, so that the stand-in was found first.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/distributed/cases.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

static_assert(mhla::Communicator<mhla::NcclCommunicator>);

namespace {

using namespace mhla;
using mhla::testing::random_index;

using Bytes = std::vector<std::uint8_t>;
using Parts = std::vector<Part>;

// Ranks, each a thread with a stream of its own.
struct Ranks {
  stand_in::Fabric fabric;
  std::vector<ncclComm> communicators;
  std::vector<stand_in::CUstream_st> streams;
  std::chrono::milliseconds timeout;

  explicit Ranks(int size, std::chrono::milliseconds patience = std::chrono::seconds(20))
      : communicators(static_cast<std::size_t>(size)),
        streams(static_cast<std::size_t>(size)),
        timeout(patience) {
    for (int r = 0; r < size; ++r) {
      of(r).fabric = &fabric;
      of(r).rank = r;
      of(r).size = size;
    }
  }
  ncclComm& of(int rank) { return communicators[static_cast<std::size_t>(rank)]; }
  stand_in::CUstream_st& stream(int rank) { return streams[static_cast<std::size_t>(rank)]; }

  // What each rank throws in body(communicator), or "".
  std::vector<std::string> run(const std::function<void(const NcclCommunicator&)>& body) {
    std::vector<std::string> outcomes(communicators.size());
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < communicators.size(); ++r)
      threads.emplace_back([&, r] {
        try {
          body(NcclCommunicator(&communicators[r], &streams[r], timeout));
          if (cudaPeekAtLastError() != cudaSuccess) outcomes[r] = "it has left an error";
          if (stand_in::depth != 0) outcomes[r] = "it has left a group open";
        } catch (const std::exception& failure) {
          outcomes[r] = failure.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }
  // That none has thrown, and all that was sent has been received.
  void check(const std::function<void(const NcclCommunicator&)>& body) {
    for (const std::string& outcome : run(body)) CHECK(outcome == "");
    for (const auto& [way, box] : fabric.boxes) CHECK(box.empty());
  }
};

Span<const Part> span(const Parts& parts) {
  return {parts.data(), static_cast<Index>(parts.size())};
}

// Byte i of what rank `from` sends to `to`; -1: to all.
std::uint8_t sent_byte(Index from, Index to, Index i) {
  return static_cast<std::uint8_t>(31 * from + 7 * (to + 1) + 3 * i + 1);
}

// Parts of random lengths, one in four of nothing, with gaps between them.
Index random_bytes(Index from, Index to, std::uint64_t seed) {
  const auto at = static_cast<std::uint64_t>(64 * from + to + 1);
  return random_index(seed, at, 4) == 0 ? 0 : 1 + random_index(seed + 1, at, 50);
}

// Fails unless ranks receive each other's bytes.
void gather(const NcclCommunicator& ranks, const std::function<Index(Index)>& bytes_of, Index gap,
            bool in_place) {
  Parts parts;
  Index end = 5;
  for (Index r = 0; r < ranks.size(); ++r) {
    parts.push_back({end, bytes_of(r)});
    end += bytes_of(r) + gap;
  }
  const Part& own = parts[static_cast<std::size_t>(ranks.rank())];
  constexpr Index after = 16;  // bytes that are nobody's
  Bytes received(static_cast<std::size_t>(end + after), 0);
  Bytes sent(static_cast<std::size_t>(own.bytes + after));
  for (std::size_t i = 0; i < sent.size(); ++i)
    sent[i] = sent_byte(ranks.rank(), -1, static_cast<Index>(i));
  Bytes expected(received.size(), 0);
  for (Index r = 0; r < ranks.size(); ++r)
    for (Index i = 0; i < bytes_of(r); ++i)
      expected[static_cast<std::size_t>(parts[static_cast<std::size_t>(r)].first + i)] =
          sent_byte(r, -1, i);
  const std::uint8_t* from = sent.data();
  if (in_place) {
    std::copy_n(sent.begin(), own.bytes, received.begin() + own.first);
    from = received.data() + own.first;
  }
  ranks.all_gather(from, received.data(), span(parts));
  if (received != expected) throw CommunicationError("other bytes were received");
}

void exchange(const NcclCommunicator& ranks, std::uint64_t seed) {
  Parts to, from;
  Bytes sent, expected;
  Index end = 0;
  for (Index r = 0; r < ranks.size(); ++r) {
    const Index bytes = random_bytes(ranks.rank(), r, seed);
    to.push_back({static_cast<Index>(sent.size()), bytes});
    for (Index i = 0; i < bytes; ++i) sent.push_back(sent_byte(ranks.rank(), r, i));
  }
  for (Index r = 0; r < ranks.size(); ++r) {
    const Index bytes = random_bytes(r, ranks.rank(), seed);
    from.push_back({end + 3, bytes});
    expected.insert(expected.end(), 3, 0);
    for (Index i = 0; i < bytes; ++i) expected.push_back(sent_byte(r, ranks.rank(), i));
    end += 3 + bytes;
  }
  Bytes received(expected.size(), 0);
  ranks.all_to_all(sent.data(), span(to), received.data(), span(from));
  if (received != expected) throw CommunicationError("other bytes were received");
}

}  // namespace

TEST_CASE("nccl: a timeout for ever is no timeout") {
  Ranks ranks(3, std::chrono::milliseconds::max());
  ranks.check([](const NcclCommunicator& communicator) {
    for (int call = 0; call < 20; ++call) {
      std::this_thread::sleep_for(std::chrono::milliseconds(communicator.rank()));
      gather(
          communicator, [](Index) { return 7; }, 0, false);
    }
  });
}

TEST_CASE("nccl: parts of all ranks") {
  const auto for_each = [](const auto& test) {
    for (const int size : {1, 2, 5})
      for (const bool in_place : {false, true}) {
        CAPTURE(size, in_place);
        Ranks ranks(size);
        test(ranks, size, in_place);
      }
  };
  const auto nine = [](Index) { return Index{9}; };
  SECTION("equal and side by side: one call") {
    for_each([&](Ranks& ranks, int size, bool in_place) {
      ranks.check([&](const auto& c) { gather(c, nine, 0, in_place); });
      for (int r = 0; r < size; ++r) CHECK(ranks.of(r).calls["ncclAllGather"] == 1);
    });
  }
  SECTION("equal with gaps") {
    for_each([&](Ranks& ranks, int size, bool in_place) {
      ranks.check([&](const auto& c) { gather(c, nine, 2, in_place); });
      for (int r = 0; r < size; ++r)
        CHECK(ranks.of(r).calls["ncclAllGather"] == (size == 1 ? 1 : 0));
    });
  }
  SECTION("side by side, the last one shorter") {
    for_each([&](Ranks& ranks, int size, bool in_place) {
      const auto bytes_of = [&](Index r) { return Index{r == size - 1 ? 4 : 9}; };
      ranks.check([&](const auto& c) { gather(c, bytes_of, 0, in_place); });
    });
  }
  SECTION("of other lengths, some of nothing") {
    for_each([&](Ranks& ranks, int, bool in_place) {
      for (const std::uint64_t seed : {1u, 2u, 3u})
        ranks.check([&](const auto& c) {
          gather(
              c, [&](Index r) { return random_bytes(r, -1, seed); }, 1, in_place);
        });
    });
  }
  SECTION("of nothing at all") {
    for_each([&](Ranks& ranks, int size, bool in_place) {
      ranks.check([&](const auto& c) {
        gather(
            c, [](Index) { return Index{0}; }, 0, in_place);
      });
      for (int r = 0; r < size; ++r) CHECK(ranks.of(r).calls["ncclBroadcast"] == 0);
    });
  }
}

TEST_CASE("nccl: bytes from every rank to every other") {
  for (const int size : {1, 2, 5})
    for (const std::uint64_t seed : {1u, 2u, 3u, 4u}) {
      CAPTURE(size, seed);
      Ranks ranks(size);
      ranks.check([&](const auto& c) { exchange(c, seed); });
      for (int r = 0; r < size; ++r) CHECK(ranks.of(r).calls["ncclGroupEnd"] <= 1);
    }
}

TEST_CASE("nccl: a communicator that does not block") {
  Ranks ranks(3);
  for (int r = 0; r < 3; ++r) ranks.of(r).in_progress = 5 + r;
  ranks.check([&](const auto& c) { exchange(c, 1); });
  for (int r = 0; r < 3; ++r) CHECK(ranks.of(r).in_progress == 0);
}

// Memory is the host's, but for what is allocated on the device, within the scope.
struct OnHost {
  OnHost() { stand_in::device_memory.is_all = false; }
  ~OnHost() { stand_in::device_memory.is_all = true; }
};

TEST_CASE("nccl: messages in host memory go through the device") {
  const OnHost host;
  stand_in::device_memory.copies = 0;
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    Ranks(3).check([&](const auto& c) {
      exchange(c, seed);
      gather(
          c, [](Index r) { return 3 + 2 * r; }, 2, seed == 2);
      gather(
          c, [](Index) { return 4; }, 0, seed == 3);
    });
  }
  CHECK(stand_in::device_memory.copies > 0);
  CHECK(stand_in::device_memory.allocated.empty());  // given back
}

TEST_CASE("nccl: calls that ranks share have the bits of one process") {
  const OnHost host;
  for (const auto& of : distributed_calls::cases_by_sequence()) {
    INFO(of.name);
    Ranks(3).check([&](const auto& c) { of.run(c, 3); });
  }
  for (const auto& of : distributed_calls::cases_by_heads()) {
    INFO(of.name);
    Ranks(3).check([&](const auto& c) { of.run(c, 3); });
  }
}

namespace {

// What ranks say when something fails on rank 1 of 3; all that throw have aborted, once.
std::vector<std::string> failing(const std::function<void(Ranks&)>& plant, bool one_is_silent) {
  Ranks ranks(3, std::chrono::milliseconds(200));
  plant(ranks);
  const auto begin = std::chrono::steady_clock::now();
  auto outcomes = ranks.run([&](const auto& c) {
    if (one_is_silent && c.rank() == 1) return;
    try {
      gather(
          c, [](Index r) { return 3 + r; }, 0, false);
    } catch (const CommunicationError&) {
      // It cannot be used any more, and is not.
      const std::string again = error_message<CommunicationError>([&] { exchange(c, 1); });
      if (!says(again, "rank ", " of 3: all_to_all: the communicator was aborted"))
        throw CommunicationError({"then it says: ", again});
      throw;
    }
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
  for (int r = 0; r < 3; ++r) {
    CAPTURE(r, outcomes[static_cast<std::size_t>(r)]);
    CHECK(ranks.of(r).aborted == !outcomes[static_cast<std::size_t>(r)].empty());
    CHECK(ranks.of(r).calls["ncclCommAbort"] <= 1);
    CHECK_FALSE(ranks.of(r).used_after_abort);
  }
  return outcomes;
}

}  // namespace

TEST_CASE("nccl: a rank that does not answer") {
  const auto outcomes = failing([](Ranks&) {}, true);
  for (const std::size_t r : {0u, 2u})
    CHECK(says(outcomes[r],
               "mhla: rank " + std::to_string(r) + " of 3: all_gather: it has waited 200 ms"));
  CHECK(outcomes[1] == "");
}

TEST_CASE("nccl: calls that fail") {
  for (const std::string call : {"ncclBroadcast", "ncclGroupEnd", "ncclCommGetAsyncError"}) {
    const auto outcomes = failing(
        [&](Ranks& ranks) {
          ranks.of(1).refused = call;
          ranks.of(1).refuse_with = ncclSystemError;
        },
        false);
    CHECK(says(outcomes[1],
               "mhla: rank 1 of 3: " + call + ": unhandled system error: its own words",
               "cannot be used any more"));
  }
}

TEST_CASE("nccl: errors that come later") {
  const auto remote =
      failing([](Ranks& ranks) { ranks.of(1).async_error = ncclRemoteError; }, false);
  CHECK(says(remote[1], "mhla: rank 1 of 3: all_gather: remote process exited"));
  const auto cuda =
      failing([](Ranks& ranks) { ranks.stream(1).fails_with = cudaErrorIllegalAddress; }, false);
  CHECK(says(cuda[1], "mhla: rank 1 of 3: all_gather: an illegal memory access"));
}

TEST_CASE("nccl: a communicator that does not know its ranks") {
  Ranks ranks(1);
  ranks.of(0).refused = "ncclCommCount";
  ranks.of(0).refuse_with = ncclInvalidArgument;
  const auto outcomes = ranks.run([](const auto&) {});
  CHECK(says(outcomes[0], "ncclCommCount: another error"));
}
