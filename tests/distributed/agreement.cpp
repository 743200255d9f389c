// SPDX-License-Identifier: MIT
// What a rank does otherwise than the others, all are told; nothing hangs, nothing is written, and
// the next call works.
#include <chrono>
#include <cstdint>
#include <limits>
#include <mhla/distributed.hpp>
#include <mhla/packed.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/distributed/calls.hpp"
#include "tests/distributed/thread_ranks.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;
using mhla::testing::HostTensor;
using thread_ranks::Communicator;
using Variant = Attention<Relu, Blocks1D>;

constexpr Index ranks = 3;
constexpr Index odd_one = 1;
constexpr Shape shape{1, 4, 2, 24, 24, 8, 6, 1, 6, 6};

// What a rank of a call can do otherwise.
struct Doing {
  Variant attention{.blocks = {.block = 4}};
  Shape whole = shape;
  Shares shares = mhla::equal_shares(6, ranks);
  mhla::Wire wire = mhla::Wire::exact;
  Index tokens = 8;         // of q
  Index mix_columns = 6;    // given
  Index workspace_cut = 0;  // bytes fewer than asked for
  bool has_value = true;    // v an address
  bool backward = false;
  bool wants_key = true;
  std::string exception_of_odd_one = "";
};

// Runs the call on all ranks, the odd one's by `odd`; what each threw. Of results nothing but what
// they held may be left.
template <class Make>
std::vector<std::string> run(const Doing& usual, const Doing& odd, const Make& make) {
  return thread_ranks::run(
      ranks,
      [&](const Communicator& communicator) {
        const Doing& doing = communicator.rank() == odd_one ? odd : usual;
        const mhla::SerialExecutor executor;
        const auto tensor = [&](Index heads, Index tokens, Index dim) {
          HostTensor<float, 4> full(1, heads, tokens, dim);
          for (Index i = 0; i < full.view().size(); ++i) full.view().element(i) = 1;
          return full;
        };
        auto q = tensor(4, doing.tokens, 8), k = tensor(2, 8, 8), v = tensor(2, 8, 6);
        auto y = tensor(4, doing.tokens, 6), dy = y, dq = q, dk = k, dv = v;
        HostTensor<float, 3> mix(1, 6, doing.mix_columns), dmix = mix;
        const auto call = [&] {
          const auto layer = make(doing, communicator);
          mhla::OperandViews<float> x{q, k, v, mix};
          if (!doing.has_value) x.v.data = nullptr;
          if (!doing.backward) {
            const mhla::Workspace workspace(layer.forward_workspace_size(executor));
            layer.forward(executor, x, y.view(),
                          {workspace.data(), workspace.size() - doing.workspace_cut});
            return;
          }
          const mhla::Workspace workspace(layer.backward_workspace_size(executor));
          mhla::GradientViews<float> gradients{dq.view(), mhla::skip, dv.view(), dmix.view()};
          if (doing.wants_key) gradients.key = dk.view();
          layer.backward(executor, x, dy.view(), gradients, mhla::Update::overwrite,
                         {workspace.data(), workspace.size() - doing.workspace_cut});
        };
        try {
          call();
        } catch (const mhla::Error&) {
          for (const auto* result : {&y, &dq, &dk, &dv})
            for (Index i = 0; i < result->view().size(); ++i)
              if (result->view().element(i) != 1) throw std::runtime_error("written");
          // The ranks are in step: a call that all can run succeeds.
          mhla::Agreement("next").settle(communicator, [] { return true; });
          throw;
        }
      },
      std::chrono::seconds(5));
}

const auto by_sequence = [](const Doing& doing, const Communicator& communicator) {
  return mhla::sequence_parallel<float>(doing.attention, doing.whole, communicator, doing.shares,
                                        {}, doing.wire);
};
const auto by_heads = [](const Doing& doing, const Communicator& communicator) {
  return mhla::head_parallel<float>(doing.attention, doing.whole, communicator, doing.shares);
};

void check_all(const std::vector<std::string>& outcomes, const std::string& word) {
  for (const std::string& outcome : outcomes) {
    INFO(outcome);
    CHECK(outcome.find(word) != std::string::npos);
  }
}
void check_both(const Doing& usual, const Doing& odd, const std::string& word) {
  check_all(run(usual, odd, by_sequence), word);
  check_all(run(usual, odd, by_heads), word);
}
// All are told that the odd one refused, and it itself why.
void check_refused(const Doing& usual, const Doing& odd, const std::string& why) {
  for (const auto& outcomes : {run(usual, odd, by_sequence), run(usual, odd, by_heads)}) {
    check_all(outcomes, why);
    for (Index r = 0; r < ranks; ++r) {
      const std::string& outcome = outcomes[static_cast<std::size_t>(r)];
      INFO(outcome);
      CHECK((outcome.find("rank 1 refused") != std::string::npos) == (r != odd_one));
    }
  }
}

}  // namespace

TEST_CASE("ranks agree on shape, variant and shares") {
  const Doing usual;
  Doing odd;
  SECTION("as they are") { check_both(usual, odd, ""); }
  SECTION("heads") {
    odd.whole.heads = 2;
    check_both(usual, odd, "heads is 2 on rank 1 but 4 on rank 0");
  }
  SECTION("key_dim") {
    odd.whole.key_dim = 16;
    check_both(usual, odd, "key_dim is 16 on rank 1 but 8 on rank 0");
  }
  SECTION("a number of the variant") {
    odd.attention.scale = 0.5;
    check_both(usual, odd, "rank 1 has another feature map, normalizer, rotation, mixing or scale");
  }
  SECTION("precision") {
    odd.attention.precision = mhla::Precision::fast;
    check_both(usual, odd, "precision is 1 on rank 1 but 0 on rank 0");
  }
  SECTION("blocks") {
    odd.attention.blocks.block = 5;
    odd.shares = mhla::equal_shares(5, ranks);
    odd.whole.mix_query_blocks = odd.whole.mix_key_blocks = 5;
    check_both(usual, odd, "ranks disagree");
  }
  SECTION("shares") {
    odd.shares = {{0, 1}, {1, 2}, {3, 3}};
    check_both(usual, odd, "rank 1 has another shares of query blocks than rank 0");
  }
  SECTION("the wire") {
    odd.wire = mhla::Wire::bfloat16;
    check_all(run(usual, odd, by_sequence), "wire is 1 on rank 1 but 0 on rank 0");
  }
}

TEST_CASE("ranks agree on the call") {
  Doing usual;
  Doing odd;
  SECTION("which pass") {
    odd.backward = true;
    check_both(usual, odd, "rank 1 has another call than rank 0");
  }
  SECTION("whose gradients") {
    usual.backward = odd.backward = true;
    odd.wants_key = false;
    check_all(run(usual, odd, by_heads), "whether dk is wanted is 0 on rank 1 but 1 on rank 0");
  }
}

TEST_CASE("what a rank refuses, no rank runs") {
  Doing usual;
  Doing odd;
  for (const bool backward : {false, true}) {
    usual.backward = odd.backward = backward;
    SECTION(backward ? "backward" : "forward") {
      SECTION("another number of tokens") {
        odd.tokens = 7;
        check_refused(usual, odd, "q: axis tokens is 7 but must be 8");
      }
      SECTION("part of mix") {
        odd.mix_columns = 5;
        check_refused(usual, odd, "mix: axis key blocks is 5 but must be 6");
      }
      SECTION("values without an address") {
        odd.has_value = false;
        check_refused(usual, odd, "v: has 96 elements but a null address");
      }
      SECTION("a workspace that is too small") {
        odd.workspace_cut = 64;
        check_refused(usual, odd, "workspace: ");
      }
    }
  }
}

TEST_CASE("ranks agree on a batch's offsets and masks") {
  const Variant attention{.blocks = {.block = 4}};
  check_all(thread_ranks::run(ranks,
                              [&](const thread_ranks::Communicator& communicator) {
                                const bool odd = communicator.rank() == odd_one;
                                const std::int32_t offsets[] = {0, odd ? 12 : 8, 24};
                                mhla::head_parallel<float>(
                                    mhla::packed(attention, Span<const std::int32_t>{offsets, 3}),
                                    shape, communicator, mhla::equal_shares(6, ranks));
                              }),
            "rank 1 has another list of offsets than rank 0");
  check_all(thread_ranks::run(ranks,
                              [&](const thread_ranks::Communicator& communicator) {
                                HostTensor<std::uint8_t, 2> mask(1, 24);
                                mask(0, 7) = communicator.rank() == odd_one;
                                mhla::head_parallel<float>(mhla::padded(attention, mask.view()),
                                                           shape, communicator,
                                                           mhla::equal_shares(6, ranks));
                              }),
            "rank 1 has another mask than rank 0");
}

TEST_CASE("causal queries and keys have one mask, or no rank goes on") {
  using Sequence = Attention<Relu, Blocks1D, mhla::Causal>;
  const auto outcomes =
      thread_ranks::run(ranks, [&](const thread_ranks::Communicator& communicator) {
        const auto layer = mhla::sequence_parallel<float>(
            Sequence{.blocks = {.block = 4}}, shape, communicator, mhla::equal_shares(6, ranks));
        const HostTensor<std::uint8_t, 2> mask(1, 8), other(1, 8);
        const bool odd = communicator.rank() == odd_one;
        layer.padded({mask.view(), odd ? other.view() : mask.view()});
      });
  check_all(outcomes, "queries and keys need one mask");
}

TEST_CASE("a recurrence's shares begin at its chunks, and its states travel exact") {
  using Recurrent = Attention<Relu, Blocks1D, mhla::Causal, mhla::MixedKeySum, mhla::NoRotation,
                              mhla::RecurrentMixing>;
  const auto refused = [](const Shares& shares, mhla::Wire wire, const std::string& why) {
    const auto make = [&](const thread_ranks::Communicator& communicator) {
      mhla::sequence_parallel<float>(Recurrent{.blocks = {.block = 1}},
                                     Shape{1, 4, 2, 40, 40, 8, 6, 1, 40, 4}, communicator, shares,
                                     {}, wire);
    };
    check_all(thread_ranks::run(ranks, make), why);
  };
  refused({{0, 16}, {16, 16}, {32, 8}}, mhla::Wire::exact, "");
  refused({{0, 16}, {16, 24}, {40, 0}}, mhla::Wire::exact, "");
  refused({{0, 16}, {16, 10}, {26, 14}}, mhla::Wire::exact,
          "queries: rank 2 begins at block 26 but must begin at a multiple of 16");
  refused({{0, 16}, {16, 16}, {32, 8}}, mhla::Wire::bfloat16,
          "wire: RecurrentMixing requires Wire::exact");
}

TEST_CASE("a packed batch's shares") {
  static constexpr std::int32_t offsets[] = {0, 20, 20, 60};
  Index columns = 40;  // of mix
  const auto refused = [&](const auto& attention, const Shares& queries, const Shares& keys,
                           const std::string& why) {
    const auto make = [&](const thread_ranks::Communicator& communicator) {
      mhla::sequence_parallel<float>(mhla::packed(attention, Span<const std::int32_t>{offsets, 4}),
                                     Shape{1, 4, 2, 60, 60, 8, 6, 1, 40, columns}, communicator,
                                     queries, keys);
    };
    check_all(thread_ranks::run(ranks, make), why);
  };
  const Variant attention{.blocks = {.block = 4}};
  refused(attention, {{0, 4}, {4, 4}, {8, 7}}, {}, "");
  refused(attention, {{0, 4}, {4, 4}, {8, 6}}, {}, "queries: all shares together have 14 blocks");
  refused(attention, {{0, 4}, {4, 4}, {8, 7}}, {{0, 4}, {4, 5}, {9, 6}},
          "keys: under Causal and BlockCausal, and of a packed batch, they have the shares of");
  using Recurrent = Attention<Relu, Blocks1D, mhla::Causal, mhla::MixedKeySum, mhla::NoRotation,
                              mhla::RecurrentMixing>;
  const Recurrent recurrent{.blocks = {.block = 1}};
  columns = 4;
  refused(recurrent, {{0, 16}, {16, 4}, {20, 40}}, {}, "");
  refused(recurrent, {{0, 20}, {20, 32}, {52, 8}}, {}, "");
  refused(recurrent, {{0, 20}, {20, 28}, {48, 12}}, {},
          "queries: rank 2 begins at block 28 of a sequence but must begin at a multiple of 16");
  CHECK(mhla::equal_shares(mhla::packed(recurrent, Span<const std::int32_t>{offsets, 4}),
                           Shape{1, 4, 2, 60, 60, 8, 6, 1, 40, 4},
                           ranks) == Shares{{0, 20}, {20, 16}, {36, 24}});
  CHECK(mhla::equal_shares(recurrent, Shape{1, 4, 2, 40, 40, 8, 6, 1, 40, 4}, ranks) ==
        Shares{{0, 16}, {16, 16}, {32, 8}});
  // To the end of a sequence, where that is nearer than the chunk before it.
  static constexpr std::int32_t short_one[] = {0, 11, 30};
  CHECK(mhla::equal_shares(mhla::packed(recurrent, Span<const std::int32_t>{short_one, 3}),
                           Shape{1, 4, 2, 30, 30, 8, 6, 1, 19, 4},
                           ranks) == Shares{{0, 11}, {11, 16}, {27, 3}});
}
