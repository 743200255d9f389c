// SPDX-License-Identifier: MIT
// The benchmark's own kernels: one that fills tensors, one that reads an array, one that does
// nothing.
#include <mhla/core/index.hpp>
#include <mhla/cuda/chip/launch.cuh>

#include "gpu_passes.hpp"

namespace bench {

namespace {

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

/// What is read is not needed; that the compiler cannot know.
struct ReadAll {
  const float* data;
  float* never;

  MHLA_HOST_DEVICE void operator()(mhla::Index i) const {
    if (data[i] != 0) *never = data[i];
  }
};

struct Nothing {
  MHLA_HOST_DEVICE void operator()(mhla::Index) const {}
};

}  // namespace

template <class T>
void fill_normal(const mhla::CudaDevice& device, T* data, mhla::Index count, std::uint64_t seed) {
  mhla::cuda::launch(device, count, FillNormal<T>{data, FillNormal<T>::mixed(seed)});
}
template void fill_normal(const mhla::CudaDevice&, float*, mhla::Index, std::uint64_t);
template void fill_normal(const mhla::CudaDevice&, mhla::BFloat16*, mhla::Index, std::uint64_t);

void read_all(const mhla::CudaDevice& device, float* zeros, mhla::Index count) {
  mhla::cuda::launch(device, count, ReadAll{zeros, zeros});
}

void launch_nothing(const mhla::CudaDevice& device) { mhla::cuda::launch(device, 1, Nothing{}); }

}  // namespace bench
