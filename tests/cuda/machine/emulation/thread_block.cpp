// SPDX-License-Identifier: MIT
#include "thread_block.hpp"

#include <bit>
#include <cstring>
#include <exception>

namespace stand_in {

ThreadBlock& ThreadBlock::current() {
  static ThreadBlock block;
  return block;
}

void ThreadBlock::run(std::ptrdiff_t number, int threads, std::size_t shared_bytes,
                      std::uint64_t seed, void (*body)(const void* argument, int thread),
                      const void* argument) {
  body_ = body;
  argument_ = argument;
  begin(threads, shared_bytes, seed);
  switch_to(own_, next_thread());
  if (!is_abandoned_ && ended_ < count_)
    abandon("threads wait for others that have ended. " + whereabouts());
  if (is_abandoned_) unwind();
  if (faults_.empty()) return;
  std::string text = "thread block " + std::to_string(number) + ":";
  for (const std::string& fault : faults_) text += "\n  " + fault;
  if (more_faults_ > 0) text += "\n  and " + std::to_string(more_faults_) + " more";
  throw KernelFault(text);
}

unsigned char* ThreadBlock::shared(Access how, std::uint32_t at, std::size_t bytes,
                                   const Site& site) {
  require_progress(site);
  require_shared(how, at, bytes, site);
  touch(how, at, bytes, Who::thread(current_->number), site);
  return memory_.at(at);
}

void ThreadBlock::global(GlobalAccess how, const void* address, std::size_t bytes,
                         const Site& site) {
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

void ThreadBlock::begin_copy(std::uint32_t to, const void* from, bool is_present,
                             const Site& site) {
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

void ThreadBlock::wait_for_copies(std::size_t pending) {
  const Who who = Who::thread(current_->number);
  current_->copies.wait(pending, [&](Copy& copy) {
    if (!copy.has_landed) land(copy);
    memory_.copied(copy.to, who, clock());
  });
}

void ThreadBlock::meet(Meeting meeting, const Site& site) {
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

void ThreadBlock::begin(int threads, std::size_t shared_bytes, std::uint64_t seed) {
  while (static_cast<int>(threads_.size()) < threads) add_thread();
  if (time_ > Trace::last_time / 2) forget();
  memory_.begin(shared_bytes);
  random_ = (seed * 0x9e3779b97f4a7c15u) | 1;
  begin_ = now_ = time_of_barrier_ = ++time_;
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
    warp(w).time_of_barrier = now_;
    for (Thread* const thread : warp(w).lanes) {
      thread->has_ended = false;
      thread->has_waited_for_kernels = false;
      thread->copies.forget();
    }
    release(warp(w));
  }
  choose_warp();
}

void ThreadBlock::add_thread() {
  const int number = static_cast<int>(threads_.size());
  if (number % warp_size == 0) warps_.emplace_back().number = number / warp_size;
  Thread& thread = threads_.emplace_back();
  thread.number = number;
  thread.warp = &warps_.back();
  thread.warp->lanes[thread.lane()] = &thread;
  thread.fiber.begin_with(&live);
}

void ThreadBlock::live() {
  ThreadBlock& block = current();
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

void ThreadBlock::switch_to(Fiber& from, Thread* to) {
  current_ = to;
  patience_ = max_accesses;
  Fiber::switch_between(from, to == nullptr ? own_ : to->fiber);
}

void ThreadBlock::unwind() {
  for (int t = 0; t < count_; ++t) {
    Thread& thread = threads_[static_cast<std::size_t>(t)];
    if (!thread.has_ended) switch_to(own_, &thread);
  }
  forget();
}

void ThreadBlock::forget() {
  global_.forget();
  memory_.forget();
  time_ = 0;
}

ThreadBlock::Thread* ThreadBlock::next_thread() {
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

void ThreadBlock::release(Warp& warp) {
  warp.arrived = 0;
  warp.next = 0;
  const unsigned order = random(16 * warp_size);
  warp.first = order % warp_size;
  warp.step = order / warp_size * 2 + 1;
  runnable_ |= 1u << warp.number;
}

void ThreadBlock::choose_warp() {
  std::uint32_t left = runnable_;
  for (unsigned skip = random(static_cast<unsigned>(std::popcount(left))); skip > 0; --skip)
    left &= left - 1;
  warp_ = &warp(std::countr_zero(left));
  constexpr std::array lengths = {1, 8, 300, 4000};
  stretch_ = lengths[random(lengths.size())];
}

void ThreadBlock::complete(Warp& met) {
  if (!drifting_.empty() && random(4) == 0) land_some();
  switch (met.meeting) {
    case Meeting::sync:
      if (++at_barrier_ < warps()) return;  // the warp stays where it is
      at_barrier_ = 0;
      time_of_barrier_ = next_time(met);
      for (int w = 0; w < warps(); ++w) {
        warp(w).time_of_barrier = now_;
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

void ThreadBlock::load_matrices(Warp& met) {
  MatrixRows rows;
  for (std::size_t l = 0; l < warp_size; ++l) {
    const std::uint32_t at = met.parts[l].row;
    require_shared(Access::load_matrices, at, 16, met.site);
    touch(Access::load_matrices, at, 16, Who::warp(met.number), met.site);
    std::memcpy(rows[l].data(), memory_.at(at), 16);
  }
  hand_out_matrices(met.parts, rows, met.meeting == Meeting::load_matrices_transposed);
}

void ThreadBlock::touch(Access how, std::uint32_t at, std::size_t bytes, Who who,
                        const Site& site) {
  const Conflict conflict = memory_.access(how, at, bytes, who, clock());
  if (conflict.with != nullptr) note(memory_.words(conflict, how, who), site);
}

void ThreadBlock::land(Copy& copy) {
  if (copy.from != nullptr)
    std::memcpy(memory_.at(copy.to), copy.from, 16);
  else
    std::memset(memory_.at(copy.to), 0, 16);
  copy.has_landed = true;
}

void ThreadBlock::land_some() {
  const auto any = [&] { return random(static_cast<unsigned>(drifting_.size())); };
  for (unsigned count = 1 + any(); count > 0; --count) {
    auto& chosen = drifting_[any()];
    Copy* const copy = chosen.first->find(chosen.second);
    if (copy != nullptr && !copy->has_landed) land(*copy);
    chosen = drifting_.back();
    drifting_.pop_back();
  }
}

std::uint32_t ThreadBlock::next_time(const Warp& met) {
  if (time_ == Trace::last_time)
    stop("a thread block has more barriers than are counted, at " + name_of(met.site));
  now_ = ++time_;
  return now_;
}

void ThreadBlock::require_progress(const Site& site) {
  if (--patience_ == 0)
    stop("thread " + std::to_string(current_->number) + " has accessed memory " +
         std::to_string(max_accesses) + " times without meeting anyone, at " + name_of(site));
}

void ThreadBlock::require_no_wait(GlobalAccess how, const void* address, std::size_t bytes, Who who,
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

void ThreadBlock::require_shared(Access how, std::uint32_t at, std::size_t bytes,
                                 const Site& site) {
  if (at > memory_.bytes() || bytes > memory_.bytes() - at)
    stop(words(how, bytes) + " at byte " + std::to_string(at) + " of shared memory, which has " +
         std::to_string(memory_.bytes()) + ", at " + name_of(site));
  if (at % bytes != 0)
    stop(words(how, bytes) + " at byte " + std::to_string(at) +
         " of shared memory, which is not a multiple of that, at " + name_of(site));
}

void ThreadBlock::require_aligned(GlobalAccess how, const void* address, std::size_t bytes,
                                  const Site& site) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
    stop(words(how, bytes) + " at an address that is not a multiple of that, at " + name_of(site));
}

template <class How>
std::string ThreadBlock::words(How how, std::size_t bytes) const {
  return "thread " + std::to_string(current_->number) + ": a " + name_of(how) + " of " +
         std::to_string(bytes) + " bytes";
}

void ThreadBlock::require_one_mask(const Warp& met) {
  for (const Part& part : met.parts)
    if (part.mask != met.parts[0].mask || part.mask < 0 || part.mask >= warp_size)
      stop("warp " + std::to_string(met.number) + " exchanges by masks " +
           std::to_string(met.parts[0].mask) + " and " + std::to_string(part.mask) + ", at " +
           name_of(met.site));
}

void ThreadBlock::note(const std::string& fault) {
  if (faults_.size() < 8)
    faults_.push_back(fault);
  else
    ++more_faults_;
}

void ThreadBlock::abandon(const std::string& fault) {
  note(fault);
  is_abandoned_ = true;
}

void ThreadBlock::stop(const std::string& fault) {
  abandon(fault);
  throw Abandoned{};
}

std::string ThreadBlock::whereabouts() const {
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

std::string ThreadBlock::whereabouts(const Thread& thread) {
  const Warp& warp = *thread.warp;
  if (thread.has_ended) return "have ended";
  if ((warp.arrived >> thread.lane() & 1u) == 0) return "can go on";
  return std::string("wait in ") + name_of(warp.meeting) + " at " + name_of(warp.site);
}

unsigned ThreadBlock::random(std::uint64_t count) {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return static_cast<unsigned>((random_ >> 32) * count >> 32);
}

}  // namespace stand_in
