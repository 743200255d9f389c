// SPDX-License-Identifier: MIT
// The bytes that a call moves between ranks, and that a rank holds, by sequence and by heads; and
// which of these splits it takes, and why.
#pragma once

#include <mhla/cpu/pipeline.hpp>
#include <mhla/distributed/agreement.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup distributed
/// \{

/// How a call is divided.
struct SplitCall {
  Shares queries;               ///< of query blocks
  Shares keys = {};             ///< of key blocks; empty: as `queries`
  Wire wire = Wire::exact;      ///< by sequence
  bool summaries_kept = false;  ///< by sequence: by the forward pass for the backward pass
  bool on_gpus = false;         ///< by heads: sums of dmix stay at their ranks
};

/// Bytes of one pass at one rank.
struct RankTraffic {
  Index sent = 0;      ///< to other ranks, those of a collective once for every receiver
  Index received = 0;  ///< from other ranks
  Index held = 0;      ///< of its tensors and sums together; mix, workspaces and buffers aside

  /// What takes its time where a rank sends and receives at once.
  constexpr Index busy() const { return (std::max)(sent, received); }
};

/// Both passes of one rank, backward with every gradient wanted.
struct Traffic {
  RankTraffic forward;   ///< y
  RankTraffic backward;  ///< dq, dk, dv, dmix
};

/// Why calls of a variant cannot be divided by sequence; nullptr if they can.
template <AttentionVariant V>
inline constexpr const char* refusal_by_sequence =
    mixes_products<V>
        ? "MixedProduct divides by products at the same offset of every other block, which other "
          "ranks hold"
    : is_structured<V> && !std::is_same_v<typename V::MixingType, RecurrentMixing>
        ? "a structured mixing has no rows that ranks could share; RecurrentMixing has states"
        : nullptr;

/// \cond INTERNAL
// A size, whose sums and products throw ShapeError where they do not fit.
struct CheckedSize {
  Index value = 0;

  constexpr CheckedSize(Index size) : value(size) {}  // NOLINT: so that formulas stay formulas
  friend constexpr CheckedSize operator+(CheckedSize a, CheckedSize b) {
    return checked_add(a.value, b.value);
  }
  friend constexpr CheckedSize operator*(CheckedSize a, CheckedSize b) {
    return checked_mul(a.value, b.value);
  }
  constexpr CheckedSize& operator+=(CheckedSize more) { return *this = *this + more; }
};
/// \endcond

/// What each rank of a call moves and holds, in plain arithmetic. T is the storage type of the
/// tensors. With B items of a batch, H kv heads of G query heads each, D features:
///
///     by sequence   B H (D e [+ D]) elements for each of its key blocks to every rank that sees
///                   them, the later ones or all.
///                   Backward: the same unless they were kept, and as many for each of its query
///                   blocks to the ranks it sees, times G if mix has a matrix per query head.
///                   RecurrentMixing: as many, times G likewise, for each state to the next rank;
///                   backward also to the one before
///     by heads      q, k, v of other heads out and of its heads in, y back.
///                   Backward: q, k, v, dy, and dq, dk, dv back; on CPUs to rank 0, if one matrix
///                   serves all heads, sums of dmix: of each kv head min(B, max(1, 64 / H)), or
///                   fewer of matrices with more than 2^18 elements
///
/// [+ D] with a normalizer. Heads are shared as blocks can be: the first ranks have one more, ranks
/// beyond H none.
template <class V, class T = void>
class SplitTraffic {
  static_assert(
      !requires(const V& v) { v.masks; },
      "mhla: masks change nothing that ranks exchange: give SplitTraffic the attention "
      "that was padded");
  using A = Accumulator<T>;

 public:
  /// \throws ShapeError if variant, shape and shares do not fit.
  SplitTraffic(const V& attention, const Shape& shape, const SplitCall& call)
      : attention_(attention), problem_(checked_problem(attention, shape)), call_(call) {
    require_enumerator("wire", call_.wire, Wire::bfloat16);
    if (call_.keys.empty()) call_.keys = call_.queries;
    const Index ranks = (std::max)(Index{1}, this->ranks());
    require_shares("queries", call_.queries, query_list(attention_, problem_).num_blocks(), ranks);
    require_shares("keys", call_.keys, key_list(attention_, problem_).num_blocks(), ranks);
    if constexpr (refusal_by_sequence<V> == nullptr)
      require_chunks<V>("queries", call_.queries, query_list(attention_, problem_));
    if (!is_causal<V> && !is_batch_layout<V>) return;
    for (Index r = 0; r < ranks; ++r)
      require_extent("keys", "blocks of a rank", keys(r).count, queries(r).count,
                     is_batch_layout<V>
                         ? "a packed batch has the queries and the keys of a block at one rank"
                         : "causal attention has the queries and the keys of a block at one rank");
  }

  /// Their number.
  Index ranks() const { return static_cast<Index>(call_.queries.size()); }

  /// By sequence. \throws ShapeError if there is no such rank.
  Traffic by_sequence(Index rank) const {
    static_assert(refusal_by_sequence<V> == nullptr,
                  "mhla: refusal_by_sequence<V> says why this variant goes by heads alone");
    require_rank(rank);
    const Index matrices = problem_.shape.matrices();
    const SumsLayout summary = sums_layout<V>(problem_, is_structured<V> ? matrices : 1);
    const SumsLayout mixture = sums_layout<V>(problem_, matrices);
    const Rows summaries = rows(rank, call_.keys, false);
    const Rows mixtures = rows(rank, call_.queries, true);
    Traffic traffic = agreed();
    add(traffic.forward, summaries, summary);
    if (!call_.summaries_kept) add(traffic.backward, summaries, summary);
    add(traffic.backward, mixtures, mixture);

    const auto held = [&](const Widths& widths) { return units() * widths(tokens(rank)); };
    const CheckedSize own = exact_bytes(sums_layout<V>(problem_, 1)) * keys(rank).count;
    const CheckedSize seen = own + exact_bytes(summary) * summaries.received;
    const CheckedSize mixed = exact_bytes(mixture) * (mixtures.received + queries(rank).count);
    add(traffic.forward.held, held(forward()) + seen);
    add(traffic.backward.held, held(backward()) + seen + own + mixed);
    return traffic;
  }

  /// By heads. \throws ShapeError if there is no such rank.
  Traffic by_heads(Index rank) const {
    require_rank(rank);
    Traffic traffic = agreed();
    add(traffic.forward, rank, forward());
    add(traffic.backward, rank, backward());
    if (problem_.shape.mix_heads != 1 || problem_.shape.empty() || call_.on_gpus) return traffic;
    const auto sums = cpu::Plan<cpu::LoweredOf<V>, A>::partial_sums(attention_, problem_);
    const auto bytes = [&](Index heads) {
      return CheckedSize(heads) * sums.sequence_groups * sums.size * sum_bytes;
    };
    if (rank == 0)
      add(traffic.backward.received, bytes(problem_.shape.kv_heads - kv_heads(0)));
    else
      add(traffic.backward.sent, bytes(kv_heads(rank)));
    return traffic;
  }

  /// Ranks that have queries.
  Index working_by_sequence() const {
    return std::count_if(call_.queries.begin(), call_.queries.end(),
                         [](const BlockRange& blocks) { return blocks.count > 0; });
  }
  /// Ranks that have heads: the first ones.
  Index working_by_heads() const { return (std::min)(ranks(), problem_.shape.kv_heads); }

 private:
  void require_rank(Index rank) const {
    if (rank < 0 || rank >= ranks())
      throw ShapeError({"mhla: rank: is ", rank, " but there are ", ranks(), " ranks"});
  }

  static constexpr Index token_bytes = sizeof(T);
  static constexpr Index sum_bytes = sizeof(A);

  struct Tokens {
    Index queries, keys;
  };
  // Bytes of a query and of a key, per kv head, that go to the rank that computes and come back.
  struct Widths {
    CheckedSize query_out, key_out, query_back, key_back;

    CheckedSize out(const Tokens& of) const { return query_out * of.queries + key_out * of.keys; }
    CheckedSize back(const Tokens& of) const {
      return query_back * of.queries + key_back * of.keys;
    }
    CheckedSize operator()(const Tokens& of) const { return out(of) + back(of); }
  };
  struct Rows {
    CheckedSize sent = 0, received = 0;
  };

  // q, k, v; y.
  Widths forward() const { return {group() * query(), query() + value(), group() * value(), 0}; }
  // q, dy, k, v; dq, dk, dv.
  Widths backward() const {
    const CheckedSize both = query() + value();
    return {group() * both, both, group() * query(), both};
  }
  // Bytes of a token's query or key, and of its value.
  CheckedSize query() const { return CheckedSize(token_bytes) * problem_.shape.key_dim; }
  CheckedSize value() const { return CheckedSize(token_bytes) * problem_.shape.value_dim; }
  CheckedSize group() const { return problem_.shape.group_size(); }

  Index kv_heads(Index rank) const {
    return piece_of({0, problem_.shape.kv_heads}, rank, ranks()).count;
  }
  CheckedSize batch() const { return problem_.shape.batch; }
  CheckedSize units() const { return batch() * problem_.shape.kv_heads; }
  Tokens tokens(Index rank) const {
    return {query_list(attention_, problem_).num_tokens(queries(rank)),
            key_list(attention_, problem_).num_tokens(keys(rank))};
  }
  // Its tokens of other ranks' heads go there, others' tokens of its heads come.
  void add(RankTraffic& traffic, Index rank, const Widths& widths) const {
    const Shape& shape = problem_.shape;
    const CheckedSize its = batch() * kv_heads(rank);
    const CheckedSize others = batch() * (shape.kv_heads - kv_heads(rank));
    const Tokens own = tokens(rank);
    const Tokens rest = {shape.query_tokens - own.queries, shape.key_tokens - own.keys};
    add(traffic.sent, others * widths.out(own) + its * widths.back(rest));
    add(traffic.received, its * widths.out(rest) + others * widths.back(own));
    add(traffic.held, (others + its) * widths(own) + its * (widths(own) + widths(rest)));
  }

  const BlockRange& queries(Index rank) const {
    return call_.queries[static_cast<std::size_t>(rank)];
  }
  const BlockRange& keys(Index rank) const { return call_.keys[static_cast<std::size_t>(rank)]; }

  static CheckedSize exact_bytes(const SumsLayout& row) { return row.bytes<A>(Wire::exact); }
  // What blocks leave for the ranks that see them or, of gradients, for those that they see.
  Rows rows(Index rank, const Shares& shares, bool gradients) const {
    Rows rows;
    const auto list = gradients ? query_list(attention_, problem_) : key_list(attention_, problem_);
    const auto share = [&](Index of) { return shares[static_cast<std::size_t>(of)]; };
    if constexpr (is_structured<V>) {  // states, from rank to rank
      const auto is_inner = [&](Index of) {
        return of < ranks() && list.block_in_sequence(share(of).first) > 0;
      };
      const Index states = attention_.mixing.states;
      if (is_inner(gradients ? rank : rank + 1)) rows.sent = states;
      if (is_inner(gradients ? rank + 1 : rank)) rows.received = states;
      return rows;
    }
    const auto blocks_between = [&](Index from, Index to) {
      const BlockRange read = blocks_read<V>(share(to), list.sequences_of(share(to)), gradients);
      return common(share(from), read).count;
    };
    for (Index other = 0; other < ranks(); ++other) {
      if (other == rank) continue;
      rows.sent += blocks_between(rank, other);
      rows.received += blocks_between(other, rank);
    }
    return rows;
  }
  void add(RankTraffic& traffic, const Rows& rows, const SumsLayout& row) const {
    const CheckedSize bytes = row.bytes<A>(is_structured<V> ? Wire::exact : call_.wire);
    add(traffic.sent, bytes * rows.sent);
    add(traffic.received, bytes * rows.received);
  }

  Traffic agreed() const {
    const Index bytes = checked_mul(agreement_bytes + confirmation_bytes, ranks() - 1);
    return {{bytes, bytes}, {bytes, bytes}};
  }
  static void add(Index& total, CheckedSize more) { total = checked_add(total, more.value); }

  V attention_;
  Problem problem_;
  SplitCall call_;
};

/// \cond INTERNAL
template <class V, class T>
requires(!VariantOfTensors<V, T>) class SplitTraffic<V, T> : public NoVariantOfTensors<V, T> {
 public:
  using NoVariantOfTensors<V, T>::NoVariantOfTensors;
};
/// \endcond

/// How a sequence is divided among ranks.
enum class Split {
  by_sequence,  ///< each has blocks; summaries travel
  by_heads,     ///< each has heads; tokens travel
};

/// The cost of a split.
struct SplitCost {
  Index working = 0;   ///< ranks that have something to compute
  Index forward = 0;   ///< bytes that the busiest rank sends, or receives if those are more
  Index backward = 0;  ///< the same of the backward pass
  Index held = 0;      ///< bytes that the fullest rank holds, in the pass in which it holds more
};

/// A split, and why.
struct SplitProposal {
  Split split = Split::by_heads;
  const char* reason = nullptr;   ///< in words
  const char* refusal = nullptr;  ///< why not by sequence; nullptr if that were possible
  Index ranks = 0;
  SplitCost by_sequence;  ///< zeros if that is refused
  SplitCost by_heads;
};

/// \cond INTERNAL
inline void take_up(SplitCost& cost, const Traffic& rank) {
  cost.forward = (std::max)(cost.forward, rank.forward.busy());
  cost.backward = (std::max)(cost.backward, rank.backward.busy());
  cost.held = (std::max)({cost.held, rank.forward.held, rank.backward.held});
}

inline void choose(SplitProposal& proposal) {
  const SplitCost& sequence = proposal.by_sequence;
  const SplitCost& heads = proposal.by_heads;
  const auto take = [&](bool by_sequence, const char* reason) {
    proposal.split = by_sequence ? Split::by_sequence : Split::by_heads;
    proposal.reason = reason;
  };
  if (proposal.refusal != nullptr) return take(false, "there is no other way");
  if (sequence.working != heads.working)
    return take(sequence.working > heads.working, "more ranks have work");
  const Index by_sequence = checked_add(sequence.forward, sequence.backward);
  const Index by_heads = checked_add(heads.forward, heads.backward);
  if (by_sequence == by_heads) return take(true, "both move the same bytes");
  take(by_sequence < by_heads, "its busiest rank moves fewer bytes");
}
/// \endcond

/// The split that gives more ranks work and, of equal ones, whose busiest rank moves fewer bytes in
/// both passes together; by heads what cannot go by sequence. T is the storage type of the tensors.
/// \throws ShapeError as SplitTraffic does.
template <StorageScalar T, AttentionVariant V>
SplitProposal propose_split(const V& attention, const Shape& shape, const SplitCall& call) {
  const SplitTraffic<V, T> traffic(attention, shape, call);
  SplitProposal proposal;
  proposal.refusal = refusal_by_sequence<V>;
  proposal.ranks = traffic.ranks();
  proposal.by_heads.working = traffic.working_by_heads();
  for (Index r = 0; r < traffic.ranks(); ++r) take_up(proposal.by_heads, traffic.by_heads(r));
  if constexpr (refusal_by_sequence<V> == nullptr) {
    proposal.by_sequence.working = traffic.working_by_sequence();
    for (Index r = 0; r < traffic.ranks(); ++r)
      take_up(proposal.by_sequence, traffic.by_sequence(r));
  }
  choose(proposal);
  return proposal;
}

/// A proposal in words and numbers.
inline std::string to_string(const SplitProposal& proposal) {
  const auto cost = [&](const SplitCost& of) {
    return joined({of.working, " of ", proposal.ranks, " ranks have work; the busiest moves ",
                   of.forward, " bytes forward, ", of.backward, " backward; the fullest holds ",
                   of.held});
  };
  return joined(
      {proposal.split == Split::by_sequence ? "by sequence: " : "by heads: ", proposal.reason,
       proposal.refusal != nullptr ? "\n  not by sequence: " : "\n  by sequence: ",
       proposal.refusal != nullptr ? std::string(proposal.refusal) : cost(proposal.by_sequence),
       "\n  by heads: ", cost(proposal.by_heads), "\n"});
}

/// Says which split propose_split takes and why, and of both which ranks work, what the busiest
/// moves, and what the fullest holds. Sends nothing.
/// \code
/// std::cout << mhla::explain<float>(attention, call, {.queries = mhla::equal_shares(16, 2)});
/// \endcode
/// \throws ShapeError as SplitTraffic does.
template <StorageScalar T, AttentionVariant V>
std::string explain(const V& attention, const Shape& shape, const SplitCall& call) {
  return to_string(propose_split<T>(attention, shape, call));
}

/// \cond INTERNAL
MHLA_NO_SUCH_CALL(SplitProposal propose_split,
                  "mhla: call propose_split<T>, or explain<T>, (attention, shape, {.queries = "
                  "shares}) with the scalar T of the tensors, an mhla::Shape and an "
                  "mhla::SplitCall")
/// \endcond

/// \}

MHLA_NAMESPACE_END
