// SPDX-License-Identifier: MIT
// Runs blocks of threads, one after the other. Every thread is a fiber, which runs until it meets
// others: its warp or, at a barrier, the whole block. Who goes on then is left to chance.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../cublas_v2.h"
#include "copies.hpp"
#include "fiber.hpp"
#include "global_memory.hpp"
#include "shared_memory.hpp"
#include "site.hpp"
#include "warp.hpp"

namespace stand_in {

/// What a kernel did that it must not do, in words.
class KernelFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class BlockOfThreads {
 public:
  /// The one machine that there is.
  static BlockOfThreads& machine() {
    static BlockOfThreads machine;
    return machine;
  }
  const GlobalMemory& global_memory() const { return global_; }

  /// The blocks that run from now on are those of another launch.
  void begin_launch(UnderWay under_way, std::vector<AddressRange> products) {
    under_way_ = under_way;
    global_.begin(time_ + 1, std::move(products));
  }

  /// Runs block `number`: body(argument, thread) by so many threads. Throws KernelFault.
  void run(std::ptrdiff_t number, int threads, std::size_t shared_bytes, std::uint64_t seed,
           void (*body)(const void* argument, int thread), const void* argument) {
    body_ = body;
    argument_ = argument;
    begin(threads, shared_bytes, seed);
    if (Thread* const first = next_thread(); first != nullptr) switch_to(own_, first);
    if (!is_abandoned_ && ended_ < threads)
      abandon("threads wait for others that have ended. " + whereabouts());
    if (is_abandoned_) unwind();
    if (faults_.empty()) return;
    std::string text = "block of threads " + std::to_string(number) + ":";
    for (const std::string& fault : faults_) text += "\n  " + fault;
    if (more_faults_ > 0) text += "\n  and " + std::to_string(more_faults_) + " more";
    throw KernelFault(text);
  }

  // What threads call.

  /// Shared memory, checked for an access of so many bytes.
  unsigned char* shared(Access how, std::uint32_t at, std::size_t bytes, const Site& site) {
    require_progress(site);
    require_shared(how, at, bytes, site);
    touch(how, at, bytes, Who::thread(current_->number), site);
    return memory_.at(at);
  }
  /// Counts an access to global memory, and checks it.
  void global(GlobalAccess how, const void* address, std::size_t bytes, const Site& site) {
    require_progress(site);
    require_aligned(how, address, bytes, site);
    const Who who = Who::thread(current_->number);
    if (!current_->has_waited_for_kernels) {
      require_no_wait(how, address, bytes, who, site);
      global_.bytes_read_early += bytes;
    }
    const Conflict conflict = global_.access(how, address, bytes, who, clock(), begin_);
    if (conflict.with != nullptr) note(global_.words(conflict, how, who, begin_), site);
  }

  void wait_for_earlier_kernels() { current_->has_waited_for_kernels = true; }

  void begin_copy(std::uint32_t to, const void* from, bool is_present, const Site& site) {
    require_aligned(GlobalAccess::copy, from, 16, site);
    shared(Access::copy, to, 16, site);
    if (is_present) global(GlobalAccess::copy, from, 16, site);
    Copies& copies = current_->copies;
    const std::uint64_t number = copies.begin({to, is_present ? from : nullptr, false});
    switch (random(3)) {
      case 0:
        land(*copies.find(number));
        break;
      case 1:
        drifting_.emplace_back(&copies, number);
        break;
      default:  // lands when it is waited for
        break;
    }
  }
  void commit_copies() { current_->copies.commit(); }
  void wait_for_copies(std::size_t pending) {
    const Who who = Who::thread(current_->number);
    current_->copies.wait(pending, [&](Copy& copy) {
      if (!copy.has_landed) land(copy);
      memory_.copied(copy.to, who, clock());
    });
  }

  /// Where the thread leaves what it brings to a meeting, and finds what it takes from it.
  Part& part() { return current_->warp->parts[current_->lane()]; }

  /// Returns when the warp's lanes, or the block's threads, have all come.
  void meet(Meeting meeting, const Site& site) {
    Thread& me = *current_;
    Warp& warp = *me.warp;
    if (warp.arrived == 0) {
      warp.meeting = meeting;
      warp.site = site;
    } else if (warp.meeting != meeting || !is_same(warp.site, site)) {
      stop("warp " + std::to_string(warp.number) + " does not meet: thread " +
           std::to_string(me.number) + " comes to " + name_of(meeting) + " at " + name_of(site) +
           ", others to " + name_of(warp.meeting) + " at " + name_of(warp.site));
    }
    warp.arrived |= 1u << me.lane();
    if (warp.arrived == all_lanes) complete(warp);
    Thread* const next = next_thread();
    if (next != &me) switch_to(me.fiber, next);
    if (is_abandoned_) throw Abandoned{};
  }

 private:
  struct Abandoned {};  // what threads throw that can not go on
  struct Warp;
  struct Thread {
    Fiber fiber;
    Warp* warp = nullptr;
    int number = 0;
    bool has_ended = false;
    bool has_waited_for_kernels = false;
    Copies copies;

    unsigned lane() const { return static_cast<unsigned>(number) % warp_size; }
  };
  struct Warp {
    int number = 0;
    std::array<Thread*, warp_size> lanes{};
    Parts parts{};
    std::uint32_t arrived = 0;  // lanes that have come to the meeting
    std::uint32_t ended = 0;    // lanes that will come to none
    Meeting meeting = Meeting::sync;
    Site site;
    std::uint32_t time_of_barrier = 0;
    // Between two meetings every lane runs once, lane (first + i * step) % 32 as the i-th.
    unsigned next = 0;
    unsigned first = 0;
    unsigned step = 1;
  };
  static constexpr std::uint32_t all_lanes = 0xffffffffu;
  static constexpr int most_accesses = 1 << 20;

  int warps() const { return count_ / warp_size; }
  Warp& warp(int number) { return warps_[static_cast<std::size_t>(number)]; }

  void begin(int threads, std::size_t shared_bytes, std::uint64_t seed) {
    while (static_cast<int>(threads_.size()) < threads) add_thread();
    if (time_ > Trace::last_time / 2) forget();
    memory_.begin(shared_bytes);
    random_ = (seed * 0x9e3779b97f4a7c15u) | 1;
    begin_ = time_of_barrier_ = ++time_;
    drifting_.clear();
    count_ = threads;
    ended_ = 0;
    at_barrier_ = 0;
    runnable_ = 0;
    is_abandoned_ = false;
    faults_.clear();
    more_faults_ = 0;
    for (int w = 0; w < warps(); ++w) {
      warp(w).ended = 0;
      warp(w).time_of_barrier = time_;
      for (Thread* const thread : warp(w).lanes) {
        thread->has_ended = false;
        thread->has_waited_for_kernels = false;
        thread->copies.forget();
      }
      release(warp(w));
    }
    choose_warp();
  }
  void add_thread() {
    const int number = static_cast<int>(threads_.size());
    if (number % warp_size == 0) warps_.emplace_back().number = number / warp_size;
    Thread& thread = threads_.emplace_back();
    thread.number = number;
    thread.warp = &warps_.back();
    thread.warp->lanes[thread.lane()] = &thread;
    thread.fiber.begin_with(&live);
  }
  // Who accessed what, and when.
  void forget() {
    memory_.forget();
    global_.forget();
    time_ = 0;
  }

  // A thread's fiber runs one block's thread after the other.
  static void live() {
    BlockOfThreads& block = machine();
    Thread& me = *block.current_;
    for (;;) {
      try {
        if (!block.is_abandoned_) {
          block.body_(block.argument_, me.number);
          if (me.copies.under_way() > 0)
            block.stop("thread " + std::to_string(me.number) +
                       " has ended without waiting for its copies");
          if (!me.has_waited_for_kernels)
            block.stop("thread " + std::to_string(me.number) +
                       " has ended without waiting for earlier kernels");
        }
      } catch (const Abandoned&) {
      } catch (const std::exception& error) {
        block.abandon("thread " + std::to_string(me.number) + " has thrown: " + error.what());
      } catch (...) {
        block.abandon("thread " + std::to_string(me.number) + " has thrown");
      }
      me.has_ended = true;
      me.warp->ended |= 1u << me.lane();
      ++block.ended_;
      block.switch_to(me.fiber, block.next_thread());
    }
  }
  // From a fiber to that of a thread or, without one, of the program.
  void switch_to(Fiber& from, Thread* to) {
    current_ = to;
    patience_ = most_accesses;
    Fiber::switch_between(from, to == nullptr ? own_ : to->fiber);
  }
  // Lets threads that wait leave their bodies.
  void unwind() {
    for (int t = 0; t < count_; ++t) {
      Thread& thread = threads_[static_cast<std::size_t>(t)];
      if (!thread.has_ended) switch_to(own_, &thread);
    }
    forget();
  }

  // Who runs next; null where nobody can.
  Thread* next_thread() {
    while (!is_abandoned_ && runnable_ != 0) {
      Warp& warp = *warp_;
      while (warp.next < warp_size) {
        const unsigned lane = (warp.first + warp.next++ * warp.step) % warp_size;
        if ((warp.ended >> lane & 1u) == 0) return warp.lanes[lane];
      }
      if (warp.arrived != 0 && warp.arrived != all_lanes) {
        abandon("warp " + std::to_string(warp.number) + " waits for lanes that have ended. " +
                whereabouts());
        return nullptr;
      }
      runnable_ &= ~(1u << warp.number);
      if (runnable_ != 0) choose_warp();
    }
    return nullptr;
  }
  // The warp may go on, to its next meeting.
  void release(Warp& warp) {
    warp.arrived = 0;
    warp.next = 0;
    const unsigned order = random(16 * warp_size);
    warp.first = order % warp_size;
    warp.step = order / warp_size * 2 + 1;
    runnable_ |= 1u << warp.number;
  }
  // The turn of another warp, or of the same, for a stretch of meetings: now and then so long that
  // all others starve.
  void choose_warp() {
    std::uint32_t left = runnable_;
    for (unsigned skip = random(static_cast<unsigned>(std::popcount(left))); skip > 0; --skip)
      left &= left - 1;
    warp_ = &warp(std::countr_zero(left));
    constexpr std::array lengths = {1, 8, 300, 4000};
    stretch_ = lengths[random(lengths.size())];
  }

  void complete(Warp& met) {
    if (!drifting_.empty() && random(4) == 0) land_some();
    switch (met.meeting) {
      case Meeting::sync:
        if (++at_barrier_ < warps()) return;  // the warp stays where it is
        at_barrier_ = 0;
        time_of_barrier_ = next_time(met);
        for (int w = 0; w < warps(); ++w) {
          warp(w).time_of_barrier = time_;
          release(warp(w));
        }
        return choose_warp();
      case Meeting::sync_warp:
        met.time_of_barrier = next_time(met);
        break;
      case Meeting::load_matrices:
      case Meeting::load_matrices_transposed:
        load_matrices(met);
        break;
      case Meeting::multiply_add_bfloat16:
        multiply_add<mhla::BFloat16, 16>(met.parts);
        break;
      case Meeting::multiply_add_half:
        multiply_add<mhla::Half, 16>(met.parts);
        break;
      case Meeting::multiply_add_8_bfloat16:
        multiply_add<mhla::BFloat16, 8>(met.parts);
        break;
      case Meeting::multiply_add_8_half:
        multiply_add<mhla::Half, 8>(met.parts);
        break;
      case Meeting::exchange:
        require_one_mask(met);
        exchange(met.parts);
        break;
    }
    release(met);
    if (--stretch_ <= 0) choose_warp();
  }
  void load_matrices(Warp& met) {
    MatrixRows rows;
    for (std::size_t l = 0; l < warp_size; ++l) {
      const std::uint32_t at = met.parts[l].row;
      require_shared(Access::load_matrices, at, 16, met.site);
      touch(Access::load_matrices, at, 16, Who::warp(met.number), met.site);
      std::memcpy(rows[l].data(), memory_.at(at), 16);
    }
    hand_out_matrices(met.parts, rows, met.meeting == Meeting::load_matrices_transposed);
  }

  void touch(Access how, std::uint32_t at, std::size_t bytes, Who who, const Site& site) {
    const Conflict conflict = memory_.access(how, at, bytes, who, clock());
    if (conflict.with != nullptr) note(memory_.words(conflict, how, who), site);
  }

  void land(Copy& copy) {
    if (copy.from != nullptr)
      std::memcpy(memory_.at(copy.to), copy.from, 16);
    else
      std::memset(memory_.at(copy.to), 0, 16);
    copy.has_landed = true;
  }
  void land_some() {
    const auto any = [&] { return random(static_cast<unsigned>(drifting_.size())); };
    for (unsigned count = 1 + any(); count > 0; --count) {
      auto& chosen = drifting_[any()];
      Copy* const copy = chosen.first->find(chosen.second);
      if (copy != nullptr && !copy->has_landed) land(*copy);
      chosen = drifting_.back();
      drifting_.pop_back();
    }
  }

  // As the warp of the thread that runs sees it.
  Clock clock() const { return {time_, time_of_barrier_, current_->warp->time_of_barrier}; }
  std::uint32_t next_time(const Warp& met) {
    if (time_ == Trace::last_time)
      stop("a block of threads has more barriers than are counted, at " + name_of(met.site));
    return ++time_;
  }

  // A thread that waits for others by reading what they have yet to write would do so forever.
  void require_progress(const Site& site) {
    if (--patience_ == 0)
      stop("thread " + std::to_string(current_->number) + " has accessed memory " +
           std::to_string(most_accesses) + " times without meeting anyone, at " + name_of(site));
  }
  // A kernel that may still be under way must not meet an access.
  void require_no_wait(GlobalAccess how, const void* address, std::size_t bytes, Who who,
                       const Site& site) {
    const char* why = nullptr;
    if (how == GlobalAccess::store)
      why = "they may be reading there";
    else if (under_way_ == UnderWay::anything)
      why = "nothing is known of those before a call";
    else if (under_way_ == UnderWay::last_kernel && global_.is_being_written(address, bytes))
      why = "the last one has written there";
    if (why != nullptr)
      note(std::string("a ") + name_of(how) + " by " + who.name() +
               " that does not wait for earlier kernels: " + why,
           site);
  }
  void require_shared(Access how, std::uint32_t at, std::size_t bytes, const Site& site) {
    if (at > memory_.bytes() || bytes > memory_.bytes() - at)
      stop(words(how, bytes) + " at byte " + std::to_string(at) + " of shared memory, which has " +
           std::to_string(memory_.bytes()) + ", at " + name_of(site));
    if (at % bytes != 0)
      stop(words(how, bytes) + " at byte " + std::to_string(at) +
           " of shared memory, which is not a multiple of that, at " + name_of(site));
  }
  void require_aligned(GlobalAccess how, const void* address, std::size_t bytes, const Site& site) {
    if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
      stop(words(how, bytes) + " at an address that is not a multiple of that, at " +
           name_of(site));
  }
  template <class How>
  std::string words(How how, std::size_t bytes) const {
    return "thread " + std::to_string(current_->number) + ": a " + name_of(how) + " of " +
           std::to_string(bytes) + " bytes";
  }
  void require_one_mask(const Warp& met) {
    for (const Part& part : met.parts)
      if (part.mask != met.parts[0].mask || part.mask < 0 || part.mask >= warp_size)
        stop("warp " + std::to_string(met.number) + " exchanges by masks " +
             std::to_string(met.parts[0].mask) + " and " + std::to_string(part.mask) + ", at " +
             name_of(met.site));
  }

  // A fault after which the block goes on.
  void note(const std::string& fault, const Site& site) { note(fault + ", at " + name_of(site)); }
  void note(const std::string& fault) {
    if (faults_.size() < 8)
      faults_.push_back(fault);
    else
      ++more_faults_;
  }
  // One that ends the block, wherever its threads are.
  void abandon(const std::string& fault) {
    note(fault);
    is_abandoned_ = true;
  }
  [[noreturn]] void stop(const std::string& fault) {
    abandon(fault);
    throw Abandoned{};
  }

  // Where all threads are.
  std::string whereabouts() const {
    std::string text, last;
    int begin = 0;
    for (int t = 0; t <= count_; ++t) {
      const std::string here =
          t < count_ ? whereabouts(threads_[static_cast<std::size_t>(t)]) : std::string();
      if (here == last) continue;
      if (!last.empty())
        text += (text.empty() ? "Threads " : ", threads ") + std::to_string(begin) + " to " +
                std::to_string(t - 1) + " " + last;
      last = here;
      begin = t;
    }
    return text;
  }
  static std::string whereabouts(const Thread& thread) {
    const Warp& warp = *thread.warp;
    if (thread.has_ended) return "have ended";
    if ((warp.arrived >> thread.lane() & 1u) == 0) return "can go on";
    return std::string("wait in ") + name_of(warp.meeting) + " at " + name_of(warp.site);
  }

  // Below `count`: xorshift's upper half.
  unsigned random(std::uint64_t count) {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return static_cast<unsigned>((random_ >> 32) * count >> 32);
  }

  Fiber own_;  // the program's
  std::deque<Thread> threads_;
  std::deque<Warp> warps_;
  SharedMemory memory_;
  GlobalMemory global_;
  std::vector<std::pair<Copies*, std::uint64_t>> drifting_;  // copies that may land at any moment

  void (*body_)(const void*, int) = nullptr;
  const void* argument_ = nullptr;
  int count_ = 0;  // threads of the block
  int ended_ = 0;
  int at_barrier_ = 0;          // warps
  std::uint32_t runnable_ = 0;  // a bit for each warp that can go on
  UnderWay under_way_ = UnderWay::last_kernel;
  Thread* current_ = nullptr;  // who runs
  Warp* warp_ = nullptr;       // whose turn it is,
  int stretch_ = 0;            // for so many meetings
  int patience_ = 0;           // accesses until the thread must have met somebody
  std::uint32_t time_ = 0;
  std::uint32_t begin_ = 0;  // of the block
  std::uint32_t time_of_barrier_ = 0;
  std::uint64_t random_ = 1;
  bool is_abandoned_ = false;
  std::vector<std::string> faults_;
  std::size_t more_faults_ = 0;
};

}  // namespace stand_in
