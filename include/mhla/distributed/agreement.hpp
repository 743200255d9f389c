// SPDX-License-Identifier: MIT
// Before ranks exchange anything, they compare what they are about to do: a rank that would go on
// with other numbers, or that cannot go on, is named on every rank, and no rank waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/distributed/communicator.hpp>
#include <mhla/policy/fingerprint.hpp>
#include <optional>
#include <utility>
#include <vector>

MHLA_NAMESPACE_BEGIN

/// Bytes that each rank sends to every other at the beginning of a call.
inline constexpr Index agreement_bytes = 512;

/// Bytes of the same before results are written.
inline constexpr Index confirmation_bytes = 8;

/// What every rank has of this: as many elements of each, one rank's after the other's.
template <class T, Communicator C>
std::vector<T> gather_all(const C& communicator, Span<const T> mine) {
  const Index bytes = mine.size * static_cast<Index>(sizeof(T));
  const Index ranks = communicator.size();
  std::vector<T> all(static_cast<std::size_t>(ranks * mine.size));
  std::vector<Part> parts;
  for (Index r = 0; r < ranks; ++r) parts.push_back({r * bytes, bytes});
  communicator.all_gather(mine.data, all.data(), Span<const Part>{parts.data(), ranks});
  return all;
}

/// Returns when all ranks have got here: each has received what it needs, and writes its results
/// alone. \throws CommunicationError if one does not answer.
template <Communicator C>
void confirm(const C& communicator) {
  static_assert(sizeof(std::int64_t) == confirmation_bytes);
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
  /// A text, or anything else of which a hash is compared.
  Agreement& add_text(const char* name, const char* text) {
    fingerprint::Hash hash;
    hash.add(reinterpret_cast<const unsigned char*>(text), std::strlen(text));
    return add_hash(name, hash.value());
  }
  Agreement& add_hash(const char* name, std::uint64_t hash) {
    hashed_ |= std::uint64_t{1} << count_;
    return add(name, static_cast<Index>(hash));
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

MHLA_NAMESPACE_END
