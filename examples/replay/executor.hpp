// SPDX-License-Identifier: MIT
// The device chosen on the command line, as one executor: a variant is then compiled once and not
// once per device. (A user's own executor looks like this.)
#pragma once

#define EIGEN_USE_THREADS  // before every Eigen header: the pool is Eigen's
#include <memory>
#include <mhla/core/executor.hpp>
#include <mhla/core/index.hpp>
#include <mhla/eigen/thread_pool_executor.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

namespace replay {

/// The calling thread, or an Eigen::ThreadPoolDevice of its own.
class ChosenExecutor {
 public:
  ChosenExecutor() = default;
  explicit ChosenExecutor(int threads)
      : pool_(std::make_unique<Eigen::ThreadPool>(threads)),
        device_(std::make_unique<Eigen::ThreadPoolDevice>(pool_.get(), threads)) {}

  mhla::Index num_slots() const {
    return device_ ? mhla::ThreadPoolExecutor(*device_).num_slots()
                   : mhla::SerialExecutor::num_slots();
  }

  template <class Task>
  void parallel_for(mhla::Index tasks, Task&& f) const {
    if (device_) return mhla::ThreadPoolExecutor(*device_).parallel_for(tasks, f);
    mhla::SerialExecutor::parallel_for(tasks, f);
  }

 private:
  std::unique_ptr<Eigen::ThreadPool> pool_;
  std::unique_ptr<Eigen::ThreadPoolDevice> device_;
};

}  // namespace replay
