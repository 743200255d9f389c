// SPDX-License-Identifier: MIT
// A shadow of memory that knows who accessed a place, and since which barrier: two accesses by
// different threads, one of them a write, need a barrier between them that both threads came to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace stand_in {

/// Time counts barriers, of thread blocks and of their warps. The last one of a block has made
/// what happened before `of_block` known to its threads, the last one of a warp what happened
/// before `of_warp` to the warp's.
struct Clock {
  std::uint32_t now;
  std::uint32_t of_block;
  std::uint32_t of_warp;
};

/// Who accesses: one thread, all of a warp together, or threads of several warps.
class Who {
 public:
  static constexpr Who thread(int thread) { return Who(static_cast<std::uint32_t>(thread)); }
  static constexpr Who warp(int warp) { return Who(first_warp + static_cast<std::uint32_t>(warp)); }
  static constexpr Who several_warps() { return Who(several); }
  explicit constexpr Who(std::uint32_t code) : code_(code) {}

  constexpr std::uint32_t code() const { return code_; }
  constexpr bool is_thread() const { return code_ < first_warp; }
  constexpr bool is_several_warps() const { return code_ == several; }
  /// Of that one or of those threads; no warp's where there are several.
  constexpr std::uint32_t warp() const { return is_thread() ? code_ / 32 : code_ - first_warp; }
  std::string name() const {
    if (is_several_warps()) return "several warps";
    if (!is_thread()) return "warp " + std::to_string(warp());
    return "thread " + std::to_string(code_);
  }

 private:
  static constexpr std::uint32_t first_warp = 1024;
  static constexpr std::uint32_t several = first_warp + 32;
  std::uint32_t code_;
};

/// The last access of a kind: when, by whom, and in which of two ways.
class Trace {
 public:
  static constexpr std::uint32_t under_way = (1u << 20) - 1;  // a time after all others
  static constexpr std::uint32_t last_time = under_way - 1;

  constexpr Trace() = default;
  constexpr Trace(std::uint32_t time, Who who, bool other_way)
      : bits_(time << 12 | static_cast<std::uint32_t>(other_way) << 11 | who.code()) {}
  constexpr std::uint32_t time() const { return bits_ >> 12; }
  constexpr bool other_way() const { return (bits_ >> 11 & 1u) != 0; }
  constexpr Who who() const { return Who(bits_ & 0x7ff); }

  /// Whether a barrier, or a thread's own order, puts it before what `who` does now.
  constexpr bool is_before(Who other, const Clock& clock) const {
    if (time() < clock.of_block) return true;
    if (time() == under_way || who().warp() != other.warp()) return false;
    return time() < clock.of_warp || (who().is_thread() && who().code() == other.code());
  }

 private:
  std::uint32_t bits_ = 0;
};

/// What is known of two bytes. Who accesses one accesses both.
struct Place {
  Trace written;
  Trace read;

  /// What a read conflicts with, or null; notes it.
  const Trace* note_read(Who who, bool other_way, const Clock& clock) {
    if (written.time() >= clock.of_block && !written.is_before(who, clock)) return &written;
    if (read.time() < clock.of_block)
      read = Trace(clock.now, who, other_way);
    else if (!read.who().is_several_warps())
      add_reader(who, other_way, clock);
    return nullptr;
  }
  /// The same for a write, at `time`.
  const Trace* note_write(Who who, bool other_way, const Clock& clock, std::uint32_t time) {
    if (written.time() >= clock.of_block && !written.is_before(who, clock)) return &written;
    if (read.time() >= clock.of_block && !read.is_before(who, clock)) return &read;
    written = Trace(time, who, other_way);
    read = Trace();
    return nullptr;
  }

 private:
  // A reader that others since the block's barrier have come before.
  void add_reader(Who who, bool other_way, const Clock& clock) {
    if (!read.is_before(who, clock))
      who = read.who().warp() == who.warp() ? Who::warp(static_cast<int>(who.warp()))
                                            : Who::several_warps();
    read = Trace(clock.now, who, other_way);
  }
};

/// What an access conflicts with: null where with nothing.
struct Conflict {
  const Place* place = nullptr;
  const Trace* with = nullptr;
};

}  // namespace stand_in
