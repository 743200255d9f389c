// SPDX-License-Identifier: MIT
// Scratch memory that the caller owns, and the arena that lays it out.
#pragma once

#include <algorithm>
#include <mhla/core/tensor_view.hpp>
#include <new>
#include <utility>
#include <vector>

MHLA_NAMESPACE_BEGIN

/// \addtogroup views
/// \{

/// Every workspace begins at a multiple of this many bytes: one cache line, one 512-bit vector.
inline constexpr Index workspace_alignment = 64;

/// Borrowed scratch memory. Every call overwrites it.
struct WorkspaceView {
  std::byte* data = nullptr;  ///< a multiple of workspace_alignment
  Index size = 0;             ///< in bytes

  constexpr WorkspaceView() = default;
  /// Bytes.
  constexpr WorkspaceView(std::byte* memory, Index bytes) : data(memory), size(bytes) {}
  /// What allocators return, as cudaMalloc, and count in, as std::size_t. Elements of more than a
  /// byte do not convert: their number is not a size.
  template <class Memory, std::integral Bytes>
  requires(!std::is_const_v<Memory> &&
           (std::is_void_v<Memory> || std::same_as<Memory, std::byte> ||
            std::same_as<Memory, char> || std::same_as<Memory, unsigned char>))
      WorkspaceView(Memory* memory, Bytes bytes)
      : data(static_cast<std::byte*>(static_cast<void*>(memory))),
        size(static_cast<Index>(bytes)) {}

  /// Its bytes.
  constexpr operator Span<const std::byte>() const { return {data, size}; }  // NOLINT: of the same
};

/// Scratch memory that the caller owns: allocated once, here, and handed to any number of calls,
/// one at a time.
/// \code
/// const mhla::SerialExecutor executor;
/// const mhla::Workspace memory(mhla::forward_workspace_size<float>(attention, call, executor));
/// y = attention(q, k, v, mix).with(memory);
/// \endcode
class Workspace {
 public:
  Workspace() = default;
  /// Allocates. \throws WorkspaceError if bytes < 0, std::bad_alloc.
  explicit Workspace(Index bytes) : size_(bytes) {
    if (bytes < 0) throw WorkspaceError("mhla: a workspace cannot have a negative size");
    if (bytes > 0)
      data_ = static_cast<std::byte*>(::operator new (
          static_cast<std::size_t>(bytes), std::align_val_t{std::size_t{workspace_alignment}}));
  }
  /// \cond INTERNAL
  MHLA_NO_SUCH_CALL(explicit Workspace,
                    "mhla: make a Workspace from its number of bytes: mhla::forward_workspace_size "
                    "and backward_workspace_size say how many; memory of your own is an "
                    "mhla::WorkspaceView {memory, bytes}")
  /// \endcond
  /// Empties the other.
  Workspace(Workspace&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  /// Swaps.
  Workspace& operator=(Workspace&& other) noexcept {
    (std::swap)(data_, other.data_);
    (std::swap)(size_, other.size_);
    return *this;
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { ::operator delete (data_, std::align_val_t{std::size_t{workspace_alignment}}); }

  /// A multiple of workspace_alignment.
  std::byte* data() const { return data_; }
  /// In bytes.
  Index size() const { return size_; }
  /// Borrowed.
  operator WorkspaceView() const { return {data_, size_}; }  // NOLINT: a workspace is a view of one

 private:
  std::byte* data_ = nullptr;
  Index size_ = 0;
};

/// \cond INTERNAL
inline bool is_aligned_workspace(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) %
             static_cast<std::uintptr_t>(workspace_alignment) ==
         0;
}

// Cuts arrays out of memory, each on a multiple of `workspace_alignment`. Without memory, or once
// it is used up, an arena only measures: the code that lays memory out also says how much it takes,
// so sizes are exact, and a call that is laid out in too small a workspace knows what it needed.
class Arena {
 public:
  Arena() = default;
  explicit Arena(WorkspaceView workspace) {
    if (!is_aligned_workspace(workspace.data)) return;
    next_ = workspace.data;
    left_ = workspace.size;
  }
  // Allocates as it is laid out, into `chunks`.
  explicit Arena(std::vector<Workspace>& chunks) : chunks_(&chunks) {}

  template <class T>
  Span<T> take(Index count) {
    return {reinterpret_cast<T*>(take_elements(count, static_cast<Index>(sizeof(T)))), count};
  }
  WorkspaceView take_bytes(Index bytes) { return {take<std::byte>(bytes).data, bytes}; }
  // In row-major order.
  template <class T, class... Extents>
  TensorView<T, int(sizeof...(Extents))> take_tensor(Extents... extents) {
    Index size = 1;
    ((size = checked_mul(size, extents)), ...);
    return make_view(take<T>(size).data, extents...);
  }

  Index used() const { return used_; }
  bool measures() const { return next_ == nullptr && chunks_ == nullptr; }

 private:
  MHLA_ONCE_A_CALL std::byte* take_elements(Index count, Index element_bytes) {
    const Index bytes = checked_mul(
        ceil_div(checked_mul(count, element_bytes), workspace_alignment), workspace_alignment);
    used_ = checked_add(used_, bytes);
    if (bytes > left_) add_chunk(bytes);
    std::byte* const begin = next_;
    if (begin == nullptr) return begin;
    next_ += bytes;
    left_ -= bytes;
    return begin;
  }
  // At least as large as all chunks before it together, so that there are few.
  void add_chunk(Index bytes) {
    next_ = nullptr;
    left_ = 0;
    if (chunks_ == nullptr) return;
    constexpr Index least = Index{1} << 14;
    chunks_->emplace_back((std::max)({bytes, used_, least}));
    next_ = chunks_->back().data();
    left_ = chunks_->back().size();
  }

  std::byte* next_ = nullptr;
  Index left_ = 0;
  Index used_ = 0;
  std::vector<Workspace>* chunks_ = nullptr;
};

// Throws WorkspaceError unless `workspace` holds `bytes` bytes at an aligned address; `rule` says
// how many that is.
MHLA_ONCE_A_CALL inline void require_workspace(
    WorkspaceView workspace, Index bytes, const char* function,
    const char* rule = "forward_workspace_size and backward_workspace_size say how many it takes") {
  if (workspace.size < bytes)
    throw WorkspaceError({function, ": workspace: ", bytes, " bytes are needed, ", workspace.size,
                          " were given; ", rule});
  if (bytes > 0 && !is_aligned_workspace(workspace.data))
    throw WorkspaceError({function, ": workspace: the address must be a multiple of ",
                          workspace_alignment, "; mhla::Workspace allocates so"});
}

/// \endcond

/// \}

MHLA_NAMESPACE_END
