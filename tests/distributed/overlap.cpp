// SPDX-License-Identifier: MIT
// What ranks do while messages travel, event by event: c computing, s a message is started, w it is
// waited for, e a collective that starts and waits.
#include <cstddef>
#include <cstdint>
#include <mhla/distributed.hpp>
#include <mhla/packed.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/distributed/calls.hpp"
#include "tests/distributed/thread_ranks.hpp"
#include "tests/support/catch.hpp"

namespace {

using distributed_calls::SharedCall;
using namespace mhla;

struct Events {
  mutable std::string list;
  void add(char event) const {
    if (event != 'c' || list.empty() || list.back() != 'c') list += event;
  }
};

struct RecordingExecutor {
  const Events* events;
  static Index num_slots() { return 1; }
  template <class Task>
  void parallel_for(Index tasks, const Task& task) const {
    events->add('c');
    for (Index i = 0; i < tasks; ++i) task(i, 0);
  }
};

struct Waiting {
  const thread_ranks::Communicator* ranks;
  const Events* events;

  Index rank() const { return ranks->rank(); }
  Index size() const { return ranks->size(); }
  void all_gather(const void* sent, void* received, Span<const Part> parts) const {
    events->add('e');
    ranks->all_gather(sent, received, parts);
  }
  void all_to_all(const void* sent, Span<const Part> to, void* received,
                  Span<const Part> from) const {
    events->add('e');
    ranks->all_to_all(sent, to, received, from);
  }
};
struct Overlapping : Waiting {
  struct Pending {
    thread_ranks::Communicator::Pending messages;
    const Events* events;
    void wait() const {
      events->add('w');
      messages.wait();
    }
  };
  Pending start_all_to_all(const void* sent, Span<const Part> to, void* received,
                           Span<const Part> from) const {
    events->add('s');
    return {ranks->start_all_to_all(sent, to, received, from), events};
  }
};

// Forward and backward.
template <class Communicator, class V>
std::pair<std::string, std::string> events_of(const V& attention, Index ranks,
                                              std::uint64_t seed = 0) {
  std::vector<std::pair<std::string, std::string>> all(static_cast<std::size_t>(ranks));
  for (const std::string& outcome : thread_ranks::run(ranks, [&](const auto& rank) {
         const SharedCall<float, V> part(attention, Shape{1, 4, 2, 58, 58, 6, 7, 1, 15, 15}, ranks,
                                         rank.rank(), seed);
         const Events events;
         const Communicator communicator{{&rank, &events}};
         const RecordingExecutor executor{&events};
         const auto layer = mhla::sequence_parallel<float>(attention, part.shape, communicator,
                                                           part.queries, part.keys);
         const auto taken = [&] { return std::exchange(events.list, ""); };
         taken();
         auto y = part.local.dy;
         layer.forward(executor, part.operands(), y.view(),
                       call::poisoned_workspace(layer.forward_workspace_size(executor)));
         part.require_y(y);
         auto& [forward, backward] = all[static_cast<std::size_t>(rank.rank())];
         forward = taken();
         call::Gradients<float> gradients(part.local);
         layer.backward(executor, part.operands(), part.local.dy.view(), gradients.views(),
                        mhla::Update::overwrite,
                        call::poisoned_workspace(layer.backward_workspace_size(executor)));
         part.require_token_gradients(gradients, mhla::Update::overwrite);
         backward = taken();
       }))
    CHECK(outcome == "");
  for (const auto& events : all) CHECK(events == all.front());
  return all.front();
}

struct OnlyWaiting : Waiting {};

}  // namespace

TEST_CASE("summaries travel while the next are made") {
  const auto check = [](const auto& attention) {
    const auto [forward, backward] =
        events_of<Overlapping, std::decay_t<decltype(attention)>>(attention, 3);
    CHECK(forward == "ecscscscswwwwec");
    CHECK(backward == "ecscscscswwwwcswec");
  };
  check(mhla::Attention<mhla::Relu, mhla::Blocks1D>{.blocks = {.block = 4}});
  check(mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal>{.blocks = {.block = 4}});
}

TEST_CASE("a communicator that only waits exchanges all summaries at once") {
  static constexpr std::int32_t offsets[] = {0, 9, 9, 58};
  const auto check = [](const auto& attention) {
    for (const std::uint64_t seed : {0u, 3u}) {
      const auto [forward, backward] = events_of<OnlyWaiting>(attention, 3, seed);
      CHECK(forward == "eceec");
      CHECK(backward == "ececeec");
    }
  };
  using mhla::Blocks1D;
  using mhla::Relu;
  const mhla::Attention<Relu, Blocks1D> sequence{.blocks = {.block = 4}};
  check(sequence);
  check(mhla::Attention<Relu, Blocks1D, mhla::Causal>{.blocks = {.block = 4}});
  check(mhla::packed(sequence, Span<const std::int32_t>{offsets, 4}));
}

TEST_CASE("one rank alone makes its summaries at once") {
  const auto [forward, backward] = events_of<Overlapping>(
      mhla::Attention<mhla::Relu, mhla::Blocks1D>{.blocks = {.block = 4}}, 1);
  CHECK(forward == "ecswec");
  CHECK(backward == "ecswcswec");
}
