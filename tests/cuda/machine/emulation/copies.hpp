// SPDX-License-Identifier: MIT
// Copies into shared memory that a thread has begun and not waited for, in groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stand_in {

struct Copy {
  std::uint32_t to;
  const void* from;  // null: zeros
  bool has_landed;
};

/// The copies of one thread, oldest first. Each has a number that counts from the thread's first.
class Copies {
 public:
  std::uint64_t begin(const Copy& copy) {
    copies_.push_back(copy);
    return first_ + copies_.size() - 1;
  }
  void commit() { ends_.push_back(first_ + copies_.size()); }
  /// The copy of that number; null where it has been waited for.
  Copy* find(std::uint64_t number) {
    return number < first_ ? nullptr : &copies_[static_cast<std::size_t>(number - first_)];
  }
  /// Calls f(copy) for all of the groups but the last `pending`, which it forgets.
  template <class F>
  void wait(std::size_t pending, const F& f) {
    if (ends_.size() <= pending) return;
    const std::size_t groups = ends_.size() - pending;
    const auto count = static_cast<std::ptrdiff_t>(ends_[groups - 1] - first_);
    for (std::ptrdiff_t i = 0; i < count; ++i) f(copies_[static_cast<std::size_t>(i)]);
    copies_.erase(copies_.begin(), copies_.begin() + count);
    ends_.erase(ends_.begin(), ends_.begin() + static_cast<std::ptrdiff_t>(groups));
    first_ += static_cast<std::uint64_t>(count);
  }
  std::size_t under_way() const { return copies_.size(); }
  void forget() {
    first_ += copies_.size();
    copies_.clear();
    ends_.clear();
  }

 private:
  std::vector<Copy> copies_;
  std::vector<std::uint64_t> ends_;  // of the groups
  std::uint64_t first_ = 0;
};

}  // namespace stand_in
