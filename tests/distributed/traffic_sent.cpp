// SPDX-License-Identifier: MIT
// The bytes that ranks really exchange are those that SplitTraffic says.
#include <mhla/distributed.hpp>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/cpu/executors.hpp"
#include "tests/distributed/calls.hpp"
#include "tests/distributed/thread_ranks.hpp"
#include "tests/distributed/variants.hpp"
#include "tests/support/catch.hpp"

namespace {

using distributed_calls::SharedCall;
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

// Both passes of a layer, which say what they move. `keep`: nothing, or where summaries are kept.
template <class T, class V, class Layer, class... Keep>
void require_traffic(const thread_ranks::Communicator& communicator,
                     const distributed_calls::SharedCall<T, V>& part, const Layer& layer,
                     const mhla::Traffic& said, const Keep&... keep) {
  const mhla::SerialExecutor executor;
  communicator.take_sent(), communicator.take_received();
  auto y = part.local.dy;
  layer.forward(executor, part.operands(), y.view(),
                call::poisoned_workspace(layer.forward_workspace_size(executor)), keep...);
  require_bytes("forward", said.forward, communicator);
  call::Gradients<T> gradients(part.local);
  layer.backward(executor, part.operands(), part.local.dy.view(), gradients.views(),
                 mhla::Update::overwrite,
                 call::poisoned_workspace(layer.backward_workspace_size(executor)), keep...);
  require_bytes("backward", said.backward, communicator);
}

template <class Body>
void check_ranks(const Body& body) {
  for (const std::string& outcome : thread_ranks::run(4, body)) CHECK(outcome == "");
}

template <class T, class V>
void check_by_sequence(const V& attention, const Shape& shape) {
  for (const Wire wire : {Wire::exact, Wire::bfloat16})
    for (const bool keeps : {false, true}) {
      CAPTURE(static_cast<int>(wire), keeps);
      check_ranks([&](const thread_ranks::Communicator& communicator) {
        const Index rank = communicator.rank();
        const SharedCall<T, V> part(attention, shape, communicator.size(), rank, 3);
        const auto layer = mhla::sequence_parallel<T>(attention, part.shape, communicator,
                                                      part.queries, part.keys, wire);
        const mhla::SplitTraffic<V, T> traffic(attention, part.shape,
                                               {part.queries, part.keys, wire, keeps});
        using A = mhla::Accumulator<T>;
        std::vector<A> kept(keeps ? static_cast<std::size_t>(layer.kept_size()) : 0);
        require_traffic(communicator, part, layer, traffic.by_sequence(rank),
                        mhla::Span<A>{kept.data(), static_cast<Index>(kept.size())});
      });
    }
}

template <class T, class V>
void check_by_heads(const V& attention, const Shape& shape) {
  check_ranks([&](const thread_ranks::Communicator& communicator) {
    const Index rank = communicator.rank();
    const SharedCall<T, V> part(attention, shape, communicator.size(), rank, 3);
    const auto layer =
        mhla::head_parallel<T>(attention, part.shape, communicator, part.queries, part.keys);
    const mhla::SplitTraffic<V, T> traffic(attention, part.shape, {part.queries, part.keys});
    require_traffic(communicator, part, layer, traffic.by_heads(rank));
  });
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

TEST_CASE("traffic: what ranks send by heads") {
  using namespace mhla;
  distributed_calls::for_each_call_by_heads(
      [](const char* name, auto scalar, const auto& attention, const Shape& shape) {
        using V = std::remove_cvref_t<decltype(attention)>;
        if constexpr (!is_batch_layout<V>)  // which SplitTraffic does not know
          SECTION(name) { check_by_heads<decltype(scalar)>(attention, shape); }
      });
}
