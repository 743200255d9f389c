// SPDX-License-Identifier: MIT
// The one file that nvcc compiles: the kernels of the attention, and the loop's own.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <mhla/cuda/instantiate.cuh>
#include <stdexcept>
#include <vector>

#include "gpu_machine.hpp"
#include "variant.hpp"

// The attention, for every .cpp that calls it on a CudaDevice.
MHLA_INSTANTIATE_CUDA(ImageAttention, float);

namespace {

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}
void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error(cublasGetStatusString(status));
}

__global__ void loss_gradient_kernel(const float* y, const float* target, mhla::Index count,
                                     float* dy) {
  const mhla::Index i = static_cast<mhla::Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) dy[i] = y[i] - target[i];
}
__global__ void descend_kernel(const float* gradient, float rate, mhla::Index count,
                               float* parameter) {
  const mhla::Index i = static_cast<mhla::Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) parameter[i] -= rate * gradient[i];
}

constexpr unsigned threads = 256;
unsigned blocks_for(mhla::Index count) {
  return static_cast<unsigned>(mhla::ceil_div(count, mhla::Index{threads}));
}

}  // namespace

struct GpuMachine::Resources {
  cudaStream_t stream = nullptr;
  cublasHandle_t cublas = nullptr;
  std::vector<void*> memory;

  Resources() {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cublasCreate(&cublas));
  }
  ~Resources() {
    for (void* const array : memory) cudaFree(array);
    cublasDestroy(cublas);
    cudaStreamDestroy(stream);
  }

  void* allocate(std::size_t bytes) {
    void* array = nullptr;
    check(cudaMalloc(&array, bytes));
    memory.push_back(array);
    return array;
  }
};

GpuMachine::GpuMachine() : resources_(std::make_unique<Resources>()) {}
GpuMachine::~GpuMachine() = default;

std::string GpuMachine::why_not() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return devices == 0 ? "CUDA finds no device" : "";
}

mhla::CudaDevice GpuMachine::executor() const { return {resources_->stream, resources_->cublas}; }

std::string GpuMachine::name() const {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0));
  return properties.name;
}

float* GpuMachine::allocate(mhla::Index count) {
  return static_cast<float*>(resources_->allocate(static_cast<std::size_t>(count) * sizeof(float)));
}
mhla::WorkspaceView GpuMachine::workspace(mhla::Index bytes) {
  void* const memory = resources_->allocate(static_cast<std::size_t>(bytes));
  return {static_cast<std::byte*>(memory), bytes};
}
void GpuMachine::upload(const float* from, mhla::Index count, float* to) const {
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(float),
                        cudaMemcpyHostToDevice, resources_->stream));
  check(cudaStreamSynchronize(resources_->stream));  // `from` may be gone afterwards
}
void GpuMachine::download(const float* from, mhla::Index count, float* to) const {
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(float),
                        cudaMemcpyDeviceToHost, resources_->stream));
  check(cudaStreamSynchronize(resources_->stream));
}
void GpuMachine::loss_gradient(const float* y, const float* target, mhla::Index count,
                               float* dy) const {
  loss_gradient_kernel<<<blocks_for(count), threads, 0, resources_->stream>>>(y, target, count, dy);
  check(cudaGetLastError());
}
void GpuMachine::descend(const float* gradient, float rate, mhla::Index count,
                         float* parameter) const {
  descend_kernel<<<blocks_for(count), threads, 0, resources_->stream>>>(gradient, rate, count,
                                                                        parameter);
  check(cudaGetLastError());
}
