// SPDX-License-Identifier: MIT
// Scratch memory that the caller owns, and the arena the library lays it out with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <new>
#include <string>
#include <utility>

MHLA_NAMESPACE_BEGIN

/// Every workspace begins at a multiple of this many bytes: one cache line, one 512-bit vector.
inline constexpr Index workspace_alignment = 64;

/// A borrowed piece of scratch memory, `size` bytes at `data`. Contents are lost in every call.
struct WorkspaceView {
  std::byte* data = nullptr;
  Index size = 0;
};

/// Scratch memory owned by the caller and handed to every call: allocated once, here.
/// One workspace serves one call at a time.
class Workspace {
 public:
  Workspace() = default;
  explicit Workspace(Index bytes) : size_(bytes) {
    if (bytes < 0) throw WorkspaceError("mhla: a workspace cannot have a negative size");
    if (bytes > 0)
      data_ = static_cast<std::byte*>(::operator new (
          static_cast<std::size_t>(bytes), std::align_val_t{std::size_t{workspace_alignment}}));
  }
  Workspace(Workspace&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Workspace& operator=(Workspace&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { ::operator delete (data_, std::align_val_t{std::size_t{workspace_alignment}}); }

  std::byte* data() const { return data_; }
  Index size() const { return size_; }
  operator WorkspaceView() const { return {data_, size_}; }  // NOLINT: a workspace is a view of one

 private:
  std::byte* data_ = nullptr;
  Index size_ = 0;
};

/// Cuts arrays out of a workspace, each on a multiple of `workspace_alignment`. Without memory it
/// only measures: the code that lays memory out also says how much it takes, so sizes are exact.
class Arena {
 public:
  Arena() = default;
  explicit Arena(WorkspaceView workspace) : data_(workspace.data) {}

  template <class T>
  Span<T> take(Index count) {
    return {reinterpret_cast<T*>(take_elements(count, static_cast<Index>(sizeof(T)))), count};
  }

  Index used() const { return used_; }
  bool measures() const { return data_ == nullptr; }

 private:
  MHLA_OUT_OF_LINE std::byte* take_elements(Index count, Index element_bytes) {
    std::byte* const begin = data_ == nullptr ? nullptr : data_ + used_;
    const Index bytes = checked_mul(count, element_bytes);
    used_ =
        checked_add(used_, checked_mul(ceil_div(bytes, workspace_alignment), workspace_alignment));
    return begin;
  }

  std::byte* data_ = nullptr;
  Index used_ = 0;
};

/// Throws WorkspaceError unless `workspace` holds `bytes` bytes at an aligned address.
inline void require_workspace(WorkspaceView workspace, Index bytes, const char* function) {
  if (workspace.size < bytes)
    throw WorkspaceError(function, ": workspace: ", bytes, " bytes are needed, ", workspace.size,
                         " were given; forward_workspace_size and backward_workspace_size say how "
                         "many a call takes");
  if (bytes > 0 && reinterpret_cast<std::uintptr_t>(workspace.data) %
                           static_cast<std::uintptr_t>(workspace_alignment) !=
                       0)
    throw WorkspaceError(function, ": workspace: the address must be a multiple of ",
                         workspace_alignment, "; mhla::Workspace allocates so");
}

MHLA_NAMESPACE_END
