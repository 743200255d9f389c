// SPDX-License-Identifier: MIT
// The tensors of one call in Eigen's hands, and what the core makes of the same memory: the Eigen
// layer has to give the same bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mhla/attention.hpp>
#include <vector>

namespace test {

/// Memory of a tensor, in the order of its view.
template <class T>
using Memory = std::vector<T>;

/// Reproducible numbers in [-1, 1), different for every seed.
template <class T>
void fill(T* data, mhla::Index count, std::uint64_t seed) {
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (mhla::Index i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = static_cast<T>(static_cast<double>(state >> 11) / 4503599627370496.0 - 1.0);
  }
}

/// A tensor whose view is [extents...]: ColMajor has the axes reversed.
template <class T, int Layout, class... Extent>
Eigen::Tensor<T, int(sizeof...(Extent)), Layout> tensor(std::uint64_t seed, Extent... extents) {
  constexpr std::size_t rank = sizeof...(Extent);
  Eigen::array<Eigen::Index, rank> dimensions{{extents...}};
  if (Layout == int(Eigen::ColMajor)) std::reverse(dimensions.begin(), dimensions.end());
  Eigen::Tensor<T, int(rank), Layout> made(dimensions);
  fill(made.data(), made.size(), seed);
  return made;
}

template <class Tensor>
Memory<typename Tensor::Scalar> memory_of(const Tensor& tensor) {
  return {tensor.data(), tensor.data() + tensor.size()};
}

/// q, k, v, mix and dy of cross-attention with grouped kv heads, no two extents alike: batch 2,
/// heads 6, kv heads 3, 20 query tokens in blocks of 7, 22 key tokens in blocks of 5, key_dim 8,
/// value_dim 9.
template <class T, int Layout>
struct Tensors {
  using Scalar = T;
  static constexpr int layout = Layout;
  using Tensor4 = Eigen::Tensor<T, 4, Layout>;
  using Tensor3 = Eigen::Tensor<T, 3, Layout>;
  using Tensor2 = Eigen::Tensor<T, 2, Layout>;
  using Attention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D>;

  static constexpr Attention attention{.blocks = {.block = 7}, .key_blocks = {.block = 5}};

  Tensor4 q = tensor<T, Layout>(1, 2, 6, 20, 8);
  Tensor4 k = tensor<T, Layout>(2, 2, 3, 22, 8);
  Tensor4 v = tensor<T, Layout>(3, 2, 3, 22, 9);
  Tensor3 mix = positive(tensor<T, Layout>(4, 6, 3, 5));
  Tensor4 dy = tensor<T, Layout>(5, 2, 6, 20, 9);
  Tensor4 x = tensor<T, Layout>(6, 2, 6, 20, 9);

  static Tensor3 positive(Tensor3 mix) {
    for (Eigen::Index i = 0; i < mix.size(); ++i) mix.data()[i] = mix.data()[i] / T(2) + T(0.6);
    return mix;
  }

  /// A destination of the result's shape, filled with something else.
  static Tensor4 output() { return tensor<T, Layout>(7, 2, 6, 20, 9); }

  mhla::TensorView<const T, 4> query_view() const { return mhla::make_view(q.data(), 2, 6, 20, 8); }
  mhla::TensorView<const T, 4> key_view() const { return mhla::make_view(k.data(), 2, 3, 22, 8); }
  mhla::TensorView<const T, 4> value_view() const { return mhla::make_view(v.data(), 2, 3, 22, 9); }
  mhla::TensorView<const T, 3> mix_view() const { return mhla::make_view(mix.data(), 6, 3, 5); }
  mhla::TensorView<const T, 4> grad_output_view() const {
    return mhla::make_view(dy.data(), 2, 6, 20, 9);
  }
  mhla::Shape shape() const { return shape_of(query_view(), key_view(), value_view(), mix_view()); }

  /// attention(q, k, v, mix) by the core.
  Memory<T> expected() const {
    Memory<T> y(2 * 6 * 20 * 9);
    const mhla::SerialExecutor serial;
    const mhla::Workspace workspace(mhla::forward_workspace_size<T>(attention, shape(), serial));
    mhla::forward_into(attention, serial, query_view(), key_view(), value_view(), mix_view(),
                       mhla::make_view(y.data(), 2, 6, 20, 9), workspace);
    return y;
  }
};

template <class T>
struct Gradients {
  Memory<T> dq, dk, dv, dmix;
};

/// attention.backward(q, k, v, mix, dy) by the core, on top of what `start` holds.
template <class T, int Layout>
Gradients<T> expected_gradients(const Tensors<T, Layout>& t, Gradients<T> start,
                                mhla::Update update) {
  const mhla::SerialExecutor serial;
  const mhla::Workspace workspace(mhla::backward_workspace_size<T>(t.attention, t.shape(), serial));
  mhla::backward_into(
      t.attention, serial, t.query_view(), t.key_view(), t.value_view(), t.mix_view(),
      t.grad_output_view(),
      {mhla::make_view(start.dq.data(), 2, 6, 20, 8), mhla::make_view(start.dk.data(), 2, 3, 22, 8),
       mhla::make_view(start.dv.data(), 2, 3, 22, 9), mhla::make_view(start.dmix.data(), 6, 3, 5)},
      update, workspace);
  return start;
}

/// Calls f with every device the CPU layer knows.
template <class F>
void on_every_device(F&& f) {
  f(Eigen::DefaultDevice());
#ifdef EIGEN_USE_THREADS
  Eigen::ThreadPool pool(3);
  f(Eigen::ThreadPoolDevice(&pool, 3));
#endif
}

#ifdef EIGEN_USE_THREADS
/// In a test of both layouts: calls f with a thread pool for Case's layout `OnPool`, with one
/// thread for the other. Nightly both layouts meet every device.
template <int OnPool, class Case, class F>
void on_device_of(F&& f) {
#ifdef MHLA_FULL_PRODUCT
  on_every_device(f);
#else
  if constexpr (Case::layout == OnPool) {
    Eigen::ThreadPool pool(3);
    f(Eigen::ThreadPoolDevice(&pool, 3));
  } else {
    f(Eigen::DefaultDevice());
  }
#endif
}
#endif

}  // namespace test
