// SPDX-License-Identifier: MIT
// A ForkJoin as an Eigen device: y.device(ForkJoinDevice(team)) = x + attention(...), and
// mhla::gradients(...).device(ForkJoinDevice(team)) = attention.backward(...).
#pragma once

#include <mhla/fork_join.hpp>
#include <unsupported/Eigen/CXX11/Tensor>

MHLA_NAMESPACE_BEGIN

/// A ForkJoin as an Eigen device: its threads share the attentions of an expression; the calling
/// thread computes the rest. Borrows the team, which must outlive it. Allocates as Eigen's
/// DefaultDevice does and gives the same bits. Does not need EIGEN_USE_THREADS.
/// \ingroup executors
class ForkJoinDevice : public Eigen::DefaultDevice {
 public:
  /// Borrows.
  explicit ForkJoinDevice(const ForkJoin& team) : team_(&team) {}
  /// \cond INTERNAL
  template <class Team>
  explicit ForkJoinDevice(const Team&&) {
    static_assert(no_such_call<Team>,
                  "mhla: a ForkJoinDevice borrows its team: give it an mhla::ForkJoin that has a "
                  "name");
  }
  /// \endcond

  /// What it was made from.
  const ForkJoin& team() const { return *team_; }

 private:
  const ForkJoin* team_ = nullptr;
};

/// \cond INTERNAL
inline ExecutorRef executor_for(const ForkJoinDevice& device) { return device.team(); }
/// \endcond

MHLA_NAMESPACE_END

namespace Eigen::internal {

// What Eigen does on a DefaultDevice, which it recognizes by exact type, not by base class. Without
// tiles: those pay off for broadcasts, which are rare around an attention.
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
