// SPDX-License-Identifier: MIT
// The program's stream, cuBLAS handle and device memory. Compares the device with the CPU.
//   program            exits with 77 and says so where there is no GPU
//   program --refused  hands over host memory, and no cuBLAS handle: a CudaError, with a GPU and
//                      without
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <mhla/core/error.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention.hpp"

namespace {

using program::Memory;

void require(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

constexpr long of_q = program::batch * program::heads * program::tokens * program::key_dim;
constexpr long of_k = program::batch * program::kv_heads * program::tokens * program::key_dim;
constexpr long of_v = program::batch * program::kv_heads * program::tokens * program::value_dim;
constexpr long of_y = program::batch * program::heads * program::tokens * program::value_dim;
constexpr long of_mix = program::blocks * program::blocks;
constexpr long operands = of_q + of_k + of_v + of_mix + of_y;
constexpr long results = of_y + of_q + of_k + of_v + of_mix;

// All tensors of the call, one after the other.
Memory memory_at(float* at) {
  const auto take = [&](long count) {
    float* const begin = at;
    at += count;
    return begin;
  };
  Memory m{};
  m.q = take(of_q), m.k = take(of_k), m.v = take(of_v), m.mix = take(of_mix), m.dy = take(of_y);
  m.y = take(of_y), m.dq = take(of_q), m.dk = take(of_k), m.dv = take(of_v), m.dmix = take(of_mix);
  return m;
}

// The same numbers in every run, in [0.25, 1.25).
std::vector<float> random_tensors() {
  std::vector<float> numbers(operands + results);
  unsigned state = 1;
  for (std::size_t i = 0; i < operands; ++i) {
    state = state * 1664525u + 1013904223u;
    numbers[i] = static_cast<float>(state >> 8) / 16777216.0f + 0.25f;
  }
  return numbers;
}

bool agree(const char* name, const float* got, const float* expected, long count) {
  double difference = 0;
  double largest = 0;
  for (long i = 0; i < count; ++i) {
    const double distance = std::abs(double{got[i]} - double{expected[i]});
    if (!(distance <= difference)) difference = distance;
    largest = std::fmax(largest, std::abs(double{expected[i]}));
  }
  std::printf("%-5s %.1e\n", name, difference / largest);
  return difference <= 1e-5 * largest;
}

int refused() {
  std::vector<float> numbers = random_tensors();
  const mhla::CudaDevice unknown(nullptr, nullptr);
  std::vector<std::byte> bytes(static_cast<std::size_t>(program::workspace_bytes(unknown)) + 64);
  const auto address = reinterpret_cast<std::size_t>(bytes.data());
  const mhla::WorkspaceView workspace{bytes.data() + (64 - address % 64) % 64,
                                      static_cast<mhla::Index>(bytes.size() - 64)};
  try {
    program::run(mhla::CudaDevice(nullptr, nullptr, workspace), memory_at(numbers.data()));
  } catch (const mhla::CudaError& error) {
    std::printf("CudaError: %s\n", error.what());
    return 0;
  }
  std::puts("no CudaError");
  return 1;
}

int compared() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::printf("Skipped: there is no CUDA device here (%s)\n", cudaGetErrorString(error));
    return 77;
  }
  std::vector<float> on_cpu = random_tensors();
  std::vector<float> on_device = on_cpu;
  program::run_on_cpu(memory_at(on_cpu.data()));

  const std::size_t bytes = on_cpu.size() * sizeof(float);
  cudaStream_t stream;
  cublasHandle_t cublas;
  void* tensors;
  void* scratch;
  require(cudaStreamCreate(&stream));
  if (cublasCreate(&cublas) != CUBLAS_STATUS_SUCCESS) throw std::runtime_error("cublasCreate");
  const long scratch_bytes = program::workspace_bytes({stream, cublas});
  require(cudaMalloc(&tensors, bytes));
  require(cudaMalloc(&scratch, static_cast<std::size_t>(scratch_bytes)));
  const mhla::CudaDevice device(stream, cublas, {static_cast<std::byte*>(scratch), scratch_bytes});

  require(cudaMemcpyAsync(tensors, on_device.data(), bytes, cudaMemcpyHostToDevice, stream));
  program::run(device, memory_at(static_cast<float*>(tensors)));
  require(cudaMemcpyAsync(on_device.data(), tensors, bytes, cudaMemcpyDeviceToHost, stream));
  require(cudaStreamSynchronize(stream));
  require(cudaFree(scratch));
  require(cudaFree(tensors));
  cublasDestroy(cublas);
  require(cudaStreamDestroy(stream));

  const Memory got = memory_at(on_device.data());
  const Memory expected = memory_at(on_cpu.data());
  const bool all = agree("y", got.y, expected.y, of_y) && agree("dq", got.dq, expected.dq, of_q) &&
                   agree("dk", got.dk, expected.dk, of_k) &&
                   agree("dv", got.dv, expected.dv, of_v) &&
                   agree("dmix", got.dmix, expected.dmix, of_mix);
  return all ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return count > 1 && std::strcmp(arguments[1], "--refused") == 0 ? refused() : compared();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
