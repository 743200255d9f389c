// SPDX-License-Identifier: MIT
// The bytes that ranks really exchange are those that SplitTraffic says, on either wire. Cases of
// cases.hpp say so of all kinds of calls.
#include <mhla/distributed.hpp>
#include <string>
#include <vector>

#include "tests/cpu/executors.hpp"
#include "tests/distributed/calls.hpp"
#include "tests/distributed/cases.hpp"
#include "tests/distributed/thread_ranks.hpp"
#include "tests/support/catch.hpp"

namespace {

using distributed_calls::SharedCall;
using namespace mhla;

template <class T, class V>
void check_by_sequence(const V& attention, const Shape& shape) {
  using A = mhla::Accumulator<T>;
  for (const Wire wire : {Wire::exact, Wire::bfloat16})
    for (const bool keeps : {false, true}) {
      CAPTURE(static_cast<int>(wire), keeps);
      for (const std::string& outcome : thread_ranks::run(4, [&](const auto& rank) {
             const distributed_calls::AnyCommunicator communicator(rank);
             const SharedCall<T, V> part(attention, shape, 4, rank.rank(), 3);
             const auto layer = mhla::sequence_parallel<T>(attention, part.shape, communicator,
                                                           part.queries, part.keys, wire);
             const mhla::Traffic said =
                 mhla::SplitTraffic<V, T>(attention, part.shape,
                                          {part.queries, part.keys, wire, keeps})
                     .by_sequence(rank.rank());
             communicator.forget_bytes();

             const mhla::SerialExecutor executor;
             std::vector<A> kept(keeps ? static_cast<std::size_t>(layer.kept_size()) : 0);
             const mhla::Span<A> keep{kept.data(), static_cast<Index>(kept.size())};
             auto y = part.local.dy;
             layer.forward(executor, part.operands(), y.view(),
                           call::poisoned_workspace(layer.forward_workspace_size(executor)), keep);
             communicator.require_bytes("forward", said.forward);
             call::Gradients<T> gradients(part.local);
             layer.backward(executor, part.operands(), part.local.dy.view(), gradients.views(),
                            mhla::Update::overwrite,
                            call::poisoned_workspace(layer.backward_workspace_size(executor)),
                            keep);
             communicator.require_bytes("backward", said.backward);
           }))
        CHECK(outcome == "");
    }
}

}  // namespace

TEST_CASE("traffic: what ranks send by sequence") {
  using namespace mhla;
  check_by_sequence<float>(Attention<Relu, Blocks1D, Causal>{.blocks = {.block = 5}},
                           Shape{1, 3, 1, 58, 58, 3, 7, 3});
  check_by_sequence<BFloat16>(
      Attention<Relu, Blocks1D, Bidirectional, Unnormalized>{.blocks = {.block = 5},
                                                             .key_blocks = {.block = 4}},
      Shape{1, 2, 1, 58, 31, 3, 3, 1});
}
