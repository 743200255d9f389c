// SPDX-License-Identifier: MIT
// By heads: forward and backward.
#include <cstdint>
#include <mhla/distributed.hpp>

#include "tests/cpu/executors.hpp"
#include "tests/distributed/calls.hpp"
#include "tests/distributed/cases.hpp"
#include "tests/distributed/variants.hpp"

namespace distributed_calls {
namespace {

template <class T, class V>
void run_by_heads(const AnyCommunicator& communicator, const V& attention, const Shape& partial,
                  std::uint64_t seed) {
  SharedCall<T, V> part(attention, partial, communicator.size(), communicator.rank(), seed);
  part.attention.path = attention.path;
  const executors::ShuffledExecutor executor{2, seed};
  const auto layer =
      mhla::head_parallel<T>(attention, part.shape, communicator, part.queries, part.keys);
  const Shape& shape = part.shape;
  const BlockRange kv_heads = mhla::equal_shares(
      shape.kv_heads, communicator.size())[static_cast<std::size_t>(communicator.rank())];
  const auto owns = [&](Index matrix, Index, Index) {
    if (shape.mix_heads == 1) return communicator.rank() == 0;
    const Index kv_head = matrix % shape.heads / shape.group_size();
    return kv_head >= kv_heads.first && kv_head < kv_heads.end();
  };

  // Masks change no bytes: SplitTraffic does not take them.
  const auto require_bytes = [&](const char* pass, mhla::RankTraffic mhla::Traffic::*bytes) {
    if constexpr (!requires { attention.masks; })
      communicator.require_bytes(
          pass, mhla::SplitTraffic<V, T>(attention, part.shape, {part.queries, part.keys})
                        .by_heads(communicator.rank()).*
                    bytes);
  };

  communicator.forget_bytes();
  auto y = part.local.dy;
  layer.forward(executor, part.operands(), y.view(),
                call::poisoned_workspace(layer.forward_workspace_size(executor)));
  part.require_y(y);
  require_bytes("forward", &mhla::Traffic::forward);
  for (const Update update : {Update::overwrite, Update::accumulate}) {
    if (update == Update::accumulate && sizeof(T) < sizeof(float)) continue;  // is rounded twice
    call::Gradients<T> gradients(part.local);
    layer.backward(executor, part.operands(), part.local.dy.view(), gradients.views(), update,
                   call::poisoned_workspace(layer.backward_workspace_size(executor)));
    part.require_gradients(gradients, update, owns);
    require_bytes("backward", &mhla::Traffic::backward);
  }
}

}  // namespace

std::vector<Case> cases_by_heads() {
  std::vector<Case> cases;
  for_each_call_by_heads(
      [&](const char* name, auto scalar, const auto& attention, const Shape& shape) {
        cases.push_back({name, [=](const AnyCommunicator& ranks, std::uint64_t seed) {
                           run_by_heads<decltype(scalar)>(ranks, attention, shape, seed);
                         }});
      });
  return cases;
}

}  // namespace distributed_calls
