// SPDX-License-Identifier: MIT
// Ranges of addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stand_in {

struct AddressRange {
  const void* begin;
  std::size_t bytes;

  bool holds(const void* address) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const auto first = reinterpret_cast<std::uintptr_t>(begin);
    return first <= at && at < first + bytes;
  }
  bool meets(const void* address, std::size_t size) const {
    return holds(address) || AddressRange{address, size}.holds(begin);
  }
};

/// An operand, with the bytes that kernels have read and written of it.
struct Watched {
  AddressRange range;
  std::uint64_t read = 0;
  std::uint64_t written = 0;
};

inline bool any_holds(const std::vector<AddressRange>& ranges, const void* address) {
  for (const AddressRange& range : ranges)
    if (range.holds(address)) return true;
  return false;
}
inline bool any_meets(const std::vector<AddressRange>& ranges, const void* address,
                      std::size_t bytes) {
  for (const AddressRange& range : ranges)
    if (range.meets(address, bytes)) return true;
  return false;
}

}  // namespace stand_in
