// SPDX-License-Identifier: MIT
/// \file
/// MPI as a Communicator. Needs `<mpi.h>`, which mhla does not install: `find_package(MPI)`, and
/// link MPI::MPI_CXX.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <mhla/core/config.hpp>
#include <mhla/distributed/communicator.hpp>
#include <thread>
#include <utility>

MHLA_NAMESPACE_BEGIN

/// \ingroup distributed
/// A communicator of the caller's, duplicated, so that its messages meet no others. Between
/// MPI_Init and MPI_Finalize; calls come from one thread at a time (MPI_THREAD_FUNNELED is enough
/// for the main thread, MPI_THREAD_SERIALIZED for others).
///
/// \code
/// #include <mhla/distributed.hpp>
/// #include <mhla/mpi.hpp>
///
/// MPI_Init(&argc, &argv);
/// {
///   const mhla::MpiCommunicator ranks(MPI_COMM_WORLD);
///   ...
/// }
/// MPI_Finalize();
/// \endcode
///
/// Every message goes straight from its rank to the one that reads it (MPI_Isend, MPI_Irecv), so
/// that a rank which waits in vain knows for whom: when nothing has arrived for `timeout`, it
/// throws CommunicationError. MPI may still hold on to memory of the call then: it has to stay
/// until the process ends, best by MPI_Abort. A rank that throws something else while messages are
/// on their way, as a feature map may, gives them an end first; the communicator cannot be used any
/// more, and others miss it as if it were gone. (Where a rank has died, most implementations end
/// the others by themselves, some only if they are told to: `mpirun --enable-recovery` of Open MPI
/// 4 leaves them to us.)
class MpiCommunicator {
 public:
  /// Called by all ranks of `communicator` together. A rank that does not answer for `timeout` is
  /// given up, so it is longer than ranks' computations differ. \throws CommunicationError.
  explicit MpiCommunicator(MPI_Comm communicator,
                           std::chrono::milliseconds timeout = std::chrono::seconds(60))
      : timeout_((std::min)(timeout, longest_timeout)) {
    require_success(MPI_Comm_dup(communicator, &communicator_), "MPI_Comm_dup");
    require_success(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN),
                    "MPI_Comm_set_errhandler");
    require_success(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
    require_success(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;
  ~MpiCommunicator() {
    if (!failed_) MPI_Comm_free(&communicator_);  // which other ranks may have to take part in
  }

  /// This process.
  Index rank() const { return rank_; }
  /// All processes.
  Index size() const { return size_; }

  /// See Communicator.
  void all_gather(const void* sent, void* received, Span<const Part> parts) const {
    const Index bytes = parts[rank_].bytes;
    const std::vector<Part> to(static_cast<std::size_t>(size_), Part{0, bytes});
    wait(post(sent, {to.data(), size_}, received, parts));
  }
  /// See Communicator.
  void all_to_all(const void* sent, Span<const Part> to, void* received,
                  Span<const Part> from) const {
    wait(post(sent, to, received, from));
  }
  /// See OverlapsMessages. Messages travel as far as MPI moves them outside its own calls.
  auto start_all_to_all(const void* sent, Span<const Part> to, void* received,
                        Span<const Part> from) const {
    struct Pending {
      const MpiCommunicator* communicator;
      std::vector<Message> messages;
      Pending(const MpiCommunicator* of, std::vector<Message> posted)
          : communicator(of), messages((std::move)(posted)) {}
      Pending(Pending&&) noexcept = default;
      Pending& operator=(Pending&&) = delete;
      ~Pending() { communicator->abandon(messages); }
      void wait() { communicator->wait(std::exchange(messages, {})); }
    };
    return Pending{this, post(sent, to, received, from)};
  }

 private:
  static constexpr int tag = 0;
  static constexpr Index most_bytes = Index{1} << 30;  // of a message, whose count is an int

  struct Message {
    MPI_Request request;
    int peer;
    int bytes;
    bool receives;
  };

  std::vector<Message> post(const void* sent, Span<const Part> to, void* received,
                            Span<const Part> from) const {
    if (failed_)
      throw CommunicationError(
          {"mhla: rank ", rank_, " uses a communicator that has failed: end the process"});
    const auto* const out = static_cast<const std::byte*>(sent);
    auto* const in = static_cast<std::byte*>(received);
    std::vector<Message> messages;
    const auto post_all = [&](const Part& part, int peer, bool receives) {
      for (Index done = 0; done < part.bytes; done += most_bytes) {
        const Index first = part.first + done;
        const auto bytes = static_cast<int>((std::min)(most_bytes, part.bytes - done));
        messages.push_back({MPI_REQUEST_NULL, peer, bytes, receives});
        MPI_Request* const request = &messages.back().request;
        const int status =
            receives ? MPI_Irecv(in + first, bytes, MPI_BYTE, peer, tag, communicator_, request)
                     : MPI_Isend(out + first, bytes, MPI_BYTE, peer, tag, communicator_, request);
        require_success(status, receives ? "MPI_Irecv" : "MPI_Isend", peer);
      }
    };
    // A rank begins with its neighbour, so that not all send to the same one at first.
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + size_ - step) % size_;
      post_all(from[peer], peer, true);
    }
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      post_all(to[peer], peer, false);
    }
    const Part& own = from[rank_];
    if (own.bytes > 0 && in + own.first != out + to[rank_].first)
      std::memcpy(in + own.first, out + to[rank_].first, static_cast<std::size_t>(own.bytes));
    return messages;
  }

  void wait(std::vector<Message> messages) const {
    auto progress = std::chrono::steady_clock::now();
    for (std::size_t left = messages.size(); left > 0;) {
      const std::size_t before = left;
      for (Message& message : messages) {
        if (message.request == MPI_REQUEST_NULL) continue;
        int done = 0;
        MPI_Status status;
        require_success(MPI_Test(&message.request, &done, &status), "MPI_Test", message.peer);
        if (done == 0) continue;
        --left;
        if (message.receives) require_length(message, status);
      }
      const auto now = std::chrono::steady_clock::now();
      if (left < before) progress = now;
      const auto waited = now - progress;
      if (waited > timeout_) give_up(messages);
      // Who waits for much longer than messages travel leaves the processor to others.
      using std::chrono::milliseconds;
      if (waited < milliseconds(2))
        std::this_thread::yield();
      else
        std::this_thread::sleep_for((std::min<decltype(waited)>)(waited / 32, milliseconds(1)));
    }
  }

  // A rank that has missed a call sends something else.
  void require_length(const Message& message, const MPI_Status& status) const {
    int bytes = 0;
    require_success(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count", message.peer);
    if (bytes == message.bytes) return;
    failed_ = true;
    throw CommunicationError({"mhla: rank ", rank_, " has received ", bytes, " bytes of rank ",
                              message.peer, " in place of ", message.bytes,
                              ": they are not in the same call"});
  }

  // Ends messages for which nobody has waited, since their memory is about to go: what comes is
  // thrown away, and others take what they were sent, unless they have failed as well.
  void abandon(std::vector<Message>& messages) const noexcept {
    if (messages.empty()) return;
    const bool first = !std::exchange(failed_, true);
    for (Message& message : messages)
      if (message.receives) MPI_Cancel(&message.request);
    const auto end = std::chrono::steady_clock::now() + timeout_;
    for (Message& message : messages)
      for (int done = 0; done == 0 && first && std::chrono::steady_clock::now() < end;)
        MPI_Test(&message.request, &done, MPI_STATUS_IGNORE);
  }

  [[gnu::__noreturn__]] void give_up(std::vector<Message>& messages) const {
    failed_ = true;
    std::string silent;
    for (const bool receives :
         {true, false}) {  // a rank that has sent nothing failed, not one that waits
      int last = -1;
      for (const Message& message : messages) {
        if (message.request == MPI_REQUEST_NULL || message.receives != receives) continue;
        if (message.peer != last)
          silent += (silent.empty() ? "" : ", ") + std::to_string(message.peer);
        last = message.peer;
      }
      if (!silent.empty()) break;
    }
    throw CommunicationError({"mhla: rank ", rank_, " has waited ", timeout_.count(),
                              " ms for rank ", silent,
                              ", which has ended or is busy with something else; the communicator "
                              "cannot be used any more: end the process"});
  }

  void require_success(int status, const char* call, int peer = -1) const {
    if (status == MPI_SUCCESS) return;
    failed_ = true;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(status, text, &length);
    throw CommunicationError({"mhla: ", call, peer < 0 ? "" : " with rank ",
                              peer < 0 ? "" : std::to_string(peer), ": ", text});
  }

  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::chrono::milliseconds timeout_;
  int rank_ = 0;
  int size_ = 1;
  mutable bool failed_ = false;
};

MHLA_NAMESPACE_END
