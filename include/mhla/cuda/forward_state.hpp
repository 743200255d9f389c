// SPDX-License-Identifier: MIT
// What a forward pass on the device can leave for the backward pass: the block summaries, in device
// memory that the caller owns. Needs no CUDA header.
#pragma once

#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/forward_state.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <string>

MHLA_NAMESPACE_BEGIN

/// Whether a call keeps its summaries in a CudaForwardState, or takes them from one: such a call
/// runs on cuBLAS, whose workspace may be larger.
enum class StateUse { none, given };

/// Block summaries S_b and key sums z_b of one forward pass, in the accumulator type A, in
/// `memory`: forward_state_size(attention, shape, device) elements of device memory, or more. The
/// object says what is in there and is the host's; it reads and frees nothing. Valid for the k, v
/// and attention it was saved with, which the caller answers for, and for calls that come later on
/// the stream.
///
/// A graph that holds a forward pass with a save fills the memory anew in every replay.
template <class A>
class CudaForwardState {
 public:
  CudaForwardState() = default;
  explicit CudaForwardState(Span<A> memory) : memory_(memory) {}

  /// Room for the summaries of `shape`; what was saved before is gone.
  /// \throws WorkspaceError where the memory is too small or not aligned to A; nothing has changed
  /// then.
  Span<A> prepare(const Shape& shape, Index count) {
    if (memory_.size < count)
      throw WorkspaceError("mhla: save(state): " + std::to_string(count) +
                           " elements of device memory are needed, the state has " +
                           std::to_string(memory_.size) + "; forward_state_size says how many");
    if (reinterpret_cast<std::uintptr_t>(memory_.data) % alignof(A) != 0)
      throw WorkspaceError("mhla: save(state): the memory is not aligned to its elements");
    call_.begin(shape, count);
    return {memory_.data, count};
  }
  /// Called by forward when everything that fills it is on the stream.
  void mark_filled() { call_.mark_filled(); }

  /// The summaries saved for `shape`; throws StateError where something else, or nothing, was
  /// saved.
  Span<A> summaries(const Shape& shape, Index count) const {
    call_.require(shape, count);
    return {memory_.data, count};
  }

 private:
  Span<A> memory_;
  SavedCall call_;
};

MHLA_NAMESPACE_END
