// SPDX-License-Identifier: MIT
// Device memory between two guards, so that a write outside of it is noticed, and tensors in it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <vector>

#include "cuda_resources.hpp"

namespace gpu {

using mhla::Index;
using mhla::TensorView;
using mhla::testing::HostTensor;

class GuardedBuffer {
 public:
  explicit GuardedBuffer(Index bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    check(cudaMalloc(reinterpret_cast<void**>(&memory_), bytes_ + 2 * guard_bytes), "cudaMalloc");
    set(memory_, guard_value, guard_bytes);
    set(data() + bytes_, guard_value, guard_bytes);
  }
  ~GuardedBuffer() { cudaFree(memory_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  std::byte* data() const { return memory_ + guard_bytes; }
  mhla::WorkspaceView workspace() const { return {data(), static_cast<Index>(bytes_)}; }

  /// Not-a-number in every floating-point type, -1 in every integer.
  void poison() const { set(data(), 0xff, bytes_); }
  /// A copy from pageable memory may return before it has arrived, and streams like ours do not
  /// wait for the default one.
  void upload(const void* from) const {
    if (bytes_ == 0) return;
    check(cudaMemcpy(data(), from, bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }
  void download(void* to) const {
    if (bytes_ > 0) check(cudaMemcpy(to, data(), bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }

  /// Whether nothing was written before or after the memory.
  bool intact() const { return holds_guard(memory_) && holds_guard(data() + bytes_); }

 private:
  static constexpr std::size_t guard_bytes = 256;  // what cudaMalloc aligns to
  static constexpr int guard_value = 0xa5;

  static void set(std::byte* memory, int value, std::size_t bytes) {
    if (bytes == 0) return;
    check(cudaMemset(memory, value, bytes), "cudaMemset");
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }
  static bool holds_guard(const std::byte* memory) {
    std::byte bytes[guard_bytes];
    check(cudaMemcpy(bytes, memory, guard_bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return std::all_of(bytes, bytes + guard_bytes,
                       [](std::byte b) { return b == std::byte{guard_value}; });
  }

  std::byte* memory_ = nullptr;
  std::size_t bytes_;
};

/// How a tensor [batch, heads, tokens, dim] lies in memory.
enum class Layout { heads_first, tokens_first };

/// A copy of a host tensor in guarded device memory, in a layout of its own.
template <class T, int Rank>
class DeviceTensor {
 public:
  explicit DeviceTensor(const HostTensor<T, Rank>& host, Layout layout = Layout::heads_first)
      : buffer_(host.size() * static_cast<Index>(sizeof(T))), layout_(host.view()) {
    layout_.data = nullptr;
    if constexpr (Rank == 4)
      if (layout == Layout::tokens_first) {
        const Index* const e = layout_.extent;
        const TensorView<const T, 4> stored =
            mhla::make_view<const T>(nullptr, e[0], e[2], e[1], e[3]);
        layout_ = mhla::tokens_first(stored);
      }
    upload(host);
  }

  void upload(const HostTensor<T, Rank>& host) const {
    const std::vector<T> stored = in_layout(host);
    buffer_.upload(stored.data());
  }
  HostTensor<T, Rank> download() const {
    std::vector<T> stored(static_cast<std::size_t>(layout_.size()));
    buffer_.download(stored.data());
    auto host = HostTensor<T, Rank>::like(layout_);
    mhla::testing::for_each_element([](T& to, const T& from) { to = from; }, host.view(),
                                    with_data<const T>(stored.data()));
    return host;
  }

  TensorView<T, Rank> view() const { return with_data<T>(reinterpret_cast<T*>(buffer_.data())); }
  const GuardedBuffer& buffer() const { return buffer_; }

 private:
  template <class U>
  TensorView<U, Rank> with_data(U* data) const {
    TensorView<U, Rank> view;
    view.data = data;
    for (int axis = 0; axis < Rank; ++axis) {
      view.extent[axis] = layout_.extent[axis];
      view.stride[axis] = layout_.stride[axis];
    }
    return view;
  }
  std::vector<T> in_layout(const HostTensor<T, Rank>& host) const {
    std::vector<T> stored(static_cast<std::size_t>(host.size()));
    mhla::testing::for_each_element([](T& to, const T& from) { to = from; },
                                    with_data<T>(stored.data()), host.view());
    return stored;
  }

  GuardedBuffer buffer_;
  TensorView<const T, Rank> layout_;  // without data
};

}  // namespace gpu
