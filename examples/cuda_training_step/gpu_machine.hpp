// SPDX-License-Identifier: MIT
// A GPU to train on: it owns memory, a stream and a cuBLAS handle, which the attention borrows
// through `executor()`. Needs no CUDA header: gpu.cu is the one file that does.
#pragma once

#include <memory>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/device.hpp>
#include <string>

/// Everything in memory of the GPU, in the order of one stream. Defined in gpu.cu.
class GpuMachine {
 public:
  GpuMachine();
  ~GpuMachine();

  /// Why there is no GPU to use; empty where there is one.
  static std::string why_not();

  mhla::CudaDevice executor() const;
  std::string name() const;

  float* allocate(mhla::Index count);
  mhla::WorkspaceView workspace(mhla::Index bytes);
  void upload(const float* from, mhla::Index count, float* to) const;
  void download(const float* from, mhla::Index count, float* to) const;  // waits for the stream
  void loss_gradient(const float* y, const float* target, mhla::Index count, float* dy) const;
  void descend(const float* gradient, float rate, mhla::Index count, float* parameter) const;

 private:
  struct Resources;
  std::unique_ptr<Resources> resources_;
};
