// SPDX-License-Identifier: MIT
// What the library asks of an engine that moves bytes between processes: MPI, NCCL, or one of the
// caller's.
#pragma once

#include <chrono>
#include <mhla/core/tensor_view.hpp>
#include <vector>

MHLA_NAMESPACE_BEGIN

/// \addtogroup distributed
/// \{

/// A rank does not answer, or the engine failed. The message says which, and names the
/// rank that waited or is waited for. The communicator cannot be used any more.
class MHLA_EXCEPTION CommunicationError : public Error {
 public:
  using Error::Error;
};

/// \cond INTERNAL
// Longer than any call: a time that can be added to any other without overflow.
inline constexpr std::chrono::milliseconds longest_timeout = std::chrono::hours(24 * 365 * 10);
/// \endcond

/// Bytes that go to a rank, or come from one: of a message [bytes], those from `first` on.
struct Part {
  Index first = 0;  ///< where they begin
  Index bytes = 0;  ///< their number
};

/// \cond INTERNAL
// A part for each rank, at first of 0 bytes.
class Parts {
 public:
  explicit Parts(Index ranks) : parts_(static_cast<std::size_t>(ranks)) {}

  Part& operator[](Index rank) { return parts_[static_cast<std::size_t>(rank)]; }
  operator Span<const Part>() const {  // NOLINT: borrowed
    return {parts_.data(), static_cast<Index>(parts_.size())};
  }

 private:
  std::vector<Part> parts_;
};
/// \endcond

/// A communicator: rank() of size() processes, numbered from 0, and two collectives, which all of
/// them call in the same order and which return when `received` is complete. Parts of 0 bytes are
/// not sent. Parts that are sent may overlap, received ones do not, and share no memory with what
/// is sent, except that its own part may be gathered in place.
///
/// - `all_gather(sent, received, parts)`: parts[r] of `received` is all that rank r sent,
///   parts[rank()].bytes bytes from `sent` on are this rank's, which may lie in its part already.
/// - `all_to_all(sent, to, received, from)`: to[r] of `sent` goes to rank r, from[r] of `received`
///   comes from it. A rank does not wait for ranks that send it no bytes.
///
/// \throws CommunicationError if a rank does not answer within the communicator's
/// time.
///
/// One that OverlapsMessages also lets its ranks compute while messages travel.
template <class C>
concept Communicator = requires(const C& communicator, const void* sent, void* received,
                                Span<const Part> parts) {
  { communicator.rank() } -> std::convertible_to<Index>;
  { communicator.size() } -> std::convertible_to<Index>;
  communicator.all_gather(sent, received, parts);
  communicator.all_to_all(sent, parts, received, parts);
};

/// A communicator with `start_all_to_all`: all_to_all's arguments, but it returns at once, and
/// `wait()` of what it returns is called when `received` has to be complete, in the order in which
/// messages were started. Until then nobody writes what is sent, or touches what is received.
template <class C>
concept OverlapsMessages = Communicator<C> &&
    requires(const C& communicator, const void* sent, void* received, Span<const Part> parts) {
  communicator.start_all_to_all(sent, parts, received, parts).wait();
};

/// \}

MHLA_NAMESPACE_END
