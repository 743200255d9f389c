// SPDX-License-Identifier: MIT
// By heads: the same calls, and variants that go by heads alone.
#include <cstdint>
#include <mhla/distributed.hpp>
#include <mhla/packed.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <type_traits>

#include "tests/cpu/executors.hpp"
#include "tests/distributed/calls.hpp"
#include "tests/distributed/cases.hpp"
#include "tests/distributed/variants.hpp"

namespace distributed_calls {
namespace {

template <class T, class V>
void run(const AnyCommunicator& communicator, const V& attention, const Shape& partial,
         std::uint64_t seed) {
  const SharedCall<T, V> part(attention, partial, communicator.size(), communicator.rank(), seed);
  const executors::ShuffledExecutor executor{2, seed};
  const auto layer =
      mhla::head_parallel<T>(attention, part.shape, communicator, part.queries, part.keys);
  const Shape& shape = part.shape;
  const BlockRange kv_heads = mhla::equal_shares(
      shape.kv_heads, communicator.size())[static_cast<std::size_t>(communicator.rank())];
  const auto owns = [&](Index matrix, Index) {
    if (shape.mix_heads == 1) return communicator.rank() == 0;
    const Index kv_head = matrix % shape.heads / shape.group_size();
    return kv_head >= kv_heads.first && kv_head < kv_heads.end();
  };

  // SplitTraffic does not know batch layouts.
  const auto require_bytes = [&](const char* pass, mhla::RankTraffic mhla::Traffic::*bytes) {
    if constexpr (!mhla::is_batch_layout<V>)
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

template <class Visit>
void for_each_call_by_heads(const Visit& visit) {
  using namespace mhla;
  for_each_call(visit);
  using Products = Attention<Relu, Blocks2D, Bidirectional, MixedProduct>;
  using Recurrent = Attention<Relu, Blocks1D, Causal, MixedKeySum, NoRotation, RecurrentMixing>;
  using Separable =
      Attention<Relu, Blocks2D, Bidirectional, MixedKeySum, NoRotation, SeparableMixing>;
  using Sequence = Attention<Relu, Blocks1D, Causal>;
  visit("mixed products", float{}, Products{.blocks = {.grid = {8, 6}, .block = {2, 3}}},
        Shape{2, 4, 2, 48, 48, 8, 6});
  visit("a recurrence", float{}, Recurrent{.blocks = {.block = 2}, .mixing = {.states = 2}},
        Shape{2, 4, 2, 47, 47, 8, 6, 4});
  visit("one recurrence for all heads", float{},
        Recurrent{.blocks = {.block = 2}, .mixing = {.states = 2}}, Shape{2, 4, 2, 47, 47, 8, 6});
  visit("separable mixing", float{},
        Separable{.blocks = {.grid = {8, 6}, .block = {2, 3}}, .mixing = {.rank = 2}},
        Shape{2, 4, 2, 48, 48, 8, 6});
  visit("more sequences than partial sums", float{}, Sequence{.blocks = {.block = 4}},
        Shape{21, 6, 6, 9, 9, 4, 4});
  static constexpr std::int32_t offsets[] = {0, 9, 9, 30, 58};
  visit("a packed batch", float{},
        packed(Sequence{.blocks = {.block = 5}}, Span<const std::int32_t>{offsets, 5}),
        Shape{1, 4, 2, 58, 58, 6, 7, 1, 6, 6});
  static const testing::HostTensor<std::uint8_t, 2> mask = [] {
    testing::HostTensor<std::uint8_t, 2> tokens(2, 58);
    for (Index i = 0; i < 2 * 58; ++i) tokens.view().element(i) = i % 7 != 3 && i < 100;
    return tokens;
  }();
  visit("a padded batch", float{}, padded(Sequence{.blocks = {.block = 5}}, mask.view()),
        Shape{2, 4, 2, 58, 58, 6, 7});
}

}  // namespace

std::vector<Case> cases_by_heads() {
  std::vector<Case> cases;
  for_each_call_by_heads(
      [&](const char* name, auto scalar, const auto& attention, const Shape& shape) {
        cases.push_back({name, [=](const AnyCommunicator& ranks, std::uint64_t seed) {
                           run<decltype(scalar)>(ranks, attention, shape, seed);
                         }});
      });
  return cases;
}

}  // namespace distributed_calls
