// SPDX-License-Identifier: MIT
// The memory that calls are tested with: a workspace with nothing to spare, and parts of a batch.
#pragma once

#include <cstddef>
#include <cstring>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/limits.hpp>

#include "tests/support/catch.hpp"

namespace call_memory {

using mhla::Index;

/// The batch is cut into parts of so many bytes as long as this lives.
class Affordable {
 public:
  explicit Affordable(Index bytes) { mhla::cuda::affordable_bytes = bytes; }
  ~Affordable() { mhla::cuda::affordable_bytes = before_; }
  Affordable(const Affordable&) = delete;
  Affordable& operator=(const Affordable&) = delete;

 private:
  Index before_ = mhla::cuda::affordable_bytes;
};

/// Calls run(workspace) on exactly `size` bytes full of NaN between guards.
template <class Run>
void check_exact(Index size, const Run& run) {
  constexpr Index guard = 4096;
  const mhla::Workspace memory(size + 2 * guard);
  std::memset(memory.data(), 0x5a, static_cast<std::size_t>(memory.size()));
  std::memset(memory.data() + guard, 0xff, static_cast<std::size_t>(size));
  run(mhla::WorkspaceView{memory.data() + guard, size});
  Index touched = 0;
  for (Index i = 0; i < guard; ++i)
    touched += (memory.data()[i] != std::byte{0x5a}) +
               (memory.data()[guard + size + i] != std::byte{0x5a});
  CHECK(touched == 0);
}

}  // namespace call_memory
