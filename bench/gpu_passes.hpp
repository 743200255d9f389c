// SPDX-License-Identifier: MIT
// The passes of a shape on device memory, whatever variant it is. Needs no CUDA header.
#pragma once

#include <cstdint>
#include <functional>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/pipeline.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <optional>

#include "gpu_shapes.hpp"

namespace bench {

/// Device memory of a call: batch x heads x tokens x dim each, mix of blocks x blocks. With memory
/// for a state, of gpu_state_size elements, forward passes save their summaries there and backward
/// passes take them.
template <class T>
struct GpuTensors {
  const T *q, *k, *v, *dy;
  const mhla::Accumulator<T>* mix;
  T *y, *dq, *dk, *dv;
  mhla::Accumulator<T>* dmix;
  mhla::Span<mhla::Accumulator<T>> state = {};
};
mhla::Index gpu_state_size(const GpuShape& shape, const mhla::CudaDevice& device);

struct GpuPass {
  mhla::cuda::CallCost cost;  ///< workspace, path, and what the model says of it
  std::function<void(const mhla::CudaDevice&, mhla::WorkspaceView)> run;
};
struct GpuPasses {
  GpuPass forward;
  std::optional<GpuPass> backward;  ///< where the path has one
};

/// On the path that the device asks for, for float and mhla::BFloat16. \throws mhla::ShapeError
/// where it cannot run them.
template <class T>
GpuPasses gpu_passes(const GpuShape& shape, const mhla::CudaDevice& device,
                     const GpuTensors<T>& tensors);

/// Normal values, the same ones for the same seed, in stream order.
template <class T>
void fill_normal(const mhla::CudaDevice& device, T* data, mhla::Index count, std::uint64_t seed);

/// A kernel that does nothing.
void launch_nothing(const mhla::CudaDevice& device);
/// Reads an array of zeros.
void read_all(const mhla::CudaDevice& device, float* zeros, mhla::Index count);

/// One head of one item in double.
struct HeadTensors {
  mhla::testing::HostTensor<double, 4> q, k, v, dy;
  mhla::testing::HostTensor<double, 3> mix;
  mhla::testing::HostTensor<double, 4> y, dq, dk, dv;
};

/// Fills in y, and where `backward` says so dq, dk and dv, on the CPU.
void compute_reference(const GpuShape& shape, HeadTensors& head, bool backward);

}  // namespace bench
