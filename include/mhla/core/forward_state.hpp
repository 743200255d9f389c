// SPDX-License-Identifier: MIT
// The block summaries that a forward pass can leave for the backward pass, which then does not
// recompute them.
#pragma once

#include <mhla/core/shape.hpp>
#include <mhla/core/workspace.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// Which call's summaries a state keeps, and whether they are complete. A variant is identified by
// its fingerprint; see policy/fingerprint.hpp. Moved, not copied: of two that describe the same
// memory, one would be wrong after the next save.
class SavedCall {
 public:
  SavedCall() = default;
  SavedCall(SavedCall&& other) noexcept { *this = (std::move)(other); }
  SavedCall& operator=(SavedCall&& other) noexcept {
    shape_ = other.shape_;
    variant_ = other.variant_;
    count_ = other.count_;
    filled_ = std::exchange(other.filled_, false);
    return *this;
  }

  // A save of `count` elements begins; overwrites what was saved before.
  void begin(const Shape& shape, std::uint64_t variant, Index count) {
    filled_ = false;
    shape_ = shape;
    variant_ = variant;
    count_ = count;
  }
  void mark_filled() { filled_ = true; }

  // How many elements were saved; throws StateError if something else, or nothing, was.
  Index count(const Shape& shape, std::uint64_t variant) const {
    if (!filled_)
      throw StateError(
          "mhla: saved(state): nothing has been saved in the state; run the forward "
          "expression with .save(state) first");
    if (!(shape_ == shape) || variant_ != variant)
      throw StateError(
          "mhla: saved(state): the state was saved by a call of another shape or variant (types, "
          "blocks, offsets, masks, feature map, epsilon, rotation, scale, precision and path "
          "count); save it with the attention, q, k, v and mix of this backward pass");
    return count_;
  }

 private:
  Shape shape_;
  std::uint64_t variant_ = 0;
  Index count_ = 0;
  bool filled_ = false;
};
/// \endcond

/// Block summaries S_b and key sums z_b of one forward pass, in the accumulator type A. It grows
/// when a larger shape is saved and allocates nothing when its memory suffices; `reserve` grows it
/// ahead of time. Valid for the k and v it was saved with, which only the caller can know; a
/// backward pass of another shape or variant throws StateError. A moved-from state has nothing
/// saved. One call uses a state at a time.
/// \code
/// mhla::ForwardState<float> state;
/// y.device(pool) = attention(q, k, v, mix).save(state);
/// mhla::gradients(dq, dk, dv, dmix).device(pool) =
///     attention.backward(q, k, v, mix, dy).saved(state);
/// \endcode
/// \ingroup views
template <class A>
class ForwardState {
  static_assert(std::is_floating_point_v<A>,
                "mhla: a ForwardState has numbers of the type that tensors are accumulated in: "
                "float for float, mhla::BFloat16 and mhla::Half, double for double");

 public:
  /// Makes room for `count` elements, forward_state_size(attention, shape) of them for a call.
  void reserve(Index count) {
    const Index bytes = checked_mul(count, static_cast<Index>(sizeof(A)));
    if (memory_.size() < bytes) memory_ = Workspace(bytes);
  }

  /// \cond INTERNAL
  // Room for the summaries of a call; overwrites what was saved before.
  Span<A> prepare(const Shape& shape, std::uint64_t variant, Index count) {
    call_ = {};
    reserve(count);
    call_.begin(shape, variant, count);
    return {reinterpret_cast<A*>(memory_.data()), count};
  }
  // Called by forward when every summary is in place.
  void mark_filled() { call_.mark_filled(); }

  // The summaries saved for a call; throws StateError if something else, or nothing, was saved.
  Span<const A> summaries(const Shape& shape, std::uint64_t variant) const {
    const Index count = call_.count(shape, variant);
    return {reinterpret_cast<const A*>(memory_.data()), count};
  }
  /// \endcond

 private:
  Workspace memory_;
  SavedCall call_;
};

MHLA_NAMESPACE_END
