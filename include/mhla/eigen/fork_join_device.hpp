// SPDX-License-Identifier: MIT
// A ForkJoin where an Eigen device stands: y.device(ForkJoinDevice(team)) = x + attention(...), and
// mhla::gradients(...).device(ForkJoinDevice(team)) = attention.backward(...). The team shares out
// attentions, wherever in an expression they are; what is around them the caller computes.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/fork_join.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

MHLA_NAMESPACE_BEGIN

/// Borrows the team, which must outlive it. Memory is that of Eigen's DefaultDevice, and so are the
/// bits of an attention. Does without EIGEN_USE_THREADS.
class ForkJoinDevice : public Eigen::DefaultDevice {
 public:
  explicit ForkJoinDevice(const ForkJoin& team) : team_(&team) {}
  explicit ForkJoinDevice(const ForkJoin&&) = delete;  // would be gone before its device

  const ForkJoin& team() const { return *team_; }

 private:
  const ForkJoin* team_;
};

inline ExecutorRef executor_for(const ForkJoinDevice& device) { return device.team(); }

MHLA_NAMESPACE_END

namespace Eigen::internal {

// What Eigen does on a DefaultDevice, of which it knows by its very name and not by its
// descendants. Without tiles: those pay for broadcasts, which seldom stand around an attention.
template <class Expression, bool Vectorizable, TiledEvaluation Tiling>
class TensorExecutor<Expression, mhla::ForkJoinDevice, Vectorizable, Tiling> {
  using Evaluator = TensorEvaluator<Expression, mhla::ForkJoinDevice>;

 public:
  using StorageIndex = typename Expression::Index;

  static void run(const Expression& expression, const mhla::ForkJoinDevice& device) {
    Evaluator evaluator(expression, device);
    if (evaluator.evalSubExprsIfNeeded(nullptr)) {
      const StorageIndex size = array_prod(evaluator.dimensions());
      StorageIndex i = 0;
      if constexpr (Vectorizable) {
        constexpr StorageIndex width = Evaluator::PacketSize;
        for (; i + width <= size; i += width) evaluator.evalPacket(i);
      }
      for (; i < size; ++i) evaluator.evalScalar(i);
    }
    evaluator.cleanup();
  }
};

}  // namespace Eigen::internal
