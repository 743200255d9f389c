// SPDX-License-Identifier: MIT
// Ranks that are threads of one process, for tests without an engine: a communicator that copies
// bytes through mailboxes, and gives up on a rank that does not answer.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mhla/distributed/communicator.hpp>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace thread_ranks {

using namespace mhla;

class Mail {
 public:
  explicit Mail(std::chrono::milliseconds patience) : patience_(patience) {}

  void put(Index from, Index to, std::vector<std::byte> bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    boxes_[{from, to}].push_back(std::move(bytes));
    arrived_.notify_all();
  }
  std::vector<std::byte> take(Index from, Index to) {
    std::unique_lock<std::mutex> lock(mutex_);
    auto& box = boxes_[{from, to}];
    if (!arrived_.wait_for(lock, patience_, [&] { return !box.empty(); }))
      throw mhla::CommunicationError({"rank ", from, " did not answer"});
    std::vector<std::byte> bytes = std::move(box.front());
    box.pop_front();
    return bytes;
  }
  bool empty() const {
    for (const auto& [way, box] : boxes_)
      if (!box.empty()) return false;
    return true;
  }

 private:
  std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<Index, Index>, std::deque<std::vector<std::byte>>> boxes_;
};

class Communicator {
 public:
  Communicator(Mail& mail, Index rank, Index size) : mail_(&mail), rank_(rank), size_(size) {}

  Index rank() const { return rank_; }
  Index size() const { return size_; }

  void all_gather(const void* sent, void* received, Span<const Part> parts) const {
    const std::vector<Part> to(static_cast<std::size_t>(size_), Part{0, parts[rank_].bytes});
    start_all_to_all(sent, {to.data(), size_}, received, parts).wait();
    auto* const own = static_cast<std::byte*>(received) + parts[rank_].first;
    if (own != sent && parts[rank_].bytes > 0)
      std::memcpy(own, sent, static_cast<std::size_t>(parts[rank_].bytes));
  }
  void all_to_all(const void* sent, Span<const Part> to, void* received,
                  Span<const Part> from) const {
    start_all_to_all(sent, to, received, from).wait();
    if (from[rank_].bytes > 0)
      std::memcpy(static_cast<std::byte*>(received) + from[rank_].first,
                  static_cast<const std::byte*>(sent) + to[rank_].first,
                  static_cast<std::size_t>(from[rank_].bytes));
  }

  /// Bytes that were sent are taken, and put where they belong, by wait().
  class Pending {
   public:
    Pending(const Communicator& communicator, void* received, Span<const Part> from)
        : communicator_(&communicator),
          received_(static_cast<std::byte*>(received)),
          from_(from.data, from.data + from.size) {}
    void wait() const {
      for (std::size_t r = 0; r < from_.size(); ++r) {
        const auto rank = static_cast<Index>(r);
        const Part& part = from_[r];
        if (rank == communicator_->rank_ || part.bytes == 0) continue;
        const std::vector<std::byte> bytes = communicator_->mail_->take(rank, communicator_->rank_);
        if (static_cast<Index>(bytes.size()) != part.bytes)
          throw mhla::CommunicationError({"rank ", rank, " sent ", static_cast<Index>(bytes.size()),
                                          " bytes in place of ", part.bytes});
        std::memcpy(received_ + part.first, bytes.data(), bytes.size());
      }
    }

   private:
    const Communicator* communicator_;
    std::byte* received_;
    std::vector<Part> from_;
  };
  Pending start_all_to_all(const void* sent, Span<const Part> to, void* received,
                           Span<const Part> from) const {
    const auto* const out = static_cast<const std::byte*>(sent);
    for (Index r = 0; r < size_; ++r) {
      if (r == rank_ || to[r].bytes == 0) continue;
      mail_->put(rank_, r, {out + to[r].first, out + to[r].first + to[r].bytes});
    }
    return {*this, received, from};
  }

 private:
  Mail* mail_;
  Index rank_;
  Index size_;
};

/// Runs body(communicator) on every rank; what each throws, or "".
template <class Body>
std::vector<std::string> run(Index ranks, const Body& body,
                             std::chrono::milliseconds patience = std::chrono::seconds(20)) {
  Mail mail(patience);
  std::vector<std::string> outcomes(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (Index rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(Communicator(mail, rank, ranks));
      } catch (const std::exception& failure) {
        outcomes[static_cast<std::size_t>(rank)] = failure.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  bool complete = mail.empty();
  for (const std::string& outcome : outcomes) complete = complete || !outcome.empty();
  if (!complete) outcomes.front() = "bytes were sent that no rank has taken";
  return outcomes;
}

}  // namespace thread_ranks
