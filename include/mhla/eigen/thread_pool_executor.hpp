// SPDX-License-Identifier: MIT
// The executor of an Eigen device: what runs a call's tasks when it is assigned with
// .device(device).
#pragma once

#include <mhla/core/drawn_tasks.hpp>
#include <unsupported/Eigen/CXX11/Tensor>
#include <utility>

MHLA_NAMESPACE_BEGIN

#ifdef EIGEN_USE_THREADS

/// Distributes tasks over the threads of an Eigen::ThreadPoolDevice and waits for them. Needs
/// EIGEN_USE_THREADS. The device must outlive the executor; as with every Eigen expression, the
/// caller must not be one of the pool's own threads. Each call allocates in Eigen's pool. What
/// Eigen itself computes of an expression runs in the floating-point environment of the pool's
/// threads.
/// \ingroup executors
class ThreadPoolExecutor {
 public:
  /// Borrows.
  explicit ThreadPoolExecutor(const Eigen::ThreadPoolDevice& device) : device_(&device) {}

  static constexpr bool keeps_floating_point = true;  ///< \private

  /// Number of threads.
  Index num_slots() const { return device_->numThreads() > 1 ? device_->numThreads() : 1; }

  /// What a task throws is rethrown here, once every thread is done.
  void parallel_for(Index tasks, TaskRef task) const {
    if (tasks <= 1 || num_slots() == 1) return SerialExecutor::parallel_for(tasks, task);
    // Eigen allocates for each of its units of work. There is one for each slot, which draws tasks
    // until none is left, so that their number does not grow with the tasks. The cost, in cycles,
    // is exaggerated so that Eigen gives each unit a thread.
    constexpr double cycles_per_unit = 1e9;
    DrawnTasks call{task, tasks};
    device_->parallelFor(num_slots(), Eigen::TensorOpCost(0, 0, cycles_per_unit),
                         [&call](Eigen::Index first, Eigen::Index last) {
                           for (Eigen::Index slot = first; slot < last; ++slot) call.draw(slot);
                         });
    if (call.error) std::rethrow_exception(call.error);
  }

 private:
  const Eigen::ThreadPoolDevice* device_;
};

/// \cond INTERNAL
inline ThreadPoolExecutor executor_for(const Eigen::ThreadPoolDevice& device) {
  return ThreadPoolExecutor(device);
}
/// \endcond

#endif

/// \cond INTERNAL
inline SerialExecutor executor_for(const Eigen::DefaultDevice&) { return {}; }
/// \endcond

namespace eigen {

template <class Device>
inline constexpr bool is_known_device = requires(const Device& device) {
  executor_for(device);
};

/// True, or a static_assert that says what to use.
template <class Device>
constexpr bool require_known_device() {
  constexpr bool thread_pool = std::is_same_v<Device, Eigen::ThreadPoolDevice>;
  constexpr bool gpu = std::is_same_v<Device, Eigen::GpuDevice>;
  static_assert(!gpu,
                "mhla: Eigen::GpuDevice has neither cuBLAS nor workspace: to evaluate on a GPU use "
                "an mhla::CudaDevice of <mhla/cuda.hpp>, on the same stream");
  static_assert(is_known_device<Device> || !thread_pool,
                "mhla: to evaluate on a ThreadPoolDevice, define EIGEN_USE_THREADS before any "
                "Eigen header and include <mhla/mhla.hpp> after");
  static_assert(
      is_known_device<Device> || thread_pool || gpu,
      "mhla: attention is evaluated on an Eigen::DefaultDevice, an "
      "Eigen::ThreadPoolDevice or an mhla::ForkJoinDevice, which is in "
      "<mhla/eigen/fork_join_device.hpp>; on a GPU, an mhla::CudaDevice of <mhla/cuda.hpp>");
  return true;
}

template <class Device>
auto checked_executor(const Device& device) {
  static_assert(require_known_device<Device>());
  if constexpr (is_known_device<Device>) {
    return executor_for(device);
  } else {
    return SerialExecutor{};
  }
}

template <class Device>
using DeviceExecutor = decltype(checked_executor(std::declval<const Device&>()));

}  // namespace eigen

MHLA_NAMESPACE_END
