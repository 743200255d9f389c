// SPDX-License-Identifier: MIT
// What runs an entry: any executor, or with MHLA_TEST_CUDA the device of tests/cuda/machine.hpp.
#pragma once

#if defined(MHLA_TEST_CUDA)
#include <mhla/cuda/device.hpp>
#else
#include <mhla/core/executor.hpp>
#endif

namespace variants {

class Executor {
 public:
#if defined(MHLA_TEST_CUDA)
  using Type = mhla::CudaDevice;
#else
  using Type = mhla::ExecutorRef;
#endif
  template <class E>
  Executor(const E& executor) : executor_(executor) {}  // NOLINT: stands in for it

  const Type& get() const { return executor_; }

 private:
  Type executor_;
};

}  // namespace variants
