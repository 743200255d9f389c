// SPDX-License-Identifier: MIT
// Which split a call over several ranks takes, and why.
#pragma once

#include <algorithm>
#include <mhla/core/any_argument.hpp>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/distributed/traffic.hpp>
#include <mhla/policy/variant.hpp>
#include <string>

MHLA_NAMESPACE_BEGIN

/// \addtogroup distributed
/// \{

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
  const auto number = [](Index n) { return std::to_string(n); };
  const auto cost = [&](const SplitCost& of) {
    return number(of.working) + " of " + number(proposal.ranks) +
           " ranks have work; the busiest moves " + number(of.forward) + " bytes forward, " +
           number(of.backward) + " backward; the fullest holds " + number(of.held) + "\n";
  };
  return std::string(proposal.split == Split::by_sequence ? "by sequence" : "by heads") + ": " +
         proposal.reason + "\n" +
         (proposal.refusal != nullptr ? std::string("  not by sequence: ") + proposal.refusal + "\n"
                                      : "  by sequence: " + cost(proposal.by_sequence)) +
         "  by heads: " + cost(proposal.by_heads);
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
template <class... X>
void explain_split() {
  static_assert(no_such_call<X...>,
                "mhla: call propose_split<T>, or explain<T>, (attention, shape, {.queries = "
                "shares}) with the "
                "scalar T of the tensors, an mhla::Shape and an mhla::SplitCall");
}
MHLA_ANY_CALL(SplitProposal propose_split, {
  explain_split<Given...>();
  return {};
})
/// \endcond

/// \}

MHLA_NAMESPACE_END
