// SPDX-License-Identifier: MIT
// The attacks, each of which draws what it does, and what they share.
#pragma once

#include <string>

#include "tests/fuzz/case.hpp"
#include "tests/variants/executor.hpp"

namespace fuzz {

/// What the attacks of one kind came to.
struct Tally {
  long calls = 0;     ///< of the library
  long elements = 0;  ///< of results that were compared
  long unjudged = 0;  ///< of results that were not: all rounding, beyond their format, or few terms
  double worst = 0;   ///< error as a share of its bound, in float and double
};

/// The library did what it should not.
struct Failure {
  std::string what;
};
[[noreturn]] inline void fail(const std::string& what) { throw Failure{what}; }

/// What is being attacked, for whoever reads about a failure or a crash.
extern std::string situation;

/// Throws Failure where an element is further from `expected` than its bound. `results` began as
/// `initial`, if that is given.
void require_near(const char* name, Scalar scalar, const Dense<double>& results,
                  const Dense<Estimate>& expected, const Dense<double>* initial, Tally& tally);
/// Throws Failure where the RMS error, relative to that of `expected`, is above a bound of
/// Precision::fast.
void require_rms(const char* name, const Dense<double>& results, const Dense<Estimate>& expected,
                 const Dense<double>* initial, double bound);
/// Throws Failure unless all elements have the same bits.
void require_same_bits(const std::string& what, const Dense<double>& results,
                       const Dense<double>& expected);

/// An executor: the calling thread, slots in random order, or a team of threads.
class AnyExecutor {
 public:
  AnyExecutor() = default;  ///< the calling thread
  explicit AnyExecutor(Draw& draw);

  mhla::Index num_slots() const { return slots_; }
  void parallel_for(mhla::Index tasks, const mhla::TaskRef& task) const;

 private:
  mhla::Index slots_ = 1;
  bool threads_ = false;
  std::uint64_t seed_ = 0;
};

/// Calls with workspaces of exactly the size that the library asks for; throw Failure where they
/// write anything but their results.
void run_forward(const Entry& entry, Placed& placed, const AnyExecutor& executor, State* save,
                 Tally& tally);
void run_backward(const Entry& entry, Placed& placed, const AnyExecutor& executor,
                  const State* saved, Tally& tally);

void attack_forward(Draw& draw, Tally& tally);
void attack_backward(Draw& draw, Tally& tally);
void attack_decoder(Draw& draw, Tally& tally);
/// Only where the program is linked with mhla_replay's variants.
void attack_files(Draw& draw, Tally& tally);

}  // namespace fuzz
