// SPDX-License-Identifier: MIT
// A rank that goes away in any exchange of a call: the others end in time, name it, and have
// written nothing.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <mhla/distributed.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/distributed/calls.hpp"
#include "tests/distributed/mortal.hpp"
#include "tests/distributed/thread_ranks.hpp"
#include "tests/support/catch.hpp"

namespace {

using distributed_calls::victim;
using mhla::Index;
using mhla::Shape;

using Mortal = distributed_calls::Mortal<thread_ranks::Communicator>;

struct Outcome {
  std::vector<std::string> of_ranks;  // why each ended; empty: it has finished
  int finished_forward = 0;
};

// Forward and backward of three ranks, of which the victim goes away in an exchange, if there are
// so many.
template <class V, class Make>
Outcome outcome_of(const V& attention, const Shape& partial, const Make& make, int exchange) {
  std::atomic<int> finished_forward{0};
  const auto of_ranks = thread_ranks::run(
      3,
      [&](const thread_ranks::Communicator& ranks) {
        const Mortal mortal{&ranks, exchange, [] { throw std::runtime_error("gone"); }};
        const distributed_calls::SharedCall<float, V> part(attention, partial, ranks.size(),
                                                           ranks.rank(), 0);
        const mhla::SerialExecutor executor;
        auto y = part.local.dy;
        call::Gradients<float> gradients(part.local);
        bool forward = false;
        try {
          const auto layer = make(part, mortal);
          layer.forward(executor, part.operands(), y.view(),
                        call::poisoned_workspace(layer.forward_workspace_size(executor)));
          forward = true;
          ++finished_forward;
          layer.backward(executor, part.operands(), part.local.dy.view(), gradients.views(),
                         mhla::Update::overwrite,
                         call::poisoned_workspace(layer.backward_workspace_size(executor)));
        } catch (const mhla::CommunicationError&) {
          if (!forward) distributed_calls::require_same("y", ranks.rank(), part.local.dy, y);
          const call::Gradients<float> untouched(part.local);
          distributed_calls::require_same("dq", ranks.rank(), untouched.query, gradients.query);
          distributed_calls::require_same("dk", ranks.rank(), untouched.key, gradients.key);
          distributed_calls::require_same("dv", ranks.rank(), untouched.value, gradients.value);
          distributed_calls::require_same("dmix", ranks.rank(), untouched.mix, gradients.mix);
          throw;
        }
      },
      std::chrono::milliseconds(300));
  return {of_ranks, finished_forward};
}

// In each exchange, until the victim survives; the others wait most of the time, so that some calls
// run at once.
template <class V, class Make>
void check_deaths(const V& attention, const Shape& partial, const Make& make) {
  constexpr int at_once = 5;
  bool survived = false;
  for (int first = 0; !survived; first += at_once) {
    std::vector<std::future<Outcome>> outcomes;
    for (int exchange = first; exchange < first + at_once; ++exchange)
      outcomes.push_back(std::async(std::launch::async, [&, exchange] {
        return outcome_of(attention, partial, make, exchange);
      }));
    for (int exchange = first; exchange < first + at_once; ++exchange) {
      INFO("in exchange " << exchange);
      const Outcome outcome = outcomes[static_cast<std::size_t>(exchange - first)].get();
      const bool survives = outcome.of_ranks[victim].empty();
      CHECK((survives || !survived));  // those of later exchanges, too
      survived = survives;
      const int finished = outcome.finished_forward;
      CHECK((finished == 0 || finished >= 2));  // both of the others, or none
      for (std::size_t r = 0; r < outcome.of_ranks.size(); ++r) {
        INFO("rank " << r << ": " << outcome.of_ranks[r]);
        if (r == victim || survived) continue;
        // The victim, or a rank that has ended because of it.
        CHECK(outcome.of_ranks[r].find("did not answer") != std::string::npos);
      }
      if (exchange == 0) CHECK(!survived);
    }
  }
}

}  // namespace

TEST_CASE("a rank that goes away: by sequence") {
  check_deaths(mhla::Attention<mhla::Relu, mhla::Blocks1D>{.blocks = {.block = 4}},
               Shape{1, 4, 2, 24, 24, 8, 6}, [](const auto& part, const Mortal& ranks) {
                 return mhla::sequence_parallel<float>(part.attention, part.shape, ranks,
                                                       part.queries);
               });
}

TEST_CASE("a rank that goes away: by sequence, causal") {
  check_deaths(mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal>{.blocks = {.block = 4}},
               Shape{1, 4, 2, 24, 24, 8, 6}, [](const auto& part, const Mortal& ranks) {
                 return mhla::sequence_parallel<float>(part.attention, part.shape, ranks,
                                                       part.queries);
               });
}

TEST_CASE("a rank that goes away: by sequence, a recurrence") {
  using Recurrent = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::MixedKeySum,
                                    mhla::NoRotation, mhla::RecurrentMixing>;
  check_deaths(Recurrent{.blocks = {.block = 1}}, Shape{1, 2, 1, 40, 40, 4, 3},
               [](const auto& part, const Mortal& ranks) {
                 return mhla::sequence_parallel<float>(part.attention, part.shape, ranks,
                                                       part.queries);
               });
}

TEST_CASE("a rank that goes away: by heads") {
  // Also where the rank has no heads, so that no other reads anything of it in the end.
  for (const Index kv_heads : {2, 1})
    check_deaths(mhla::Attention<mhla::Relu, mhla::Blocks1D>{.blocks = {.block = 4}},
                 Shape{1, 4, kv_heads, 24, 24, 8, 6}, [](const auto& part, const Mortal& ranks) {
                   return mhla::head_parallel<float>(part.attention, part.shape, ranks,
                                                     part.queries);
                 });
}
