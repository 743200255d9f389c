// SPDX-License-Identifier: MIT
// Sequences shared out over GPUs: the bits of one device's whole call on cuBLAS. Ranks are threads
// that take turns on the machine, whose memory is the host's.
#include <mhla/cuda/instantiate.cuh>
#include <mhla/cuda/instantiate_heads.cuh>
#include <mhla/cuda/instantiate_stages.cuh>
// After them, so that the stand-ins were found first.
#include <chrono>
#include <cstdint>
#include <mhla/cuda_distributed.hpp>
#include <mhla/packed.hpp>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/distributed/calls.hpp"
#include "tests/distributed/cases.hpp"
#include "tests/distributed/thread_ranks.hpp"

namespace {

using call::HostTensor;
using distributed_calls::SharedCall;
using namespace mhla;

std::mutex turn;

// Lets others have the machine while it waits for them.
struct TakingTurns {
  const thread_ranks::Communicator* ranks;

  Index rank() const { return ranks->rank(); }
  Index size() const { return ranks->size(); }
  void all_gather(const void* sent, void* received, Span<const Part> parts) const {
    turn.unlock();
    const Again again;
    ranks->all_gather(sent, received, parts);
  }
  void all_to_all(const void* sent, Span<const Part> to, void* received,
                  Span<const Part> from) const {
    turn.unlock();
    const Again again;
    ranks->all_to_all(sent, to, received, from);
  }

 private:
  struct Again {
    ~Again() { turn.lock(); }
  };
};

template <class Body>
void run(Index ranks, const Body& body) {
  for (const std::string& outcome : thread_ranks::run(ranks, [&](const auto& communicator) {
         const std::lock_guard<std::mutex> mine(turn);
         body(TakingTurns{&communicator});
       }))
    CHECK(outcome == "");
}

// y and gradients of a rank.
template <class T>
struct Results {
  HostTensor<T, 4> y;
  call::Gradients<T> gradients;
};
template <class T, class V, class Layer>
Results<T> results_of(const Layer& layer, const SharedCall<T, V>& part, Update update) {
  const auto device = backend::device();
  Results<T> of{part.local.dy, call::Gradients<T>(part.local)};
  layer.forward(device, part.operands(), of.y.view(),
                call::poisoned_workspace(layer.forward_workspace_size(device)));
  layer.backward(device, part.operands(), part.local.dy.view(), of.gradients.views(), update,
                 call::poisoned_workspace(layer.backward_workspace_size(device)));
  return of;
}
template <class T, class V>
Results<T> results(const TakingTurns& ranks, const SharedCall<T, V>& part, Update update,
                   Wire wire = Wire::exact) {
  return results_of(mhla::cuda_sequence_parallel<T>(part.attention, part.shape, ranks, part.queries,
                                                    part.keys, wire),
                    part, update);
}

template <class T, class V>
void check(const V& attention, const Shape& shape) {
  for (const Index ranks : {1, 2, 4})
    run(ranks, [&](const TakingTurns& communicator) {
      const SharedCall<T, V> part(attention, shape, ranks, communicator.rank(), 3);
      const mhla::BlockRange own = part.queries[static_cast<std::size_t>(part.rank)];
      for (const Update update : {Update::overwrite, Update::accumulate}) {
        auto [y, gradients] = results(communicator, part, update);
        part.require_y(y);
        if constexpr (mhla::is_batch_layout<V>) {
          part.require_token_gradients(gradients, update);
          part.require_sum_of_dmix(communicator, gradients.mix, update);
        } else {
          part.require_gradients(gradients, update, [&](Index, Index row, Index) {
            return row >= own.first && row < own.end();
          });
        }
      }
    });
}

// By heads: 4 ranks are more than kv heads.
template <class T, class V>
void check_by_heads(const V& attention, const Shape& partial) {
  for (const Index ranks : {1, 2, 4})
    run(ranks, [&](const TakingTurns& rank) {
      const distributed_calls::AnyCommunicator communicator(rank);
      SharedCall<T, V> part(attention, partial, ranks, rank.rank(), 3);
      const Shape& shape = part.shape;
      if constexpr (requires { attention.masks; }) {  // to -0 nothing is added, not even 0
        for (Index i = 0; i < part.x.v.size(); ++i)
          if (!attention.masks.takes_key(i / shape.value_dim / shape.key_tokens / shape.kv_heads,
                                         i / shape.value_dim % shape.key_tokens))
            part.x.v.view().element(i) = T(-0.0);
        part.local.v = distributed_calls::taken(part.x.v, part.key_tokens);
      }
      const auto layer =
          mhla::cuda_head_parallel<T>(part.attention, shape, communicator, part.queries, part.keys);
      const mhla::BlockRange kv_heads =
          mhla::equal_shares(shape.kv_heads, ranks)[static_cast<std::size_t>(rank.rank())];
      const auto owns = [&](Index matrix, Index, Index) {
        const Index kv_head = matrix % shape.heads / shape.group_size();
        return kv_head >= kv_heads.first && kv_head < kv_heads.end();
      };
      for (const Update update : {Update::overwrite, Update::accumulate}) {
        if (update == Update::accumulate && sizeof(T) < sizeof(float)) continue;  // rounded twice
        communicator.forget_bytes();
        auto [y, gradients] = results_of(layer, part, update);
        part.require_y(y);
        if (shape.mix_heads == 1) {
          part.require_token_gradients(gradients, update);
          part.require_sum_of_dmix(rank, gradients.mix, update);
        } else {
          part.require_gradients(gradients, update, owns);
        }
        if constexpr (!requires { attention.masks; }) {
          const auto [forward, backward] =
              mhla::SplitTraffic<V, T>(
                  attention, shape, {.queries = part.queries, .keys = part.keys, .on_gpus = true})
                  .by_heads(rank.rank());
          communicator.require_bytes(
              "a call", {forward.sent + backward.sent, forward.received + backward.received});
        }
      }
    });
}

}  // namespace

TEST_CASE("cuda: by heads, the bits of one device") {
  using namespace mhla;
  using Sequence = Attention<Relu, Blocks1D, Bidirectional, MixedKeySum, HalfSplitRotary>;
  using Chunks = Attention<Relu, Blocks1D, Causal>;
  const Shape grouped{2, 6, 3, 23, 23, 6, 7};
  SECTION("a ragged sequence") { check_by_heads<float>(Sequence{.blocks = {.block = 5}}, grouped); }
  SECTION("in bfloat16") { check_by_heads<BFloat16>(Sequence{.blocks = {.block = 5}}, grouped); }
  SECTION("causal, a matrix per head") {
    check_by_heads<float>(Chunks{.blocks = {.block = 5}}, Shape{2, 6, 3, 23, 23, 6, 7, 6});
  }
  SECTION("a matrix for every item") {
    check_by_heads<float>(Sequence{.blocks = {.block = 5}}, Shape{2, 4, 2, 23, 23, 6, 7, 8});
  }
  SECTION("a ragged video, cross-attention") {
    check_by_heads<float>(
        Attention<Relu, Blocks3D>{.blocks = {.grid = {3, 4, 5}, .block = {2, 2, 2}},
                                  .key_blocks = {.grid = {3, 3, 4}, .block = {1, 2, 3}}},
        Shape{1, 4, 2, 60, 36, 8, 6});
  }
  SECTION("mixed products") {
    check_by_heads<float>(
        Attention<Relu, Blocks2D, Bidirectional, MixedProduct>{
            .blocks = {.grid = {4, 6}, .block = {2, 3}}},
        Shape{1, 4, 2, 24, 24, 6, 7});
  }
  SECTION("separable mixing, a matrix per head") {
    check_by_heads<float>(
        Attention<Relu, Blocks2D, Bidirectional, MixedKeySum, NoRotation, SeparableMixing>{
            .blocks = {.grid = {4, 6}, .block = {2, 3}}, .mixing = {.rank = 2}},
        Shape{1, 4, 2, 24, 24, 6, 7, 4});
  }
  SECTION("a packed batch") {
    static constexpr std::int32_t offsets[] = {0, 9, 9, 23};
    check_by_heads<float>(
        packed(Chunks{.blocks = {.block = 5}}, Span<const std::int32_t>{offsets, 4}),
        Shape{1, 4, 2, 23, 23, 6, 7, 1, 3, 3});
  }
  SECTION("a padded batch") {
    HostTensor<std::uint8_t, 2> mask(2, 23);
    for (Index i = 0; i < 46; ++i) mask.view().element(i) = i % 7 != 3 && i < 40;
    check_by_heads<float>(padded(Chunks{.blocks = {.block = 5}}, mask.view()), grouped);
  }
  SECTION("keys that no head reads") {
    check_by_heads<float>(Sequence{.blocks = {.block = 5}}, Shape{1, 0, 2, 23, 23, 6, 7});
  }
  SECTION("no values") {
    check_by_heads<float>(Sequence{.blocks = {.block = 5}}, Shape{1, 4, 2, 23, 23, 6, 0});
  }
}

namespace {

enum class Refuses { path, y, dy };

// What ranks say of a call that one of them refuses; none has written y or dq.
template <class Layer>
std::vector<std::string> refused(const Layer& layer_of, Refuses what, mhla::CudaPath path) {
  using V = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
  const auto outcomes = thread_ranks::run(3, [&](const auto& communicator) {
    const std::lock_guard<std::mutex> mine(turn);
    const TakingTurns ranks{&communicator};
    const SharedCall<float, V> part(V{.blocks = {.block = 5}}, Shape{1, 2, 2, 20, 20, 4, 4}, 3,
                                    ranks.rank(), 0);
    const auto layer = layer_of(part.attention, part.shape, ranks, part.queries);
    const mhla::CudaDevice any = backend::device();
    const mhla::CudaDevice other(any.stream(), any.cublas(), {}, any.products(), path);
    const mhla::CudaDevice& device = what == Refuses::path && ranks.rank() > 0 ? other : any;
    HostTensor<float, 4> y = part.local.dy;
    call::Gradients<float> gradients(part.local);
    const auto unknown = [&](auto& tensor) {
      if (ranks.rank() == 1)
        stand_in::runtime().unknown = {
            {tensor.view().data, static_cast<std::size_t>(tensor.size()) * sizeof(float)}};
    };
    if (what == Refuses::y) unknown(y);
    auto dy = part.local.dy;
    if (what == Refuses::dy) unknown(dy);
    try {
      if (what != Refuses::dy)
        layer.forward(device, part.operands(), y.view(),
                      mhla::Workspace(layer.forward_workspace_size(any)));
      layer.backward(device, part.operands(), dy.view(), gradients.views(), Update::overwrite,
                     mhla::Workspace(layer.backward_workspace_size(any)));
    } catch (...) {
      distributed_calls::require_same("y", ranks.rank(), part.local.dy, y);
      distributed_calls::require_same("dq", ranks.rank(), part.local.q, gradients.query);
      throw;
    }
  });
  stand_in::runtime().unknown.clear();
  return outcomes;
}

}  // namespace

TEST_CASE("cuda: a rank that refuses") {
  const auto check_refusal = [](const auto& layer, mhla::CudaPath path, const char* of_path) {
    const auto outcomes = refused(layer, Refuses::path, path);
    for (const std::string& outcome : outcomes) CHECK(outcome.find(of_path) != std::string::npos);
    CHECK(outcomes[0].find("rank 1 refused the call, so no rank ran it") != std::string::npos);
    for (const std::string& outcome : refused(layer, Refuses::y, path))
      CHECK(outcome.find("y: the address is not in memory that CUDA knows") != std::string::npos);
    for (const std::string& outcome : refused(layer, Refuses::dy, path))
      CHECK(outcome.find("dy: the address is not in memory that CUDA knows") != std::string::npos);
  };
  SECTION("by heads, of which rank 2 has none") {
    check_refusal([](const auto&... of) { return mhla::cuda_head_parallel<float>(of...); },
                  mhla::CudaPath::summaries, "float tensors");
  }
  SECTION("by sequence") {
    check_refusal([](const auto&... of) { return mhla::cuda_sequence_parallel<float>(of...); },
                  mhla::CudaPath::quadratic, "CudaPath::quadratic, which has no stages");
  }
}

TEST_CASE("cuda: by sequence, the bits of one device") {
  using namespace mhla;
  using Sequence = Attention<Relu, Blocks1D, Bidirectional, MixedKeySum, HalfSplitRotary>;
  const Shape grouped{2, 4, 2, 38, 38, 6, 7};
  SECTION("a ragged sequence") { check<float>(Sequence{.blocks = {.block = 5}}, grouped); }
  SECTION("in bfloat16") { check<BFloat16>(Sequence{.blocks = {.block = 5}}, grouped); }
  SECTION("causal, a matrix per head") {
    check<float>(Attention<Relu, Blocks1D, Causal>{.blocks = {.block = 5}},
                 Shape{2, 4, 2, 38, 38, 6, 7, 4});
  }
  SECTION("causal by blocks") {
    check<float>(Attention<Relu, Blocks1D, BlockCausal, Unnormalized>{.blocks = {.block = 5}},
                 grouped);
  }
  SECTION("a packed batch") {
    static constexpr std::int32_t offsets[] = {0, 9, 9, 38};
    check<float>(packed(Attention<Relu, Blocks1D, Causal>{.blocks = {.block = 5}},
                        Span<const std::int32_t>{offsets, 4}),
                 Shape{1, 4, 2, 38, 38, 6, 7, 1, 6, 6});
  }
  SECTION("a ragged video, cross-attention") {
    check<float>(Attention<Relu, Blocks3D>{.blocks = {.grid = {3, 4, 5}, .block = {2, 2, 2}},
                                           .key_blocks = {.grid = {3, 3, 4}, .block = {1, 2, 3}}},
                 Shape{1, 4, 2, 60, 36, 8, 6});
  }
}

TEST_CASE("cuda: ranks do not read what lies on the device") {
  using Random = mhla::Attention<mhla::Favor<float>, mhla::Blocks1D>;
  const auto at_nobodys = [](const auto* of) {
    return reinterpret_cast<decltype(of)>(std::uintptr_t{4096});
  };
  const float* const projection = at_nobodys(static_cast<float*>(nullptr));
  const std::uint8_t* const mask = at_nobodys(static_cast<std::uint8_t*>(nullptr));
  const Random attention{.feature_map = {mhla::make_view(projection, 6, 4)},
                         .blocks = {.block = 5}};
  const Shape shape{1, 2, 2, 20, 20, 4, 4, 1, 4, 4};
  run(2, [&](const TakingTurns& ranks) {
    const mhla::Shares shares = mhla::equal_shares(4, 2);
    mhla::cuda_sequence_parallel<float>(attention, shape, ranks, shares);
    mhla::cuda_head_parallel<float>(mhla::padded(attention, mhla::make_view(mask, 1, 20)), shape,
                                    ranks, shares);
  });
}
