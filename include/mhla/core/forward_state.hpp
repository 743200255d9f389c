// SPDX-License-Identifier: MIT
// What a forward pass can leave for the backward pass: the block summaries, so that they need not
// be computed again.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/workspace.hpp>

MHLA_NAMESPACE_BEGIN

/// Which call's summaries a state keeps, and whether they are all there.
class SavedCall {
 public:
  /// A save begins; what was saved before is gone.
  void begin(const Shape& shape, Index count) {
    filled_ = false;
    shape_ = shape;
    count_ = count;
  }
  void mark_filled() { filled_ = true; }

  /// Throws StateError where something else, or nothing, was saved.
  void require(const Shape& shape, Index count) const {
    if (!filled_)
      throw StateError(
          "mhla: saved(state): nothing has been saved in the state; run the forward "
          "expression with .save(state) first");
    if (!(shape_ == shape) || count_ != count)
      throw StateError(
          "mhla: saved(state): the state was saved by a call of another shape or "
          "variant; save it with the q, k, v and mix of this backward pass");
  }

 private:
  Shape shape_;
  Index count_ = 0;
  bool filled_ = false;
};

/// Block summaries S_b and key sums z_b of one forward pass, in the accumulator type A. The object
/// grows when a larger shape is saved and allocates nothing when memory suffices; `reserve` does so
/// ahead of time. Valid for the k, v and attention it was saved with, which the caller answers for.
template <class A>
class ForwardState {
 public:
  ForwardState() = default;

  /// Makes room for `count` elements; throws nothing but std::bad_alloc.
  void reserve(Index count) {
    const Index bytes = checked_mul(count, static_cast<Index>(sizeof(A)));
    if (memory_.size() < bytes) memory_ = Workspace(bytes);
  }

  /// Room for the summaries of `shape`; what was saved before is gone.
  Span<A> prepare(const Shape& shape, Index count) {
    call_.begin({}, 0);
    reserve(count);
    call_.begin(shape, count);
    return {reinterpret_cast<A*>(memory_.data()), count};
  }
  /// Called by forward when every summary is in place.
  void mark_filled() { call_.mark_filled(); }

  /// The summaries saved for `shape`; throws StateError where something else, or nothing, was
  /// saved.
  Span<const A> summaries(const Shape& shape, Index count) const {
    call_.require(shape, count);
    return {reinterpret_cast<const A*>(memory_.data()), count};
  }

 private:
  Workspace memory_;
  SavedCall call_;
};

MHLA_NAMESPACE_END
