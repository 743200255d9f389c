// SPDX-License-Identifier: MIT
// The block summaries that a forward pass on the device can leave for the backward pass, in the
// caller's device memory. Needs no CUDA header.
#pragma once

#include <mhla/core/forward_state.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup cuda
/// \{

/// Whether a call keeps its summaries in a CudaForwardState, or takes them from one: such a call
/// may run on another path, whose workspace is larger.
enum class StateUse {
  none,  ///< neither
  given  ///< either
};

/// \cond INTERNAL
// How summaries are stored in a CudaForwardState: in the accumulator type, by which products, or,
// by fused kernels, each as two 16-bit numbers, the rounded value and, in a second plane, the
// remainder, which takes the same memory.
enum class SummaryFormat { accumulators, of_tf32_products, bfloat16_planes, half_planes };
/// \endcond

/// Block summaries S_b and key sums z_b of one forward pass, in the accumulator type A, in
/// `memory`: forward_state_size(attention, shape, device) elements of device memory, or more,
/// borrowed. The object itself is on the host and describes the contents. Valid for the k and v it
/// was saved with, which only the caller can know, and for later calls on the stream; a backward
/// pass of another shape or variant, or with other FloatProducts, throws StateError. Masks and
/// Favor's projection, which the host cannot read, are compared by address and layout. A moved-from
/// state has no memory.
///
/// A graph that contains a forward pass with a save refills the memory in every replay.
template <class A>
class CudaForwardState {
  static_assert(std::is_floating_point_v<A>,
                "mhla: a CudaForwardState has numbers of the type that tensors are accumulated in: "
                "float for float, mhla::BFloat16 and mhla::Half, double for double");

 public:
  CudaForwardState() = default;
  /// Borrows device memory.
  explicit CudaForwardState(Span<A> memory) : memory_(memory) {}
  /// Leaves a state without memory.
  CudaForwardState(CudaForwardState&& other) noexcept { *this = (std::move)(other); }
  /// Leaves a state without memory.
  CudaForwardState& operator=(CudaForwardState&& other) noexcept {
    memory_ = std::exchange(other.memory_, {});
    call_ = (std::move)(other.call_);
    format_ = other.format_;
    return *this;
  }

  /// Its device memory.
  WorkspaceView memory() const {
    return {reinterpret_cast<std::byte*>(memory_.data), memory_.size * Index{sizeof(A)}};
  }

  /// \cond INTERNAL
  // Room for the summaries of a call; overwrites what was saved before. Throws WorkspaceError, with
  // nothing changed, if the memory is too small, or not aligned to A, or to 16 bytes for planes.
  Span<A> prepare(const Shape& shape, std::uint64_t variant, Index count, SummaryFormat format) {
    if (memory_.size < count)
      throw WorkspaceError({"mhla: save(state): ", count,
                            " elements of device memory are needed, the state has ", memory_.size,
                            "; forward_state_size says how many"});
    const bool planes =
        format == SummaryFormat::bfloat16_planes || format == SummaryFormat::half_planes;
    const std::size_t alignment = planes ? 16 : alignof(A);
    if (reinterpret_cast<std::uintptr_t>(memory_.data) % alignment != 0)
      throw WorkspaceError(
          {"mhla: save(state): the memory is not aligned to ", alignment, " bytes"});
    call_.begin(shape, variant, count);
    format_ = format;
    return {memory_.data, count};
  }
  // Called by forward when everything that fills it is on the stream.
  void mark_filled() { call_.mark_filled(); }

  // The summaries saved for a call; throws StateError if something else, or nothing, was saved.
  Span<A> summaries(const Shape& shape, std::uint64_t variant, SummaryFormat format) const {
    const Index count = call_.count(shape, variant);
    if (format != format_)
      throw StateError(
          "mhla: saved(state): the state was saved on another CudaPath or with other "
          "FloatProducts; give both passes a CudaDevice that asks for the same ones");
    return {memory_.data, count};
  }

  /// \endcond

 private:
  Span<A> memory_;
  SavedCall call_;
  SummaryFormat format_ = SummaryFormat::accumulators;
};

/// \}

MHLA_NAMESPACE_END
