// SPDX-License-Identifier: MIT
// A CUDA program in one file: a teacher's attention over images, and a mix that learns it.
//   nvcc -std=c++20 -arch=sm_90 -I mhla/include one_file.cu -lcublas
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <mhla/cuda/instantiate.cuh>
#include <mhla/cuda/workspace.cuh>
#include <mhla/mixing_matrix.hpp>
#include <mhla/testing/random_tensor.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
MHLA_INSTANTIATE_CUDA(Attention, float);

__global__ void step(const float* y, const float* target, float* dy, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) dy[i] = (y[i] - target[i]) / n;
}
__global__ void descend(float* mix, const float* dmix, float rate, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) mix[i] = fmaxf(mix[i] - rate * dmix[i], 0);
}

/// In memory of both CPU and GPU.
mhla::TensorView<float, 4> tensor() {
  void* memory = nullptr;
  cudaMallocManaged(&memory, 4 * 256 * 16 * sizeof(float));
  return mhla::make_view(static_cast<float*>(memory), 1, 4, 256, 16);
}

int main() {
  const Attention attention{.blocks = {.grid = {16, 16}, .block = {4, 4}}};
  const auto q = tensor(), k = tensor(), v = tensor(), y = tensor(), target = tensor();
  const auto dy = tensor();
  const auto mix = mhla::make_view(tensor().data, 1, 16, 16);
  const auto dmix = mhla::make_view(tensor().data, 1, 16, 16);
  const auto local = mhla::make_view(tensor().data, 1, 16, 16);
  mhla::testing::fill_random(mhla::testing::Normal{}, 1, q);
  mhla::testing::fill_random(mhla::testing::Normal{}, 2, k);
  mhla::testing::fill_random(mhla::testing::Normal{}, 3, v);
  mhla::initialize(mix, attention);
  mhla::initialize(local, attention, {.transform = mhla::Transform::local});

  cublasHandle_t cublas = nullptr;
  cublasCreate(&cublas);
  mhla::CudaDevice cuda(nullptr, cublas);
  const mhla::Shape shape = mhla::shape_of(q, k, v, mix);
  const mhla::CudaWorkspace memory(mhla::backward_workspace_size<float>(attention, shape, cuda));

  mhla::forward_into(attention, cuda, q, k, v, local, target, memory);
  for (int i = 0; i < 50; ++i) {
    mhla::forward_into(attention, cuda, q, k, v, mix, y, memory);
    step<<<64, 256>>>(y.data, target.data, dy.data, 4 * 256 * 16);
    mhla::backward_into(attention, cuda, q, k, v, mix, dy,
                        {mhla::skip, mhla::skip, mhla::skip, dmix}, mhla::Update::overwrite,
                        memory);
    descend<<<1, 256>>>(mix.data, dmix.data, 1e3f, 256);
  }
  cudaDeviceSynchronize();
  double loss = 0;
  for (int i = 0; i < 4 * 256 * 16; ++i)
    loss += (y.data[i] - target.data[i]) * (y.data[i] - target.data[i]);
  std::printf("%s: loss %.2e\n", cudaGetErrorString(cudaGetLastError()), loss / (4 * 256 * 16));
}
