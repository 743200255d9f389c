// SPDX-License-Identifier: MIT
// What a forward pass can leave for the backward pass: the block summaries, so that they need not
// be computed again.
#pragma once

#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <utility>

MHLA_NAMESPACE_BEGIN

/// Which call's summaries a state keeps, and whether they are all there. A variant is known by its
/// fingerprint; see policy/fingerprint.hpp. Moved, not copied: of two that speak of one piece of
/// memory, one would be wrong after the next save.
class SavedCall {
 public:
  SavedCall() = default;
  SavedCall(SavedCall&& other) noexcept { *this = std::move(other); }
  SavedCall& operator=(SavedCall&& other) noexcept {
    shape_ = other.shape_;
    variant_ = other.variant_;
    count_ = other.count_;
    filled_ = std::exchange(other.filled_, false);
    return *this;
  }

  /// A save of `count` elements begins; what was saved before is gone.
  void begin(const Shape& shape, std::uint64_t variant, Index count) {
    filled_ = false;
    shape_ = shape;
    variant_ = variant;
    count_ = count;
  }
  void mark_filled() { filled_ = true; }

  /// How many elements were saved; throws StateError where something else, or nothing, was.
  Index count(const Shape& shape, std::uint64_t variant) const {
    if (!filled_)
      throw StateError(
          "mhla: saved(state): nothing has been saved in the state; run the forward "
          "expression with .save(state) first");
    if (!(shape_ == shape) || variant_ != variant)
      throw StateError(
          "mhla: saved(state): the state was saved by a call of another shape or variant (types, "
          "blocks, offsets, masks, feature map, epsilon, rotation and scale count); save it with "
          "the attention, q, k, v and mix of this backward pass");
    return count_;
  }

 private:
  Shape shape_;
  std::uint64_t variant_ = 0;
  Index count_ = 0;
  bool filled_ = false;
};

/// Block summaries S_b and key sums z_b of one forward pass, in the accumulator type A. The object
/// grows when a larger shape is saved and allocates nothing when memory suffices; `reserve` does so
/// ahead of time. Valid for the k and v it was saved with, which the caller answers for; a backward
/// pass of another shape or variant refuses it. Moving leaves a state in which nothing is saved.
template <class A>
class ForwardState {
 public:
  /// Makes room for `count` elements; throws nothing but std::bad_alloc.
  void reserve(Index count) {
    const Index bytes = checked_mul(count, static_cast<Index>(sizeof(A)));
    if (memory_.size() < bytes) memory_ = Workspace(bytes);
  }

  /// Room for the summaries of a call; what was saved before is gone.
  Span<A> prepare(const Shape& shape, std::uint64_t variant, Index count) {
    call_ = {};
    reserve(count);
    call_.begin(shape, variant, count);
    return {reinterpret_cast<A*>(memory_.data()), count};
  }
  /// Called by forward when every summary is in place.
  void mark_filled() { call_.mark_filled(); }

  /// The summaries saved for a call; throws StateError where something else, or nothing, was saved.
  Span<const A> summaries(const Shape& shape, std::uint64_t variant) const {
    const Index count = call_.count(shape, variant);
    return {reinterpret_cast<const A*>(memory_.data()), count};
  }

 private:
  Workspace memory_;
  SavedCall call_;
};

MHLA_NAMESPACE_END
