// SPDX-License-Identifier: MIT
// The tensors' memory as kernels see it: bytes moved are counted, and a shadow finds what blocks of
// one launch, threads without a barrier, or a kernel that has not waited for the one before, do to
// each other there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "address_range.hpp"
#include "shadow.hpp"

namespace stand_in {

enum class GlobalAccess : std::uint8_t { load, copy, store };

inline const char* name_of(GlobalAccess access) {
  switch (access) {
    case GlobalAccess::load:
      return "load";
    case GlobalAccess::copy:
      return "copy";
    case GlobalAccess::store:
      return "store";
  }
  return "";
}

class GlobalMemory {
 public:
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_written = 0;
  std::uint64_t bytes_read_early = 0;  // before earlier kernels have been waited for

  /// A launch begins, whose blocks may run in any order and at the same time and, until they wait,
  /// with the launch before and with the products that have written `products`.
  void begin(std::uint32_t time, std::vector<AddressRange> products,
             std::vector<Watched>* watched) {
    watched_ = watched;
    bytes_read = bytes_written = bytes_read_early = 0;
    time_of_launch_before_ = std::exchange(time_of_launch_, time);
    products_ = std::move(products);
    if (pages_.size() > max_pages) forget_pages();
  }
  /// Whether any of what lies there is being written by then.
  bool is_being_written(const void* address, std::size_t bytes) {
    const auto first = reinterpret_cast<std::uintptr_t>(address) / 2;
    const Shadow* place = &page(first / places_of_page)[first % places_of_page];
    for (const Shadow* const end = place + (bytes + 1) / 2; place != end; ++place)
      if (place->written.time() >= time_of_launch_before_) return true;
    return any_meets(products_, address, bytes);
  }
  /// Forgets who accessed what; time begins anew.
  void forget() {
    forget_pages();
    time_of_launch_ = time_of_launch_before_ = 1;
  }

  /// Notes an access by a thread block that began at time `begin`.
  Conflict access(GlobalAccess how, const void* address, std::size_t bytes, Who who,
                  const Clock& clock, std::uint32_t begin) {
    const auto first = reinterpret_cast<std::uintptr_t>(address) / 2;
    (how == GlobalAccess::store ? bytes_written : bytes_read) += bytes;
    for (Watched& operand : *watched_)
      if (operand.range.holds(address))
        (how == GlobalAccess::store ? operand.written : operand.read) += bytes;
    // Aligned to its size, an element lies in one page.
    Shadow* place = &page(first / places_of_page)[first % places_of_page];
    const Trace* with = nullptr;
    for (Shadow* const end = place + (bytes + 1) / 2; place != end && with == nullptr; ++place) {
      if (is_of_another_block(place->read, begin)) place->read_by_another = place->read;
      if (is_of_another_block(place->written, begin))
        with = &place->written;
      else if (how != GlobalAccess::store)
        with = place->note_read(who, how == GlobalAccess::copy, clock);
      else if (is_of_another_block(place->read_by_another, begin))
        with = &place->read_by_another;
      else
        with = place->note_write(who, false, clock, clock.now);
    }
    return {place - 1, with};
  }
  std::string words(const Conflict& conflict, GlobalAccess how, Who who,
                    std::uint32_t begin) const {
    const Trace& with = *conflict.with;
    GlobalAccess way = with.other_way() ? GlobalAccess::copy : GlobalAccess::load;
    if (&with == &conflict.place->written) way = GlobalAccess::store;
    return std::string("a race in global memory: a ") + name_of(how) + " by " + who.name() +
           " after a " + name_of(way) + " by " + with.who().name() +
           (is_of_another_block(with, begin) ? " of another thread block"
                                             : " without a barrier between them");
  }

 private:
  static constexpr std::size_t places_of_page = 2048;
  static constexpr std::size_t max_pages = 2048;
  struct Shadow : Place {
    Trace read_by_another;  // block of the launch
  };
  using Page = std::array<Shadow, places_of_page>;

  void forget_pages() {
    pages_.clear();
    last_ = nullptr;
  }
  // In this launch, and before the block that began at that time.
  bool is_of_another_block(const Trace& trace, std::uint32_t begin) const {
    return trace.time() >= time_of_launch_ && trace.time() < begin;
  }
  Page& page(std::uintptr_t number) {
    if (last_ == nullptr || number != number_of_last_) {
      auto& found = pages_[number];
      if (found == nullptr) found = std::make_unique<Page>();
      last_ = found.get();
      number_of_last_ = number;
    }
    return *last_;
  }
  std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages_;
  Page* last_ = nullptr;
  std::uintptr_t number_of_last_ = 0;
  std::uint32_t time_of_launch_ = 1;
  std::uint32_t time_of_launch_before_ = 1;
  std::vector<AddressRange> products_;
  std::vector<Watched>* watched_ = nullptr;
};

}  // namespace stand_in
