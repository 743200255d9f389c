// SPDX-License-Identifier: MIT
// How one launch runs summaries, mixing and readout of all units. Work is cut into tickets, which
// thread blocks take in order, so that what a ticket waits for was taken before it:
//
//   step 0:  summaries of units 0, 1, ..
//   step 1:  summaries of the next units, mixing of the first
//   step 2:  summaries of the next, mixing of the second, readout of the first
//   ...
//
// A step has about as many tickets as there are resident thread blocks. So what a ticket waits for
// was taken about a step before, by blocks that are done by now, and summaries are read while they
// are still in L2: memory is reused after a few steps. Needs no CUDA header, so that a plan and a
// cost model can use it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/fused/block_mixing.hpp>
#include <mhla/cuda/fused/tile_shape.hpp>
#include <string>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

enum class UnitStage { summarize, mix, read_out };
inline constexpr int unit_stages = 3;

/// Number of parts of each stage of a unit.
struct UnitParts {
  Index count[std::size_t{unit_stages}];

  Index all() const { return checked_add(count[0], checked_add(count[1], count[2])); }
};

/// A thread block's next work: the n-th part of a stage of a unit.
struct Ticket {
  UnitStage stage;
  int unit;
  int part;
};

struct UnitSchedule {
  int units;
  int parts[std::size_t{unit_stages}];  // of a unit's stage
  int of_step;                          // units per stage and step

  /// Enough units per step for `blocks` thread blocks.
  UnitSchedule(Index all_units, const UnitParts& of_stages, Index blocks) {
    if (!counts(all_units, of_stages))
      throw ShapeError("mhla: ", all_units,
                       " heads of the batch are more than one launch can have");
    units = static_cast<int>(all_units);
    for (int stage = 0; stage < unit_stages; ++stage)
      parts[stage] = static_cast<int>(of_stages.count[stage]);
    of_step = static_cast<int>(std::max(Index{1}, ceil_div(blocks, of_stages.all())));
  }
  /// Whether tickets can be numbered. (Every thread block takes one more number at the end.)
  static bool counts(Index all_units, const UnitParts& of_stages) {
    return all_units <= max_tickets / of_stages.all();
  }
  static constexpr Index max_tickets = std::numeric_limits<int>::max() / 2;

  MHLA_HOST_DEVICE int of_unit() const { return parts[0] + parts[1] + parts[2]; }
  MHLA_HOST_DEVICE int tickets() const { return units * of_unit(); }
  /// Units whose summaries are in memory at the same time: those of the three steps that use them,
  /// and of one more, to make waiting rare.
  Index places() const { return std::min(Index{units}, Index{4} * of_step); }

  MHLA_HOST_DEVICE Ticket ticket(int number) const {
    int step =
        number / (of_step * of_unit());  // or a later one, since the first and last are shorter
    while (before(step + 1) <= number) ++step;
    int part = number - before(step);
    for (int stage = 0;; ++stage) {
      const int first = begun(step - stage);
      const int of_stage = (begun(step - stage + 1) - first) * parts[stage];
      if (part < of_stage)
        return {static_cast<UnitStage>(stage), first + part / parts[stage], part % parts[stage]};
      part -= of_stage;
    }
  }

 private:
  /// Units that have completed a stage before its `step`-th step.
  MHLA_HOST_DEVICE int begun(int step) const {
    if (step <= 0) return 0;
    return step > units / of_step ? units : step * of_step;
  }
  /// Tickets before a step.
  MHLA_HOST_DEVICE int before(int step) const {
    return begun(step) * parts[0] + begun(step - 1) * parts[1] + begun(step - 2) * parts[2];
  }
};

/// The parts of mixing in one launch: stretches of this many panels of summaries, for which the
/// matrix is read once, and slices of this many columns of key sums.
inline constexpr Index panels_of_stretch = 16;
constexpr int key_sum_slice(int key_dim) { return value_slice(key_dim, 32); }

inline Index mixing_stretches(const MixingShape& shape) {
  return ceil_div(Index{MixingWork(shape, false).panels}, panels_of_stretch);
}

/// Bytes that mixing in one launch moves.
inline MovedBytes mix_in_stretches_bytes(const MixingShape& shape) {
  return MixingWork(shape, false).bytes(1, 1, shape.units * mixing_stretches(shape));
}
inline MovedBytes mix_key_sums_bytes(const MixingShape& shape, Index key_dim) {
  const MixingWork work(shape, false);
  const Index sums = shape.units * key_dim * Index{sizeof(float)};
  // An element of the matrix for every four columns.
  return {sums * shape.key_blocks + sums / 4 * work.coefficients(), sums * shape.query_blocks};
}

}  // namespace cuda::fused

MHLA_NAMESPACE_END
