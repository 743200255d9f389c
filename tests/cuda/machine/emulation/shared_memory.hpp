// SPDX-License-Identifier: MIT
// A block's shared memory and its shadow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "shadow.hpp"

namespace stand_in {

/// How threads touch shared memory.
enum class Access : std::uint8_t { read, load_matrices, write, copy };

inline const char* name_of(Access access) {
  switch (access) {
    case Access::read:
      return "read";
    case Access::load_matrices:
      return "matrix load";
    case Access::write:
      return "write";
    case Access::copy:
      return "copy";
  }
  return "";
}

class SharedMemory {
 public:
  /// Gives a block its memory: NaN in every 16-bit, 32-bit and 64-bit format.
  void begin(std::size_t bytes) {
    const std::size_t lines = (bytes + sizeof(Line) - 1) / sizeof(Line);
    if (memory_.size() < lines) {
      memory_.resize(lines);
      places_.resize(lines * sizeof(Line) / 2);
    }
    bytes_ = bytes;
    if (bytes > 0) std::memset(static_cast<void*>(memory_.data()), 0xff, bytes);
  }
  /// Forgets who accessed what.
  void forget() { places_.assign(places_.size(), Place{}); }

  std::size_t bytes() const { return bytes_; }
  unsigned char* at(std::uint32_t place) {
    return reinterpret_cast<unsigned char*>(memory_.data()) + place;
  }

  /// Notes an access. A copy is under way until copied() says that the thread that began it has
  /// waited for it.
  Conflict access(Access how, std::uint32_t at, std::size_t bytes, Who who, const Clock& clock) {
    Place* place = &places_[at / 2];
    Place* const end = place + (bytes + 1) / 2;
    const Trace* with = nullptr;
    if (how == Access::read || how == Access::load_matrices) {
      for (; place != end && with == nullptr; ++place)
        with = place->note_read(who, how == Access::load_matrices, clock);
    } else {
      const std::uint32_t time = how == Access::copy ? Trace::under_way : clock.now;
      for (; place != end && with == nullptr; ++place)
        with = place->note_write(who, how == Access::copy, clock, time);
    }
    return {place - 1, with};
  }
  void copied(std::uint32_t at, Who who, const Clock& clock) {
    for (std::size_t i = 0; i < 8; ++i) places_[at / 2 + i].written = Trace(clock.now, who, true);
  }

  std::string words(const Conflict& conflict, Access how, Who who) const {
    const Trace& with = *conflict.with;
    const auto byte = static_cast<std::size_t>(conflict.place - places_.data()) * 2;
    Access way = with.other_way() ? Access::load_matrices : Access::read;
    if (&with == &conflict.place->written) way = with.other_way() ? Access::copy : Access::write;
    return "a race at byte " + std::to_string(byte) + " of shared memory: a " + name_of(how) +
           " by " + who.name() + " after a " + name_of(way) + " by " + with.who().name() +
           (with.time() == Trace::under_way ? " that has not been waited for"
                                            : " without a barrier between them");
  }

 private:
  struct alignas(128) Line {
    unsigned char byte[128];
  };

  std::vector<Line> memory_;
  std::vector<Place> places_;
  std::size_t bytes_ = 0;
};

}  // namespace stand_in
