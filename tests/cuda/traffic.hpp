// SPDX-License-Identifier: MIT
// What kernels read and write of a call's tensors and summaries: a kernel that reads something
// twice is noticed. Tables, masks and matrices, which caches hold, are only bounded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mhla/cuda/tables.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <string>
#include <vector>

#include "tests/cuda/machine.hpp"
#include "tests/support/catch.hpp"

namespace traffic {

using mhla::Index;

/// Operands that are watched from when they are named here, as long as this lives.
class Watch {
 public:
  Watch() : read_(machine::context().kernel_bytes_read) { machine::context().watched.clear(); }
  ~Watch() { machine::context().watched.clear(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  template <class T>
  void operator()(const std::string& name, const T* data, Index count) {
    names_.push_back({name, Index{sizeof(T)}});
    machine::context().watched.push_back(
        {{data, static_cast<std::size_t>(count) * sizeof(T)}, 0, 0});
  }
  template <class T, int Rank>
  void operator()(const std::string& name, const mhla::TensorView<T, Rank>& tensor) {
    Index last = 0;
    for (int axis = 0; axis < Rank; ++axis) last += (tensor.extent[axis] - 1) * tensor.stride[axis];
    (*this)(name, tensor.data, last + 1);
  }
  template <class T, int Rank>
  void operator()(const std::string& name, const mhla::testing::HostTensor<T, Rank>& tensor) {
    (*this)(name, tensor.view());
  }

  /// Checks how many elements of an operand were read and written since the last check.
  void check(const std::string& name, Index read, Index written) {
    for (std::size_t n = 0; n < names_.size(); ++n) {
      if (names_[n].name != name) continue;
      stand_in::Watched& operand = machine::context().watched[n];
      INFO("elements read and written of " << name);
      CHECK(static_cast<Index>(operand.read) == read * names_[n].element);
      CHECK(static_cast<Index>(operand.written) == written * names_[n].element);
      all_read_ += operand.read;
      operand.read = operand.written = 0;
      return;
    }
    FAIL("nothing is watched as " << name);
  }
  /// Watches a table that every thread reads for itself, which is one access of a warp: it does not
  /// count as read.
  template <class T>
  void broadcast(const std::string& name, mhla::Span<T> table) {
    (*this)(name, static_cast<const T*>(table.data), table.size);
    broadcast_.push_back(names_.size() - 1);
  }
  /// Checks that nothing else that is watched was read or written, and that what was read of other
  /// memory is at most `share` of all.
  void check_rest(double share) {
    std::uint64_t broadcast = 0;
    for (const std::size_t n : broadcast_) {
      stand_in::Watched& table = machine::context().watched[n];
      broadcast += table.read;
      table.read = table.written = 0;
    }
    for (const Name& name : names_) check(name.name, 0, 0);
    const auto all = static_cast<double>(machine::context().kernel_bytes_read - read_ - broadcast);
    CHECK(all - static_cast<double>(all_read_) <= share * all);
    read_ = machine::context().kernel_bytes_read;
    all_read_ = 0;
  }

 private:
  struct Name {
    std::string name;
    Index element;  // bytes
  };
  std::vector<Name> names_;
  std::vector<std::size_t> broadcast_;  // of names_
  std::uint64_t read_;
  std::uint64_t all_read_ = 0;
};

/// The entries of a block table whose places the host can read, in all items.
struct Tokens {
  const mhla::cuda::BlockTable& table;
  Index items;
  Index rows;  // of a tile

  Index tiles_of_block() const { return mhla::ceil_div(table.block_tokens, rows); }
  Index blocks() const { return items * table.blocks; }
  /// Adds up times(tile of the block) over the tokens of one head.
  template <class Times>
  Index sum(const Times& times) const {
    Index sum = 0;
    for (Index item = 0; item < items; ++item)
      for (Index entry = 0; entry < table.blocks * table.block_tokens; ++entry)
        if (table.place(item, entry).token >= 0) sum += times(entry % table.block_tokens / rows);
    return sum;
  }
  Index all() const {
    return sum([](Index) { return 1; });
  }
  /// Once for each tile of their block that is not later or, if `later`, not earlier.
  Index of_pairs(bool later) const {
    return sum([&](Index tile) { return later ? tile + 1 : tiles_of_block() - tile; });
  }
};

}  // namespace traffic
