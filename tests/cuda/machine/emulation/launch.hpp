// SPDX-License-Identifier: MIT
// Launches kernels.
#pragma once

#include <mhla/core/index.hpp>
#include <mhla/cuda/device.hpp>

namespace stand_in {

inline constexpr mhla::Index max_blocks = 0x7fffffff;  // of a launch

/// A kernel's body, of whatever type.
struct Kernel {
  const void* body;
  int threads;
  int shared_bytes;
  void (*run)(const void* body, mhla::Index number, mhla::Index blocks, int thread);
};

/// What machine::run() does.
void run(const mhla::CudaDevice& device, mhla::Index blocks, const Kernel& kernel);

}  // namespace stand_in
