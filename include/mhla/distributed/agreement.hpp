// SPDX-License-Identifier: MIT
// What calls of SequenceParallel and HeadParallel begin by. Before ranks exchange anything, they
// compare what they are about to do: a rank that would go on with other numbers, or that cannot go
// on, is named on every rank, and no rank waits for it.
#pragma once

#include <mhla/distributed/shares.hpp>
#include <mhla/policy/fingerprint.hpp>

MHLA_NAMESPACE_BEGIN

/// Bytes that each rank sends to every other at the beginning of a call.
inline constexpr Index agreement_bytes = 512;

/// Bytes of the same before results are written.
inline constexpr Index confirmation_bytes = sizeof(std::int64_t);

/// What every rank has of this: as many elements of each, one rank's after the other's.
template <class T, Communicator C>
std::vector<T> gather_all(const C& communicator, Span<const T> mine) {
  const Index bytes = mine.size * static_cast<Index>(sizeof(T));
  const Index ranks = communicator.size();
  std::vector<T> all(static_cast<std::size_t>(ranks * mine.size));
  Parts parts(ranks);
  for (Index r = 0; r < ranks; ++r) parts[r] = {r * bytes, bytes};
  communicator.all_gather(mine.data, all.data(), parts);
  return all;
}

/// Returns when all ranks have got here: each has received what it needs, and writes its results
/// alone. \throws CommunicationError if one does not answer.
template <Communicator C>
void confirm(const C& communicator) {
  const std::int64_t received = 1;
  gather_all(communicator, Span<const std::int64_t>{&received, 1});
}

/// What a rank is about to do, as numbers with names.
class Agreement {
 public:
  /// `call` is what is done.
  explicit Agreement(const char* call) { add_text("call", call); }

  /// A number that is equal on all ranks.
  Agreement& add(const char* name, Index value) {
    name_[count_] = name;
    record_.value[count_++] = value;
    return *this;
  }
  /// Anything else, by the hash of what add_to(hash) adds.
  template <class AddTo>
  void add_hash(const char* name, const AddTo& add_to) {
    fingerprint::Hash hash;
    add_to(hash);
    hashed_ |= std::uint64_t{1} << count_;
    add(name, static_cast<Index>(hash.value()));
  }
  void add_text(const char* name, const char* text) {
    add_hash(name, [&](auto& hash) {
      hash.add(reinterpret_cast<const unsigned char*>(text), std::strlen(text));
    });
  }

  /// prepare()'s result, if no rank's throws and all numbers are equal on all ranks.
  /// \throws what prepare threw, or ShapeError that names a rank and what it did.
  template <Communicator C, class Prepare>
  auto settle(const C& communicator, const Prepare& prepare) {
    std::optional<decltype(prepare())> prepared;
    std::exception_ptr refusal;
    try {
      prepared.emplace(prepare());
    } catch (const std::exception& reason) {
      refusal = refuse(reason.what());
    } catch (...) {  // whatever code of the caller's throws
      refusal = refuse("what it threw is not a std::exception");
    }
    const std::vector<Record> all = gather_all(communicator, Span<const Record>{&record_, 1});
    if (refusal) std::rethrow_exception(refusal);
    require_all_equal(all);
    return (std::move)(*prepared);
  }

 private:
  static constexpr Index most = 40;
  struct Record {
    std::int64_t value[most];
    char refusal[static_cast<std::size_t>(agreement_bytes) - most * sizeof(std::int64_t)];
  };
  static_assert(sizeof(Record) == agreement_bytes);

  // The exception that is being handled; others are told its reason.
  std::exception_ptr refuse(const char* reason) {
    record_.refusal[0] = '!';  // also of an empty reason
    std::strncpy(record_.refusal + 1, reason, sizeof(record_.refusal) - 2);
    return std::current_exception();
  }

  void require_all_equal(const std::vector<Record>& all) const {
    const auto ranks = static_cast<Index>(all.size());
    for (Index r = 0; r < ranks; ++r) {
      const char* const refusal = all[static_cast<std::size_t>(r)].refusal;
      if (refusal[0] != 0)
        throw ShapeError({"mhla: rank ", r, " refused the call, so no rank ran it: ", refusal + 1});
    }
    for (Index i = 0; i < count_; ++i)
      for (Index r = 1; r < ranks; ++r) {
        const Index here = all[0].value[i];
        const Index there = all[static_cast<std::size_t>(r)].value[i];
        if (here == there) continue;
        if ((hashed_ >> i & 1) != 0)
          throw ShapeError(
              {"mhla: ranks disagree: rank ", r, " has another ", name_[i], " than rank 0"});
        throw ShapeError({"mhla: ranks disagree: ", name_[i], " is ", there, " on rank ", r,
                          " but ", here, " on rank 0"});
      }
  }

  Record record_{};
  const char* name_[most] = {};
  std::uint64_t hashed_ = 0;
  Index count_ = 0;
};

// Fails with one sentence where a call of SequenceParallel's or HeadParallel's does not compile.
template <class... X>
Index explain_member() {
  static_assert(no_such_call<X...>,
                "mhla: call forward(executor, {q, k, v, mix}, y, workspace) or "
                "backward(executor, {q, k, v, mix}, dy, {dq, dk, dv, dmix}, update, "
                "workspace), with mhla::skip for a gradient that is not wanted, and sizes by "
                "forward_workspace_size(executor) or backward_workspace_size(executor): on "
                "GPUs the executor is an mhla::CudaDevice");
  return 0;
}

// The template arguments of SequenceParallel and HeadParallel.
template <class S, class C>
concept PartsOfRanks = Communicator<C> && requires {
  typename S::Variant;
  typename S::Scalar;
};
// Their base where the arguments are others: fails with one sentence.
template <class S, class C>
struct NoPartsOfRanks {
  static_assert(no_such_call<S, C>,
                "mhla: SequenceParallel takes Stages, HeadParallel HostHeads, and both a "
                "Communicator: call sequence_parallel<T>(attention, shape, communicator, shares) "
                "or head_parallel, which returns one");
  MHLA_ANY_CALL(NoPartsOfRanks, {})
};

// Fails with one sentence where a call of sequence_parallel or head_parallel does not compile.
template <class... X>
AnyArgument explain_parallel() {
  static_assert(no_such_call<X...>,
                "mhla: call sequence_parallel<T>(attention, shape, communicator, queries, keys, "
                "wire), head_parallel<T>(attention, shape, communicator, queries, keys), or the "
                "same with cuda_: T is the scalar of the tensors, shape an mhla::Shape of the "
                "whole sequence, queries and keys are mhla::Shares");
  return {};
}

/// What ranks have in common: types, values, a packed batch's offsets, the whole shape, all shares.
template <class T, AttentionVariant V>
void add_call(Agreement& agreement, const V& attention, const Shape& whole, const Shares& queries,
              const Shares& keys, Borrowed compared) {
  agreement.add_text("type", __PRETTY_FUNCTION__);
  agreement.add("batch", whole.batch)
      .add("heads", whole.heads)
      .add("kv_heads", whole.kv_heads)
      .add("query_tokens", whole.query_tokens)
      .add("key_tokens", whole.key_tokens)
      .add("key_dim", whole.key_dim)
      .add("value_dim", whole.value_dim)
      .add("mix_heads", whole.mix_heads)
      .add("mix_query_blocks", whole.mix_query_blocks)
      .add("mix_key_blocks", whole.mix_key_blocks)
      .add("precision", static_cast<Index>(attention.precision))
      .add("path", static_cast<Index>(attention.path));
  const auto add_policy = [&](const char* name, const auto& policy) {
    agreement.add_hash(name, [&](auto& hash) { fingerprint::add(hash, policy); });
  };
  add_policy("blocks", attention.blocks);
  add_policy("key_blocks", attention.key_blocks);
  agreement.add_hash("feature map, normalizer, rotation, mixing or scale",
                     [&](auto& hash) { fingerprint::add_values(hash, attention, compared); });
  if constexpr (is_packed<V>)
    agreement.add_hash("list of offsets", [&](auto& hash) {
      for (const auto offset : attention.offsets) hash.add(static_cast<std::uint64_t>(offset));
    });
  const auto add_shares = [&](const char* name, const Shares& shares) {
    agreement.add_hash(name, [&](auto& hash) {
      for (const BlockRange& share : shares) fingerprint::add(hash, share);
    });
  };
  add_shares("shares of query blocks", queries);
  add_shares("shares of key blocks", keys);
}

/// Throws ShapeError unless operands are those of a rank with tensors of `local`.
template <class T>
void require_local(const Shape& local, const OperandViews<T>& x) {
  constexpr const char* rule = "a rank's tensors have the tokens of its blocks";
  require_extents(x.q, "q", local.batch, local.heads, local.query_tokens, local.key_dim, rule);
  require_extents(x.k, "k", local.batch, local.kv_heads, local.key_tokens, local.key_dim, rule);
  require_extents(x.v, "v", local.batch, local.kv_heads, local.key_tokens, local.value_dim, rule);
  require_extents(x.mix, "mix", local.mix_heads, local.mix_query_blocks, local.mix_key_blocks,
                  "every rank has all of mix");
}

MHLA_NAMESPACE_END
