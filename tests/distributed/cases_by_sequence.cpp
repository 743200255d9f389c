// SPDX-License-Identifier: MIT
// By sequence: forward, with and without kept summaries, and backward.
#include <mhla/distributed.hpp>
#include <mhla/packed.hpp>

#include "tests/cpu/executors.hpp"
#include "tests/distributed/calls.hpp"
#include "tests/distributed/cases.hpp"
#include "tests/distributed/variants.hpp"

namespace distributed_calls {
namespace {

// A part of `attention`'s call, by a layer of the same attention, padded or not.
template <class T, class V, class Part, class Layer>
void run(const AnyCommunicator& communicator, const V& attention, const Part& part,
         const Layer& layer, std::uint64_t seed) {
  using A = Accumulator<T>;
  const executors::ShuffledExecutor executor{2, seed};
  const BlockRange own = layer.query_blocks();
  const auto owns = [&](Index, Index row, [[maybe_unused]] Index column) {
    // What writes to a recurrence's states, after m_ii and a, is the block's before.
    if constexpr (mhla::is_structured<V>)
      if (column > attention.mixing.states) --row;
    return row >= own.first && row < own.end();
  };

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
    communicator.require_bytes("backward", (update == Update::overwrite ? traffic : from_kept)
                                               .by_sequence(communicator.rank())
                                               .backward);
    if constexpr (mhla::is_batch_layout<V>) {  // packed
      part.require_token_gradients(gradients, update);
      part.require_sum_of_dmix(communicator, gradients.mix, update);
      communicator.forget_bytes();
    } else {
      part.require_gradients(gradients, update, owns);
    }
  }
}

template <class T, class V>
void run(const AnyCommunicator& communicator, const V& attention, const Shape& partial,
         std::uint64_t seed) {
  const SharedCall<T, V> part(attention, partial, communicator.size(), communicator.rank(), seed);
  run<T>(communicator, attention, part,
         mhla::sequence_parallel<T>(attention, part.shape, communicator, part.queries, part.keys),
         seed);
}

// Masks that leave holes, cut the last item short, and leave the first without its last blocks.
enum class Masked { both, queries, keys };
template <class T, class V>
void run_padded(const AnyCommunicator& communicator, const V& attention, const Shape& partial,
                Masked masked, std::uint64_t seed) {
  const Index tokens = partial.query_tokens;
  const auto of = [&](const auto& mask) {
    mhla::TokenMasks masks;
    if (masked != Masked::keys) masks.query = mask.view();
    if (masked != Masked::queries) masks.key = mask.view();
    return masks;
  };
  HostTensor<std::uint8_t, 2> mask(partial.batch, tokens);
  for (Index n = 0; n < partial.batch; ++n)
    for (Index t = 0; t < tokens; ++t)
      mask.view()(n, t) = t % 7 != 3 && t < (n == 0 ? tokens - tokens / 4 : tokens / 2);
  const SharedCall<T, mhla::Padded<V>> part(mhla::Padded<V>(attention, of(mask)), partial,
                                            communicator.size(), communicator.rank(), seed);
  const auto local = static_cast<Index>(part.query_tokens.size());
  HostTensor<std::uint8_t, 2> own(partial.batch, local);
  for (Index n = 0; n < partial.batch; ++n)
    for (Index t = 0; t < local; ++t)
      own.view()(n, t) = mask.view()(n, part.query_tokens[static_cast<std::size_t>(t)]);
  run<T>(
      communicator, attention, part,
      mhla::sequence_parallel<T>(attention, part.shape, communicator, part.queries).padded(of(own)),
      seed);
}

}  // namespace

std::vector<Case> cases_by_sequence() {
  std::vector<Case> cases;
  for_each_call([&](const char* name, auto scalar, const auto& attention, const Shape& shape) {
    cases.push_back({name, [=](const AnyCommunicator& ranks, std::uint64_t seed) {
                       run<decltype(scalar)>(ranks, attention, shape, seed);
                     }});
  });
  const auto add_padded = [&](const char* name, const auto& attention,
                              Masked masked = Masked::both) {
    cases.push_back(
        {name, [=](const AnyCommunicator& ranks, std::uint64_t seed) {
           run_padded<float>(ranks, attention, Shape{2, 4, 2, 58, 58, 6, 7}, masked, seed);
         }});
  };
  using namespace mhla;
  const Sequence sequence{.blocks = {.block = 5}};
  add_padded("a padded batch", sequence);
  add_padded("a batch with masked queries", sequence, Masked::queries);
  add_padded("a batch with masked keys", sequence, Masked::keys);
  add_padded("a padded batch, causal", CausalSequence{.blocks = {.block = 5}});
  add_padded("a padded batch, causal by blocks", ByBlocks{.blocks = {.block = 5}});
  add_padded("a padded batch, a recurrence",
             Recurrent{.blocks = {.block = 1}, .mixing = {.states = 2}});
  const auto add_packed = [&](const char* name, auto scalar, const auto& attention, Shape shape,
                              const std::vector<std::int32_t>& offsets) {
    shape.query_tokens = shape.key_tokens = offsets.back();
    cases.push_back({name, [=](const AnyCommunicator& ranks, std::uint64_t seed) {
                       run<decltype(scalar)>(ranks, packed(attention, offsets), shape, seed);
                     }});
  };
  const std::vector<std::int32_t> offsets{0, 9, 9, 30, 31, 93, 100};
  const Shape grouped{1, 4, 2, 0, 0, 6, 7, 1, 13, 13};
  add_packed("a packed batch", float{}, sequence, grouped, offsets);
  add_packed("a packed batch of fewer blocks than ranks", float{},
             Sequence{.blocks = {.block = 50}}, grouped, offsets);
  add_packed("a packed batch, causal, in bfloat16", BFloat16{},
             Attention<Relu, Blocks1D, Causal>{.blocks = {.block = 5}}, grouped, offsets);
  add_packed("a packed batch, causal by blocks, a matrix per head", double{},
             Attention<Relu, Blocks1D, BlockCausal, Unnormalized>{.blocks = {.block = 5}},
             Shape{1, 4, 2, 0, 0, 6, 7, 4, 15, 14}, offsets);
  add_packed("a packed batch, a recurrence", float{},
             Recurrent{.blocks = {.block = 1}, .mixing = {.states = 2}},
             Shape{1, 4, 2, 0, 0, 6, 7, 4}, {0, 20, 20, 95, 96, 130});
  return cases;
}

}  // namespace distributed_calls
