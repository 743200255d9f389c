// SPDX-License-Identifier: MIT
// What thread blocks that are in flight together know of each other: of each block, up to when
// all that it did comes before. Counters carry it from those who announce to those who wait.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace stand_in {

/// By number of the block; times count from the launch on, as those of all blocks do together.
class Knowledge {
 public:
  void forget(std::size_t blocks) { until_.assign(blocks, 0); }
  std::uint32_t until(std::size_t block) const { return until_[block]; }
  void learn(std::size_t block, std::uint32_t until) {
    until_[block] = std::max(until_[block], until);
  }
  void learn(const Knowledge& other) {
    for (std::size_t block = 0; block < other.until_.size(); ++block)
      learn(block, other.until_[block]);
  }

 private:
  std::vector<std::uint32_t> until_;
};

/// The counters of a launch, by address, with what they tell who finds them counted.
class Counters {
 public:
  void begin_launch(std::size_t blocks) {
    blocks_ = blocks;
    told_.clear();
  }
  std::size_t blocks() const { return blocks_; }
  Knowledge& told_by(const std::uint32_t* counter) {
    const auto [found, is_new] = told_.try_emplace(counter);
    if (is_new) found->second.forget(blocks_);
    return found->second;
  }

 private:
  std::size_t blocks_ = 0;
  std::map<const std::uint32_t*, Knowledge> told_;
};

/// Which block had which time, of a launch whose blocks take turns.
class Turns {
 public:
  void begin_launch(std::uint32_t first_time) {
    first_ = first_time;
    block_at_.clear();
  }
  void note(std::uint32_t time, std::size_t block) {
    block_at_.resize(time - first_ + 1);
    block_at_.back() = static_cast<std::uint32_t>(block);
  }
  std::size_t block_at(std::uint32_t time) const { return block_at_[time - first_]; }

 private:
  std::uint32_t first_ = 0;
  std::vector<std::uint32_t> block_at_;
};

}  // namespace stand_in
