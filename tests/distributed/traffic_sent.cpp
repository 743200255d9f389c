// SPDX-License-Identifier: MIT
// The bytes that ranks really exchange are those that SplitTraffic says.
#include <mhla/distributed.hpp>
#include <mhla/distributed/traffic.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cpu/executors.hpp"
#include "tests/distributed/calls.hpp"
#include "tests/distributed/thread_ranks.hpp"
#include "tests/support/catch.hpp"

namespace {

using mhla::Index;
using mhla::Shape;
using mhla::Wire;

void require_bytes(const char* pass, const mhla::RankTraffic& said,
                   const thread_ranks::Communicator& communicator) {
  const Index sent = communicator.take_sent();
  const Index received = communicator.take_received();
  if (sent != said.sent || received != said.received)
    throw std::runtime_error(std::string(pass) + " sends " + std::to_string(sent) + " for " +
                             std::to_string(said.sent) + " bytes, receives " +
                             std::to_string(received) + " for " + std::to_string(said.received));
}

template <class T, class V>
void run_by_sequence(const thread_ranks::Communicator& communicator, const V& attention,
                     const Shape& partial, Wire wire, bool keeps) {
  using A = mhla::Accumulator<T>;
  const distributed_calls::SharedCall<T, V> part(attention, partial, communicator.size(),
                                                 communicator.rank(), 3);
  const mhla::SerialExecutor executor;
  const auto layer = mhla::sequence_parallel<T>(attention, part.shape, communicator, part.queries,
                                                part.keys, wire);
  const mhla::SplitTraffic<V, T> traffic(attention, part.shape,
                                         {part.queries, part.keys, wire, keeps});
  const mhla::Traffic said = traffic.by_sequence(communicator.rank());
  communicator.take_sent(), communicator.take_received();

  std::vector<A> kept(keeps ? static_cast<std::size_t>(layer.kept_size()) : 0);
  const mhla::Span<A> keep{kept.data(), static_cast<Index>(kept.size())};
  auto y = part.local.dy;
  layer.forward(executor, part.operands(), y.view(),
                call::poisoned_workspace(layer.forward_workspace_size(executor)), keep);
  require_bytes("forward", said.forward, communicator);
  call::Gradients<T> gradients(part.local);
  layer.backward(executor, part.operands(), part.local.dy.view(), gradients.views(),
                 mhla::Update::overwrite,
                 call::poisoned_workspace(layer.backward_workspace_size(executor)), keep);
  require_bytes("backward", said.backward, communicator);
}

template <class T, class V>
void check_by_sequence(const V& attention, const Shape& shape) {
  for (const Wire wire : {Wire::exact, Wire::bfloat16})
    for (const bool keeps : {false, true}) {
      CAPTURE(static_cast<int>(wire), keeps);
      for (const std::string& outcome : thread_ranks::run(4, [&](const auto& communicator) {
             run_by_sequence<T>(communicator, attention, shape, wire, keeps);
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
