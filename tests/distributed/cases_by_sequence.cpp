// SPDX-License-Identifier: MIT
// By sequence: forward, with and without kept summaries, and backward.
#include <mhla/distributed.hpp>

#include "tests/cpu/executors.hpp"
#include "tests/distributed/calls.hpp"
#include "tests/distributed/cases.hpp"
#include "tests/distributed/variants.hpp"

namespace distributed_calls {
namespace {

template <class T, class V>
void run(const AnyCommunicator& communicator, const V& attention, const Shape& partial,
         std::uint64_t seed) {
  using A = Accumulator<T>;
  const SharedCall<T, V> part(attention, partial, communicator.size(), communicator.rank(), seed);
  const executors::ShuffledExecutor executor{2, seed};
  const auto layer =
      mhla::sequence_parallel<T>(attention, part.shape, communicator, part.queries, part.keys);
  const BlockRange own = layer.query_blocks();
  const auto owns = [&](Index, Index row) { return row >= own.first && row < own.end(); };

  const mhla::SplitTraffic<V, T> traffic(attention, part.shape, {part.queries, part.keys});
  const mhla::SplitTraffic<V, T> from_kept(attention, part.shape,
                                           {part.queries, part.keys, mhla::Wire::exact, true});

  std::vector<A> kept(static_cast<std::size_t>(layer.kept_size()));
  const mhla::Span<A> keep{kept.data(), layer.kept_size()};
  communicator.forget_bytes();
  for (const bool keeps : {false, true}) {
    auto y = part.local.dy;
    layer.forward(executor, part.operands(), y.view(),
                  call::poisoned_workspace(layer.forward_workspace_size(executor)),
                  keeps ? keep : mhla::Span<A>{});
    part.require_y(y);
    communicator.require_bytes("forward", traffic.by_sequence(communicator.rank()).forward);
  }
  for (const Update update : {Update::overwrite, Update::accumulate}) {
    call::Gradients<T> gradients(part.local);
    layer.backward(executor, part.operands(), part.local.dy.view(), gradients.views(), update,
                   call::poisoned_workspace(layer.backward_workspace_size(executor)),
                   update == Update::overwrite ? mhla::Span<const A>{} : keep);
    part.require_gradients(gradients, update, owns);
    communicator.require_bytes("backward", (update == Update::overwrite ? traffic : from_kept)
                                               .by_sequence(communicator.rank())
                                               .backward);
  }
}

}  // namespace

std::vector<Case> cases_by_sequence() {
  std::vector<Case> cases;
  for_each_call([&](const char* name, auto scalar, const auto& attention, const Shape& shape) {
    cases.push_back({name, [=](const AnyCommunicator& ranks, std::uint64_t seed) {
                       run<decltype(scalar)>(ranks, attention, shape, seed);
                     }});
  });
  return cases;
}

}  // namespace distributed_calls
