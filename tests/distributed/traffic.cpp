// SPDX-License-Identifier: MIT
// Bytes between ranks, against loops over pairs of ranks that count every element.
#include <array>
#include <mhla/distributed/propose_split.hpp>
#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;

// Ranks with these numbers of blocks.
Shares blocks(std::initializer_list<Index> counts) {
  Shares shares;
  Index first = 0;
  for (const Index count : counts) shares.push_back({first, count}), first += count;
  return shares;
}
Index rank_of(const Shares& shares, Index block) {
  for (std::size_t r = 0; r < shares.size(); ++r)
    for (Index b = shares[r].first; b < shares[r].end(); ++b)
      if (b == block) return static_cast<Index>(r);
  return -1;
}

// What every rank sends, receives and holds.
using Bytes = std::vector<mhla::RankTraffic>;

struct Counted {
  Bytes forward, backward;

  explicit Counted(Index ranks) : forward(std::size_t(ranks)), backward(forward) {
    for (Index from = 0; from < ranks; ++from)
      for (Index to = 0; to < ranks; ++to) {
        move(forward, from, to, mhla::agreement_bytes + mhla::confirmation_bytes);
        move(backward, from, to, mhla::agreement_bytes + mhla::confirmation_bytes);
      }
  }
  static void move(Bytes& bytes, Index from, Index to, Index count) {
    if (from == to) return;
    bytes[std::size_t(from)].sent += count;
    bytes[std::size_t(to)].received += count;
  }
  static void hold(Bytes& bytes, Index rank, Index count) {
    bytes[std::size_t(rank)].held += count;
  }
};

struct Case {
  Shape shape;
  Shares queries, keys;
  Wire wire = Wire::exact;
  bool kept = false;

  SplitCall call() const { return {queries, keys, wire, kept}; }
  Index ranks() const { return static_cast<Index>(queries.size()); }
  Index matrices() const { return shape.mix_heads == 1 ? 1 : shape.group_size(); }
};

// S and z of a row, for so many matrices: every element by itself, as it travels and as it is
// summed; then what brings the S of bfloat16 to whole accumulators.
template <class V, class T>
void for_each_sum(const Case& c, Index features, Index matrices, const auto& visit) {
  const Index sum = Index{sizeof(mhla::Accumulator<T>)};
  const Index wire = c.wire == Wire::bfloat16 ? 2 : sum;
  Index end = 0;
  for (Index item = 0; item < c.shape.batch; ++item)
    for (Index head = 0; head < c.shape.kv_heads * matrices; ++head)
      for (Index f = 0; f < features; ++f) {
        for (Index e = 0; e < c.shape.value_dim; ++e) visit(wire, sum), end += wire;
        if (mhla::normalizes<V>) visit(sum, sum);
      }
  for (; end % sum != 0; ++end) visit(1, 0);
}

// Every token of q and y, or of k and v, with each of its heads: visit(rank, token's kv head, bytes
// of key_dim, bytes of value_dim).
template <class T>
void for_each_token(const Case& c, const mhla::Grid& grid, const Shares& shares, Index heads,
                    const auto& visit) {
  for (Index item = 0; item < c.shape.batch; ++item)
    for (Index token = 0; token < grid.num_tokens(); ++token)
      for (Index head = 0; head < heads; ++head)
        visit(rank_of(shares, grid.block_of(token)), head * c.shape.kv_heads / heads,
              c.shape.key_dim * Index{sizeof(T)}, c.shape.value_dim * Index{sizeof(T)});
}

// Calls both(bytes, rank, kv head, out, back) for everything that a token has in a pass.
template <class T>
void for_each_tensor(const Case& c, const mhla::Problem& problem, Counted& counted,
                     const auto& visit) {
  for_each_token<T>(c, problem.query_grid, c.queries, c.shape.heads,
                    [&](Index rank, Index head, Index key, Index value) {
                      visit(counted.forward, rank, head, key, value);         // q; y
                      visit(counted.backward, rank, head, key + value, key);  // q, dy; dq
                    });
  for_each_token<T>(c, problem.key_grid, c.keys, c.shape.kv_heads,
                    [&](Index rank, Index head, Index key, Index value) {
                      visit(counted.forward, rank, head, key + value, 0);             // k, v
                      visit(counted.backward, rank, head, key + value, key + value);  // and dk, dv
                    });
}

template <class T, class V>
Counted count_by_sequence(const V& attention, const Case& c) {
  const mhla::Problem problem = checked_problem(attention, c.shape);
  const Index ranks = c.ranks();
  Counted counted(ranks);
  for_each_tensor<T>(c, problem, counted,
                     [](Bytes& bytes, Index rank, Index, Index out, Index back) {
                       Counted::hold(bytes, rank, out + back);
                     });
  const auto states = [&]() -> Index {
    if constexpr (mhla::is_structured<V>) return attention.mixing.states;
    return 0;
  }();
  const auto blocks_of = [&](Index rank) { return c.queries[std::size_t(rank)].count; };
  // Whether a rank reads all rows of another one; by a recurrence those of states of the rank
  // before it, where there are blocks on both sides.
  const auto reads = [&](Index rank, Index other) {
    if (states == 0) return other != rank && (!mhla::is_causal<V> || other < rank);
    Index before = 0, after = 0;
    for (Index r = 0; r < ranks; ++r) (r < rank ? before : after) += blocks_of(r);
    return other + 1 == rank && before > 0 && after > 0;
  };
  const auto rows = [&](const Shares& shares, Index rank) {
    return states == 0 ? shares[std::size_t(rank)].count : states;
  };
  for (Index rank = 0; rank < ranks; ++rank) {
    for_each_sum<V, T>(c, problem.feature_dim, 1, [&](Index, Index sum) {  // S, and dS
      Counted::hold(counted.forward, rank, c.keys[std::size_t(rank)].count * sum);
      Counted::hold(counted.backward, rank, 2 * c.keys[std::size_t(rank)].count * sum);
    });
    for_each_sum<V, T>(c, problem.feature_dim, c.matrices(), [&](Index, Index sum) {  // dS~
      Counted::hold(counted.backward, rank, c.queries[std::size_t(rank)].count * sum);
    });
    for (Index other = 0; other < ranks; ++other) {
      if (!reads(rank, other)) continue;
      for_each_sum<V, T>(c, problem.feature_dim, states == 0 ? 1 : c.matrices(),
                         [&](Index wire, Index sum) {
                           for (Index row = 0; row < rows(c.keys, other); ++row) {
                             Counted::move(counted.forward, other, rank, wire);
                             if (!c.kept) Counted::move(counted.backward, other, rank, wire);
                             Counted::hold(counted.forward, rank, sum);
                             Counted::hold(counted.backward, rank, sum);
                           }
                         });
      for_each_sum<V, T>(c, problem.feature_dim, c.matrices(), [&](Index wire, Index sum) {
        for (Index row = 0; row < rows(c.queries, rank); ++row) {
          Counted::move(counted.backward, rank, other, wire);
          Counted::hold(counted.backward, other, sum);
        }
      });
    }
  }
  return counted;
}

template <class T, class V>
Counted count_by_heads(const V& attention, const Case& c) {
  const mhla::Problem problem = checked_problem(attention, c.shape);
  const Index ranks = c.ranks();
  Counted counted(ranks);
  // Heads are dealt out one by one, then sorted.
  std::vector<Index> dealt(std::size_t(ranks), 0);
  for (Index head = 0; head < c.shape.kv_heads; ++head) ++dealt[std::size_t(head % ranks)];
  std::vector<Index> rank_of_head;
  for (Index rank = 0; rank < ranks; ++rank)
    rank_of_head.insert(rank_of_head.end(), std::size_t(dealt[std::size_t(rank)]), rank);
  for_each_tensor<T>(c, problem, counted,
                     [&](Bytes& bytes, Index rank, Index head, Index out, Index back) {
                       const Index there = rank_of_head[std::size_t(head)];
                       Counted::move(bytes, rank, there, out);
                       Counted::move(bytes, there, rank, back);
                       Counted::hold(bytes, rank, out + back);
                       Counted::hold(bytes, there, out + back);
                     });
  if (c.shape.mix_heads != 1 || c.shape.empty()) return counted;
  // Sums of dmix: at most 64, of one kv head each and of one item at least.
  Index groups = 1;
  while (groups < c.shape.batch && (groups + 1) * c.shape.kv_heads <= 64) ++groups;
  Index elements = problem.query_blocks * problem.key_blocks;
  if constexpr (mhla::is_structured<V>)
    elements = attention.mixing.num_coefficients(mhla::mixing_layout<V>(problem));
  for (const Index rank : rank_of_head)
    for (Index sum = 0; sum < groups * elements; ++sum)
      Counted::move(counted.backward, rank, 0, Index{sizeof(mhla::Accumulator<T>)});
  return counted;
}

void check(const mhla::RankTraffic& computed, const mhla::RankTraffic& counted) {
  CHECK(computed.sent == counted.sent);
  CHECK(computed.received == counted.received);
  CHECK(computed.held == counted.held);
}

template <class T, class V>
void check_case(const V& attention, const Case& c) {
  const mhla::SplitTraffic<V, T> traffic(attention, c.shape, c.call());
  REQUIRE(traffic.ranks() == c.ranks());
  const auto check_all = [&](const Counted& counted, const auto& computed) {
    for (Index rank = 0; rank < traffic.ranks(); ++rank) {
      CAPTURE(rank);
      const Traffic of_rank = computed(rank);
      check(of_rank.forward, counted.forward[std::size_t(rank)]);
      check(of_rank.backward, counted.backward[std::size_t(rank)]);
    }
  };
  INFO("by heads");
  check_all(count_by_heads<T>(attention, c), [&](Index r) { return traffic.by_heads(r); });
  if constexpr (mhla::refusal_by_sequence<V> == nullptr) {
    INFO("by sequence");
    check_all(count_by_sequence<T>(attention, c), [&](Index r) { return traffic.by_sequence(r); });
  }
}

template <class Causality, class Normalizer = mhla::MixedKeySum>
using Text = Attention<mhla::Relu, Blocks1D, Causality, Normalizer>;
template <class Causality>
using Recurrent = Attention<mhla::Relu, Blocks1D, Causality, mhla::MixedKeySum, mhla::NoRotation,
                            mhla::RecurrentMixing>;

}  // namespace

TEST_CASE("traffic: cross-attention, uneven shares, a rank without blocks, more features") {
  // 11 queries in blocks of 3, 13 keys in blocks of 2: the last ones are shorter.
  const Attention<mhla::Hedgehog, Blocks1D> attention{.blocks = {.block = 3},
                                                      .key_blocks = {.block = 2}};
  for (const Index mix_heads : {1, 6, 12})
    for (const Wire wire : {Wire::exact, Wire::bfloat16})
      for (const bool kept : {false, true}) {
        CAPTURE(mix_heads, static_cast<int>(wire), kept);
        const Case c{{2, 6, 3, 11, 13, 4, 5, mix_heads, 4, 7},
                     blocks({1, 3, 0, 0}),
                     blocks({0, 2, 4, 1}),
                     wire,
                     kept};
        check_case<float>(attention, c);
        check_case<double>(attention, c);
        check_case<mhla::BFloat16>(attention, c);
      }
}

TEST_CASE("traffic: causal kinds send one way, a recurrence its states") {
  const Case c{{1, 4, 2, 23, 23, 3, 2, 1, 6, 6}, blocks({2, 1, 0, 3}), blocks({2, 1, 0, 3})};
  check_case<float>(Text<Causal>{.blocks = {.block = 4}}, c);
  check_case<float>(Text<BlockCausal>{.blocks = {.block = 4}}, c);
  check_case<float>(Text<Causal, mhla::Unnormalized>{.blocks = {.block = 4}}, c);
  for (const Index mix_heads : {1, 4}) {
    CAPTURE(mix_heads);
    const Shares chunks = blocks({32, 16, 0, 35});
    const Case states{{1, 4, 2, 83, 83, 3, 2, mix_heads, 83, 7}, chunks, chunks};
    check_case<mhla::Half>(Recurrent<Causal>{.blocks = {.block = 1}, .mixing = {.states = 2}},
                           states);
    check_case<float>(Recurrent<BlockCausal>{.blocks = {.block = 1}, .mixing = {.states = 2}},
                      states);
  }
}
