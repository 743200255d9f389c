// SPDX-License-Identifier: MIT
// A tensor whose memory is as unlike a plain one's as strides allow: axes in a random order, each
// forwards or backwards, with gaps between elements; and a guard on everything in between.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mhla/core/tensor_view.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <utility>
#include <vector>

namespace call {

using mhla::Index;
using mhla::TensorView;
using mhla::testing::HostTensor;

/// A copy of a tensor in a layout drawn from `seed`.
template <class T, int Rank>
class ScatteredTensor {
 public:
  ScatteredTensor(const HostTensor<T, Rank>& values, std::uint64_t seed) {
    std::uint64_t draws = 0;
    const auto draw = [&](Index bound) {
      return mhla::testing::random_index(seed, draws++, bound);
    };
    int order[TensorView<T, Rank>::axes];  // innermost first
    for (int i = 0; i < Rank; ++i) order[i] = i;
    for (int i = Rank - 1; i > 0; --i) std::swap(order[i], order[draw(i + 1)]);
    Index reach = 1;  // of one index of the next axis
    first_ = 1 + draw(5);
    for (const int axis : order) {
      const Index extent = values.extent(axis);
      const Index stride = reach + draw(3);
      const bool backwards = draw(2) == 1;
      layout_.extent[axis] = extent;
      layout_.stride[axis] = backwards ? -stride : stride;
      if (backwards && extent > 0) first_ += stride * (extent - 1);
      reach = stride * std::max(extent, Index{1});
    }
    memory_.resize(static_cast<std::size_t>(first_ + reach + 3));
    std::memset(memory_.data(), guard, memory_.size() * sizeof(T));
    owned_.resize(memory_.size());
    mhla::testing::for_each_element(
        [&](T& to, const T& from) {
          to = from;
          owned_[static_cast<std::size_t>(&to - memory_.data())] = true;
        },
        view(), values.view());
  }

  TensorView<T, Rank> view() {
    TensorView<T, Rank> view = layout_;
    view.data = memory_.data() + first_;
    return view;
  }
  operator TensorView<T, Rank>() { return view(); }        // NOLINT: stands for its view
  operator TensorView<const T, Rank>() { return view(); }  // NOLINT: stands for its view

  /// Whether no element outside the tensor was written.
  bool guards_intact() const {
    T untouched;
    std::memset(static_cast<void*>(&untouched), guard, sizeof(T));
    for (std::size_t i = 0; i < memory_.size(); ++i)
      if (!owned_[i] && std::memcmp(&memory_[i], &untouched, sizeof(T)) != 0) return false;
    return true;
  }

 private:
  static constexpr int guard = 0xa5;

  TensorView<T, Rank> layout_;
  Index first_;
  std::vector<T> memory_;
  std::vector<bool> owned_;
};

}  // namespace call
