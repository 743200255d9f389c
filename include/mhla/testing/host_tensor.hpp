// SPDX-License-Identifier: MIT
// A small owning tensor, for tests and examples without Eigen, and a loop over views' elements.
#pragma once

#include <mhla/core/shape.hpp>
#include <mhla/core/workspace.hpp>

MHLA_NAMESPACE_BEGIN

namespace testing {

/// \addtogroup testing
/// \{

/// \cond INTERNAL
// Allocates memory aligned as a workspace's.
template <class T>
struct AlignedAllocator {
  using value_type = T;

  AlignedAllocator() = default;
  template <class U>
  AlignedAllocator(const AlignedAllocator<U>&) {}  // NOLINT: one for every type

  T* allocate(std::size_t count) const {
    return static_cast<T*>(::operator new(count * sizeof(T), alignment));
  }
  void deallocate(T* memory, std::size_t) const { ::operator delete(memory, alignment); }

  template <class U>
  bool operator==(const AlignedAllocator<U>&) const {
    return true;
  }

 private:
  static constexpr std::align_val_t alignment{std::size_t{workspace_alignment}};
};

/// \endcond

/// A std::vector whose memory is aligned, as that of a framework's tensors is. Converts from and to
/// others.
template <class T>
class Elements : public std::vector<T, AlignedAllocator<T>> {
  using Base = std::vector<T, AlignedAllocator<T>>;

 public:
  using Base::Base;
  /// A copy.
  Elements(const std::vector<T>& elements)  // NOLINT: stands for the same elements
      : Base(elements.begin(), elements.end()) {}
  /// A copy.
  operator std::vector<T>() const { return {this->begin(), this->end()}; }  // NOLINT: likewise

  /// Whether size and elements are equal.
  friend bool operator==(const Elements& a, const Elements& b) {
    return static_cast<const Base&>(a) == static_cast<const Base&>(b);
  }
};

/// A row-major tensor of `Rank` axes in its own aligned memory, initially zero:
/// `HostTensor<float, 4> q(batch, heads, tokens, key_dim)`.
template <class T, int Rank>
class HostTensor {
  static_assert(!std::is_same_v<T, bool>,
                "mhla: std::vector<bool> has no elements to view; use std::uint8_t for masks");

 public:
  HostTensor() = default;

  /// One extent per axis. \throws ShapeError if one is negative or the tensor is too large.
  template <class... Extents>
  explicit HostTensor(Index first, Extents... others)
      : layout_(make_view(static_cast<T*>(nullptr), first, others...)) {
    constexpr const char* axes[] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    [[maybe_unused]] int axis = 1;
    require_tensor("HostTensor", {{axes[0], first}, {axes[axis++], static_cast<Index>(others)}...});
    elements_.resize(static_cast<std::size_t>(layout_.size()));
  }

  /// Zeros with the extents of `view`.
  template <class U>
  static HostTensor like(const TensorView<U, Rank>& view) {
    return [&]<std::size_t... axis>(std::index_sequence<axis...>) {
      return HostTensor(view.extent[axis]...);
    }
    (std::make_index_sequence<TensorView<U, Rank>::axes>());
  }

  /// Valid as long as the tensor is.
  TensorView<T, Rank> view() { return layout_.with_data(elements_.data()); }
  /// Valid as long as the tensor is.
  TensorView<const T, Rank> view() const { return layout_.with_data(elements_.data()); }
  /// view()
  operator TensorView<T, Rank>() { return view(); }  // NOLINT: stands for its view
  /// view()
  operator TensorView<const T, Rank>() const { return view(); }  // NOLINT: stands for its view

  /// The element at one index per axis, unchecked.
  template <class... Indices>
  T& operator()(Indices... index) {
    return view()(index...);
  }
  /// The element at one index per axis, unchecked.
  template <class... Indices>
  const T& operator()(Indices... index) const {
    return view()(index...);
  }

  /// Elements along an axis.
  Index extent(int axis) const { return layout_.extent[axis]; }
  /// Number of elements.
  Index size() const { return static_cast<Index>(elements_.size()); }
  /// The elements in row-major order.
  Elements<T>& elements() & { return elements_; }
  /// The elements in row-major order.
  const Elements<T>& elements() const& { return elements_; }
  /// The elements in row-major order, for loops over a temporary.
  Elements<T> elements() && { return (std::move)(elements_); }

 private:
  TensorView<T, Rank> layout_;  // without data, so that copies stay right
  Elements<T> elements_;
};

/// Calls f(element of the first view, element of the second, ...) in row-major order of the index.
/// \throws ShapeError, before the first call, where extents differ or are negative.
template <class F, int Rank, class First, class... Others>
void for_each_element(F f, const TensorView<First, Rank>& first,
                      const TensorView<Others, Rank>&... others) {
  for (int axis = 0; axis < Rank; ++axis)
    require_tensor("first view", {{std::to_string(axis).c_str(), first.extent[axis]}});
  for (int axis = 0; axis < Rank; ++axis)
    (require_extent("second view", std::to_string(axis).c_str(), others.extent[axis],
                    first.extent[axis], "both views need the same extents"),
     ...);
  Index at[TensorView<First, Rank>::axes] = {};
  const auto offset = [&](const auto& view) {
    Index sum = 0;
    for (int axis = 0; axis < Rank; ++axis) sum += at[axis] * view.stride[axis];
    return sum;
  };
  for (Index i = first.size(); i > 0; --i) {
    f(first.data[offset(first)], others.data[offset(others)]...);
    for (int axis = Rank - 1; axis >= 0 && ++at[axis] == first.extent[axis]; --axis) at[axis] = 0;
  }
}

/// A copy whose elements are converted to T, rounded where T is narrower.
template <class T, class U, int Rank>
HostTensor<T, Rank> converted(const TensorView<U, Rank>& from) {
  auto to = HostTensor<T, Rank>::like(from);
  for_each_element(
      [](T& target, const auto& source) {
        store(target, static_cast<Accumulator<T>>(load(source)));
      },
      to.view(), from);
  return to;
}
/// From a HostTensor.
template <class T, class U, int Rank>
HostTensor<T, Rank> converted(const HostTensor<U, Rank>& from) {
  return converted<T>(from.view());
}

/// \cond INTERNAL
MHLA_NO_SUCH_CALL(void for_each_element,
                  "mhla: call for_each_element(f, view, views...) with views of one rank: of a "
                  "HostTensor write x.view()")
/// \endcond

/// \}

}  // namespace testing

MHLA_NAMESPACE_END
