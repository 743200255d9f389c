// SPDX-License-Identifier: MIT
// What device_memory.cpp hands to attention.cpp: addresses of device memory, whoever made them.
#pragma once

#include <mhla/cuda/device.hpp>

namespace program {

inline constexpr long batch = 2, heads = 4, kv_heads = 2, side = 8, block = 4, tokens = side * side,
                      key_dim = 16, value_dim = 12, blocks = (side / block) * (side / block);

struct Memory {
  float *q, *k, *v, *mix, *dy;     // operands
  float *y, *dq, *dk, *dv, *dmix;  // results
};

/// Bytes of workspace that both passes need.
long workspace_bytes(const mhla::CudaDevice& device);
/// Forward and backward pass on the device.
void run(const mhla::CudaDevice& device, const Memory& memory);
/// The same on the CPU, in host memory.
void run_on_cpu(const Memory& memory);

}  // namespace program
