// SPDX-License-Identifier: MIT
// Runs a thread block. Every thread is a fiber, which runs until it meets others: its warp or,
// at a barrier, the whole block. Who goes on then is left to chance.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
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

class ThreadBlock {
 public:
  ThreadBlock() = default;
  ThreadBlock(const ThreadBlock&) = delete;
  ThreadBlock& operator=(const ThreadBlock&) = delete;

  /// The one that runs all blocks, one after the other.
  static ThreadBlock& current();
  const GlobalMemory& global_memory() const { return global_; }

  /// The blocks that run from now on are those of another launch.
  void begin_launch(UnderWay of_launch, std::vector<AddressRange> products,
                    std::vector<Watched>* watched) {
    under_way_ = of_launch;
    global_.begin(time_ + 1, std::move(products), watched);
  }
  /// Runs block `number`: body(argument, thread) by so many threads. Throws KernelFault.
  void run(std::ptrdiff_t number, int threads, std::size_t shared_bytes, std::uint64_t seed,
           void (*body)(const void* argument, int thread), const void* argument);

  // What threads call.

  /// Shared memory, checked for an access of so many bytes.
  unsigned char* shared(Access how, std::uint32_t at, std::size_t bytes, const Site& site);
  /// Counts an access to global memory, and checks it.
  void global(GlobalAccess how, const void* address, std::size_t bytes, const Site& site);

  void wait_for_earlier_kernels() { current_->has_waited_for_kernels = true; }

  void begin_copy(std::uint32_t to, const void* from, bool is_present, const Site& site);
  void commit_copies() { current_->copies.commit(); }
  void wait_for_copies(std::size_t pending);

  /// Where the thread leaves what it brings to a meeting, and finds what it takes from it.
  Part& part() { return current_->warp->parts[current_->lane()]; }

  /// Returns when the warp's lanes, or the block's threads, have all come.
  void meet(Meeting meeting, const Site& site);

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
  static constexpr int max_accesses = 1 << 20;

  int warps() const { return count_ / warp_size; }
  Warp& warp(int number) { return warps_[static_cast<std::size_t>(number)]; }

  void begin(int threads, std::size_t shared_bytes, std::uint64_t seed);
  // Who accessed what, and when.
  void forget();
  void add_thread();
  // A thread's fiber runs one block's thread after the other.
  static void live();
  // From a fiber to that of a thread or, without one, of the program.
  void switch_to(Fiber& from, Thread* to);
  // Lets threads that wait leave their bodies.
  void unwind();

  // Who runs next; null where nobody can.
  Thread* next_thread();
  // The warp may go on, to its next meeting.
  void release(Warp& warp);
  // The turn of another warp, or of the same, for a stretch of meetings: now and then so long that
  // all others starve.
  void choose_warp();

  void complete(Warp& met);
  void load_matrices(Warp& met);

  void touch(Access how, std::uint32_t at, std::size_t bytes, Who who, const Site& site);

  void land(Copy& copy);
  void land_some();

  // As the warp of the thread that runs sees it.
  Clock clock() const { return {now_, time_of_barrier_, current_->warp->time_of_barrier}; }
  std::uint32_t next_time(const Warp& met);

  // A thread that waits for others by reading what they have yet to write would do so forever.
  void require_progress(const Site& site);
  // A kernel that may still be under way must not meet an access.
  void require_no_wait(GlobalAccess how, const void* address, std::size_t bytes, Who who,
                       const Site& site);
  void require_shared(Access how, std::uint32_t at, std::size_t bytes, const Site& site);
  void require_aligned(GlobalAccess how, const void* address, std::size_t bytes, const Site& site);
  template <class How>
  std::string words(How how, std::size_t bytes) const;
  void require_one_mask(const Warp& met);

  // A fault after which the block goes on.
  void note(const std::string& fault, const Site& site) { note(fault + ", at " + name_of(site)); }
  void note(const std::string& fault);
  // One that ends the block, wherever its threads are.
  void abandon(const std::string& fault);
  [[noreturn]] void stop(const std::string& fault);

  // Where all threads are.
  std::string whereabouts() const;
  static std::string whereabouts(const Thread& thread);

  // Below `count`: xorshift's upper half.
  unsigned random(std::uint64_t count);

  Fiber own_;  // the program's
  std::deque<Thread> threads_;
  std::deque<Warp> warps_;
  GlobalMemory global_;
  UnderWay under_way_ = UnderWay::last_kernel;
  SharedMemory memory_;
  std::vector<std::pair<Copies*, std::uint64_t>> drifting_;  // copies that may land at any moment

  void (*body_)(const void*, int) = nullptr;
  const void* argument_ = nullptr;
  int count_ = 0;  // threads of the block
  int ended_ = 0;
  int at_barrier_ = 0;          // warps
  std::uint32_t runnable_ = 0;  // a bit for each warp that can go on
  Thread* current_ = nullptr;   // who runs
  Warp* warp_ = nullptr;        // whose turn it is,
  int stretch_ = 0;             // for so many meetings
  int patience_ = 0;            // accesses until the thread must have met somebody
  std::uint32_t time_ = 0;      // of all blocks
  std::uint32_t now_ = 0;       // since the block's last barrier, or that of one of its warps
  std::uint32_t begin_ = 0;     // of the block
  std::uint32_t time_of_barrier_ = 0;
  std::uint64_t random_ = 1;
  bool is_abandoned_ = false;
  std::vector<std::string> faults_;
  std::size_t more_faults_ = 0;
};

}  // namespace stand_in
