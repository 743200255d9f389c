// SPDX-License-Identifier: MIT
// A rank that goes away in any exchange of a call: the others end in time, name it, and have
// written nothing.
#include <atomic>
#include <chrono>
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

// Forward and backward, until the victim survives.
template <class V, class Make>
void check_deaths(const V& attention, const Shape& partial, const Make& make) {
  bool survived = false;
  for (int exchange = 0; !survived; ++exchange) {
    INFO("in exchange " << exchange);
    std::atomic<int> finished_forward{0};
    const auto outcomes = thread_ranks::run(
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
    survived = outcomes[victim].empty();
    CHECK((finished_forward == 0 || finished_forward >= 2));  // both of the others, or none
    for (std::size_t r = 0; r < outcomes.size(); ++r) {
      INFO("rank " << r << ": " << outcomes[r]);
      if (r == victim || survived) continue;
      // The victim, or a rank that has ended because of it.
      CHECK(outcomes[r].find("did not answer") != std::string::npos);
    }
    if (exchange == 0) CHECK(!survived);
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
