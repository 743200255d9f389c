// SPDX-License-Identifier: MIT
// Training: a step's examples are shared out over threads, and their gradient moves the parameters.
// Results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mhla/fork_join.hpp>
#include <vector>

#include "../layers/adamw.hpp"
#include "draws.hpp"
#include "scalar.hpp"

namespace training {

/// How good predictions are.
struct Score {
  double loss = 0;  ///< summed over the predictions
  Index predictions = 0;
  Index right = 0;

  double mean_loss() const { return loss / static_cast<double>(predictions); }
  double accuracy() const { return static_cast<double>(right) / static_cast<double>(predictions); }
  Score& operator+=(const Score& other) {
    loss += other.loss;
    predictions += other.predictions;
    right += other.right;
    return *this;
  }
};

/// A model and what it learns: numbered examples of two parts. Those of training never end, and
/// hold equally many predictions.
class Task {
 public:
  /// What `score` keeps from call to call: its memory.
  struct Scratch {
    virtual ~Scratch() = default;
  };

  virtual ~Task() = default;
  virtual const ParameterList& parameters() const = 0;
  virtual Values initial_values(std::uint64_t seed) const = 0;
  /// Keeps values where they may be, after an update.
  virtual void project(Values& values) const = 0;
  virtual Index predictions_per_example() const = 0;
  virtual Index validation_examples() const = 0;  ///< how many there are to judge by
  virtual std::unique_ptr<Scratch> scratch() const = 0;
  /// Of examples [first, last). Where `gradient` is not null it becomes that of `weight` times the
  /// summed loss.
  virtual Score score(const Values& values, Part part, Index first, Index last, Scratch& scratch,
                      Scalar weight, Values* gradient) const = 0;
};

struct Schedule {
  Index steps = 300;  ///< updates of the parameters
  Index batch = 8;    ///< examples in each
  double rate = 0.006;
  std::uint64_t seed = 1;
};

class Trainer {
 public:
  Trainer(const Task& task, const Schedule& schedule, const mhla::ForkJoin& threads);

  const Values& values() const { return values_; }

  /// One update. Returns the mean loss before it.
  double step();
  Score validate();

 private:
  static constexpr Index examples_at_once = 32;
  static constexpr Index most_shares = 8;  // whatever the number of threads

  struct Share {
    std::unique_ptr<Task::Scratch> scratch;
    Values gradient;
    Score score;
  };

  /// The score of examples and, wanted, the gradient of weight times their loss, in the shares.
  Score over(Part part, Index first, Index last, Scalar weight, bool with_gradient);

  const Task& task_;
  Schedule schedule_;
  const mhla::ForkJoin& threads_;
  Values values_;
  layers::AdamW<Scalar> adam_;
  std::vector<Share> shares_;
  std::size_t shares_in_use_ = 0;
  Index step_ = 0;
};

}  // namespace training
