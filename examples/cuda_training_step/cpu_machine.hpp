// SPDX-License-Identifier: MIT
// The CPU to train on: what gpu_machine.hpp has, by the same names.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mhla/core/executor.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <vector>

/// Everything in memory of the process.
class CpuMachine {
 public:
  const mhla::SerialExecutor& executor() const { return serial_; }

  float* allocate(mhla::Index count) {
    arrays_.emplace_back(static_cast<std::size_t>(count));
    return arrays_.back().data();
  }
  mhla::WorkspaceView workspace(mhla::Index bytes) {
    workspace_ = mhla::Workspace(bytes);
    return workspace_;
  }
  void upload(const float* from, mhla::Index count, float* to) const {
    std::copy(from, from + count, to);
  }
  void download(const float* from, mhla::Index count, float* to) const {
    std::copy(from, from + count, to);
  }

  /// dy = y - target: the gradient of half the sum of squares
  void loss_gradient(const float* y, const float* target, mhla::Index count, float* dy) const {
    for (mhla::Index i = 0; i < count; ++i) dy[i] = y[i] - target[i];
  }
  /// parameter -= rate gradient
  void descend(const float* gradient, float rate, mhla::Index count, float* parameter) const {
    for (mhla::Index i = 0; i < count; ++i) parameter[i] -= rate * gradient[i];
  }

 private:
  mhla::SerialExecutor serial_;
  mhla::Workspace workspace_;
  std::vector<std::vector<float>> arrays_;
};
