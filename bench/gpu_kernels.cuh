// SPDX-License-Identifier: MIT
// What gpu_float.cu and gpu_bfloat16.cu are made of: a scalar's kernels and the calls of them.
#pragma once

#include <mhla/core/index.hpp>
#include <mhla/cuda/launch.cuh>
#include <mhla/cuda/pipeline.cuh>

#include "gpu_passes.hpp"

namespace bench {

/// Element i is the sum of eight uniform 16-bit numbers, centred, of variance 1.
template <class T>
struct FillNormal {
  T* data;
  std::uint64_t seed;

  MHLA_HOST_DEVICE static std::uint64_t mixed(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  MHLA_HOST_DEVICE void operator()(mhla::Index i) const {
    const std::uint64_t number = 2 * static_cast<std::uint64_t>(i);
    float sum = -4 * 65535.0f;
    for (std::uint64_t word = 0; word < 2; ++word) {
      const std::uint64_t bits = mixed(seed + 0x9e3779b97f4a7c15u * (number + word + 1));
      for (int part = 0; part < 4; ++part)
        sum += static_cast<float>((bits >> (16 * part)) & 0xffffu);
    }
    mhla::store(data[i], sum * (1 / 53509.7f));  // 65536 sqrt(8 / 12)
  }
};

template <class T>
void fill_normal(const mhla::CudaDevice& device, T* data, mhla::Index count, std::uint64_t seed) {
  mhla::cuda::launch(device, count, FillNormal<T>{data, FillNormal<T>::mixed(seed)});
}

template <class T>
GpuPasses gpu_passes(const GpuShape& shape, const mhla::CudaDevice& device,
                     const GpuTensors<T>& x) {
  return with_gpu_variant(shape, [&](const auto& attention) {
    const auto tensor = [&](auto* data, std::ptrdiff_t dim) {
      return mhla::make_view(data, shape.batch, shape.heads, shape.tokens(), dim);
    };
    const auto matrix = [&](auto* data) {
      return mhla::make_view(data, 1, shape.blocks(), shape.blocks());
    };
    const auto q = tensor(x.q, shape.key_dim), k = tensor(x.k, shape.key_dim);
    const auto v = tensor(x.v, shape.value_dim), dy = tensor(x.dy, shape.value_dim);
    const auto y = tensor(x.y, shape.value_dim);
    const auto mix = matrix(x.mix);
    const mhla::GradientViews<T> gradients{tensor(x.dq, shape.key_dim), tensor(x.dk, shape.key_dim),
                                           tensor(x.dv, shape.value_dim), matrix(x.dmix)};
    GpuPasses passes;
    passes.forward = {mhla::forward_workspace_size<T>(attention, shape.call(), device),
                      [=](const mhla::CudaDevice& on, mhla::WorkspaceView workspace) {
                        mhla::forward_into(attention, on, q, k, v, mix, y, workspace);
                      }};
    passes.backward = {mhla::backward_workspace_size<T>(attention, shape.call(), device),
                       [=](const mhla::CudaDevice& on, mhla::WorkspaceView workspace) {
                         mhla::backward_into(attention, on, q, k, v, mix, dy, gradients,
                                             mhla::Update::overwrite, workspace);
                       }};
    return passes;
  });
}

/// A scalar's, for its translation unit.
#define MHLA_BENCH_GPU_KERNELS(T)                                                        \
  template void fill_normal<T>(const mhla::CudaDevice&, T*, mhla::Index, std::uint64_t); \
  template GpuPasses gpu_passes<T>(const GpuShape&, const mhla::CudaDevice&, const GpuTensors<T>&)

}  // namespace bench
