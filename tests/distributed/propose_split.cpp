// SPDX-License-Identifier: MIT
// The split that is proposed: of published layers, and what explain() says.
#include <cstdint>
#include <mhla/distributed/propose_split.hpp>
#include <mhla/packed.hpp>
#include <string>
#include <type_traits>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;

using Text = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized>;
using Video = mhla::Attention<mhla::Relu, mhla::Blocks3D, mhla::Bidirectional, mhla::Unnormalized>;

template <class T = mhla::BFloat16, class V>
mhla::SplitProposal propose(const V& attention, const Shape& shape, Index ranks,
                            mhla::Wire wire = mhla::Wire::exact, bool kept = false) {
  return mhla::propose_split<T>(
      attention, shape, {mhla::equal_shares(shape.mix_query_blocks, ranks), {}, wire, kept});
}

}  // namespace

TEST_CASE("split: Wan's layer goes by sequence beyond 12 heads, by heads between") {
  const Video attention{.blocks = {.grid = {21, 30, 50}, .block = {3, 10, 10}}};
  const Shape shape{1, 12, 12, 31500, 31500, 128, 128, 1, 105, 105};
  const auto split = [&](Index ranks) { return propose(attention, shape, ranks).split; };
  CHECK(split(2) == Split::by_sequence);
  CHECK(split(4) == Split::by_sequence);
  CHECK(split(12) == Split::by_heads);
  CHECK(split(13) == Split::by_sequence);
  // In bfloat16, and kept for the backward pass, summaries have a third of the bytes.
  CHECK(propose(attention, shape, 6).split == Split::by_heads);
  CHECK(propose(attention, shape, 6, mhla::Wire::bfloat16, true).split == Split::by_sequence);
  // More ranks than blocks.
  const Shape whole{1, 12, 12, 31500, 31500, 128, 128, 1, 1, 1};
  CHECK(propose(Video{.blocks = {.grid = {21, 30, 50}, .block = {21, 30, 50}}}, whole, 4).split ==
        Split::by_heads);
  const mhla::SplitProposal alone = propose(attention, shape, 1);
  CHECK(alone.split == Split::by_sequence);
  CHECK(alone.reason == std::string("both move the same bytes"));
}

TEST_CASE("split: costs are the busiest rank's") {
  const Text attention{.blocks = {.block = 64}};
  const Shape shape{1, 4, 4, 2048, 2048, 128, 256, 1, 32, 32};
  const auto proposal = propose<float>(attention, shape, 4);
  const mhla::SplitTraffic<Text, float> traffic(attention, shape, {mhla::equal_shares(32, 4)});
  CHECK(proposal.ranks == 4);
  CHECK(proposal.by_sequence.working == 4);
  // The last rank receives the others' summaries, then the first their gradients beside what it
  // sends.
  CHECK(proposal.by_sequence.forward == traffic.by_sequence(3).forward.received);
  CHECK(proposal.by_sequence.forward == traffic.by_sequence(0).forward.sent);
  CHECK(proposal.by_sequence.backward == traffic.by_sequence(1).backward.busy());
  CHECK(proposal.by_sequence.held == traffic.by_sequence(3).backward.held);
  CHECK(proposal.by_heads.forward == traffic.by_heads(0).forward.busy());
  CHECK(proposal.by_heads.backward == traffic.by_heads(0).backward.busy());
  CHECK(proposal.by_heads.held == traffic.by_heads(2).backward.held);
}

TEST_CASE("split: a packed batch, whose sequences meet at ranks' borders") {
  static constexpr std::int32_t offsets[] = {0, 16, 16, 48};
  const auto attention =
      mhla::packed(Text{.blocks = {.block = 4}}, mhla::Span<const std::int32_t>{offsets, 4});
  using Packed = std::remove_const_t<decltype(attention)>;
  const Shape shape{1, 2, 2, 48, 48, 4, 4, 1, 8, 8};
  const mhla::SplitCall call{.queries = mhla::equal_shares(attention, shape, 3)};
  CHECK(call.queries == mhla::Shares{{0, 4}, {4, 4}, {8, 4}});
  // A block's S has 128 bytes. The first sequence is rank 0's alone; rank 1 sends 4 S of the last
  // to rank 2, which sends 4 dS~ back.
  const mhla::SplitTraffic<Packed, float> traffic(attention, shape, call);
  constexpr Index said = 2 * 520;
  constexpr Index sums = 4 * 128;
  CHECK(traffic.by_sequence(0).forward.sent == said);
  CHECK(traffic.by_sequence(0).backward.received == said);
  CHECK(traffic.by_sequence(1).forward.sent == said + sums);
  CHECK(traffic.by_sequence(1).backward.received == said + sums);
  CHECK(traffic.by_sequence(2).forward.sent == said);
  CHECK(traffic.by_sequence(2).forward.received == said + sums);
  // Forward 4 tensors, S; backward 7, S, dS, dS~.
  constexpr Index tensor = 2 * 16 * 4 * 4;
  CHECK(traffic.by_sequence(0).forward.held == 4 * tensor + sums);
  CHECK(traffic.by_sequence(2).forward.held == 4 * tensor + 2 * sums);
  CHECK(traffic.by_sequence(1).backward.held == 7 * tensor + 2 * sums + 2 * sums);
  CHECK(mhla::propose_split<float>(attention, shape, call).split == Split::by_sequence);
}
