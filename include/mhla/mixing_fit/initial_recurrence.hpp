// SPDX-License-Identifier: MIT
// Initial matrices as recurrences, every factor of which is in [0, 1]: in closed form where there
// is one, else by a fit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/mixing_fit/box.hpp>
#include <mhla/mixing_fit/recurrent.hpp>
#include <mhla/mixing_matrix.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <vector>

MHLA_NAMESPACE_BEGIN

namespace mixing_fit {

inline double ratio(Index a, Index b) { return static_cast<double>(a) / static_cast<double>(b); }

// What a state has of the matrix: m_ij = reads(i) (prod_(k = j+2..i) keeps(k)) writes(j), j < i.
// Every factor is in [0, 1].
template <class Reads, class Keeps, class Writes>
void set_state(RecurrentParameters& p, Index r, const Reads& reads, const Keeps& keeps,
               const Writes& writes) {
  for (Index i = 0; i < p.rows; ++i) {
    p.a(i)[r] = reads(i);
    p.b(i)[r] = i == 0 ? 0 : writes(i - 1);
    p.g(i)[r] = i == 0 ? 0 : keeps(i);
  }
}

inline Grid sequence(Index blocks) { return {{1, 1, blocks}, {1, 1, 1}}; }

// What distances are relative to, at least 1.
inline double largest_distance(const InitialMixing& options, Index blocks, Index i) {
  const Index farthest =
      options.max_mode == MaxMode::row ? (std::max)(i, blocks - 1 - i) : blocks - 1;
  return static_cast<double>((std::max)(farthest, Index{1}));
}
// Before normalization.
inline double weight(const InitialMixing& options, Index blocks, Index i, Index j) {
  return mixing_matrix::weight(options, i, j, static_cast<double>((std::abs)(i - j)),
                               largest_distance(options, blocks, i));
}

// The weights before normalization as a recurrence: returns how many states it takes, -1 where no
// number of them, or more than there are, would.
inline Index set_weights(const InitialMixing& options, RecurrentParameters& p) {
  const auto one = [](Index) { return 1.0; };
  const auto mean_keeps = [](Index i) { return ratio(i - 1, i); };
  const auto mean_writes = [](Index j) { return ratio(1, j + 1); };
  const auto longest = [&](Index i) { return largest_distance(options, p.rows, i); };
  switch (options.transform) {
    case Transform::causal:  // the mean of i blocks times i / (i + 1)
      set_state(
          p, 0, [](Index i) { return ratio(i, i + 1); }, mean_keeps, mean_writes);
      return 1;
    case Transform::uniform:
      set_state(p, 0, one, one, one);
      return 1;
    case Transform::identity:
      return 0;
    case Transform::exp: {
      const double decay = std::exp(-1 / options.exp_sigma);
      const auto decays = [&](Index) { return decay; };
      set_state(p, 0, one, decays, decays);
      return 1;
    }
    case Transform::linear:  // 1 - i / max + (mean of i times j) i / max
      if (p.states < 2) return -1;
      set_state(
          p, 0, [&](Index i) { return 1 - static_cast<double>(i) / longest(i); }, one, one);
      set_state(
          p, 1, [&](Index i) { return static_cast<double>(i) / longest(i); }, mean_keeps,
          [](Index j) { return ratio(j, j + 1); });
      return 2;
    case Transform::cos: {  // cos i cos j + sin i sin j
      if (p.states < 2 || options.max_mode == MaxMode::row) return -1;
      const auto angle = [&](Index i) {
        return static_cast<double>(i) / longest(i) * std::atan(1.0);
      };
      const auto cosine = [&](Index i) { return std::cos(angle(i)); };
      const auto sine = [&](Index i) { return std::sin(angle(i)); };
      set_state(p, 0, cosine, one, cosine);
      set_state(p, 1, sine, one, sine);
      return 2;
    }
    case Transform::local: {  // the last blocks in turns
      const auto past = static_cast<Index>(
          (std::min)(std::floor(options.local_threshold), static_cast<double>(p.states + 1)));
      if (past > p.states) return -1;
      for (Index r = 0; r < past; ++r) {
        const auto keeps = [&](Index i) { return (i - 1) % past == r ? 0.0 : 1.0; };
        set_state(p, r, one, keeps, [&](Index j) { return 1 - keeps(j + 1); });
      }
      return past;
    }
    case Transform::automatic:
    case Transform::gaussian:
      return -1;
  }
  return -1;
}

// The initial matrix that DenseMixing has, below its diagonal and on it.
inline void initialize_each_block(const InitialMixing& options, RecurrentParameters& p) {
  const Index blocks = p.rows;
  const Index used = set_weights(options, p);
  if (used < 0) {
    std::vector<double> dense(at(checked_mul(blocks, blocks)));
    initialize(make_view(dense.data(), blocks, blocks), sequence(blocks), options);
    fit_each_block({blocks, dense.data()}, p, {0, 1}, 100);
    return;
  }
  const NormAxis norm = mixing_matrix::resolved_axis(options, true);
  for (Index i = 0; i < blocks; ++i) {
    double sum = norm == NormAxis::none ? 1 : 0;  // of row i or column i
    for (Index n = 0; n < blocks && norm != NormAxis::none; ++n)
      sum += norm == NormAxis::row ? weight(options, blocks, i, n) : weight(options, blocks, n, i);
    p.own(i) = weight(options, blocks, i, i) / sum;
    for (Index r = 0; r < used; ++r) {
      if (norm == NormAxis::row) p.a(i)[r] /= sum;
      if (norm == NormAxis::column && i + 1 < blocks) p.b(i + 1)[r] /= sum;
    }
  }
}

// What that matrix has far from its ends, for kernels that know no end.
inline void initialize_all_blocks(const InitialMixing& options, RecurrentParameters& p) {
  const bool normalized = mixing_matrix::resolved_axis(options, true) != NormAxis::none;
  double sum = 1;  // over blocks before, after, and the own one
  double decay = 0;
  double next = 0;
  switch (options.transform) {
    case Transform::identity:
      break;
    case Transform::exp:
      decay = next = std::exp(-1 / options.exp_sigma);
      sum = (1 + decay) / (1 - decay);
      break;
    case Transform::local:
      if (options.local_threshold >= 2)
        throw ShapeError({"mhla: initialize: local_threshold is ", options.local_threshold,
                          "; one row for all blocks reaches the block before, at a distance of 1"});
      next = options.local_threshold >= 1 ? 1 : 0;
      sum = 1 + 2 * next;
      break;
    case Transform::uniform:
      if (!normalized) {
        decay = next = 1;
        break;
      }
      [[fallthrough]];
    default:
      throw ShapeError(
          "mhla: initialize: mix has one row for all blocks, so that no weight depends on how many "
          "there are: use Transform::exp, local, identity, or uniform with NormAxis::none");
  }
  const double scale = normalized ? 1 / sum : 1;
  p.own(0) = scale;
  p.a(0)[0] = scale;
  p.b(0)[0] = next;
  p.g(0)[0] = decay;
}

/// Of so many blocks, or for `rows` = 1 of any number of them. States that the matrix does not need
/// are written, each with a decay of its own, but not read.
inline RecurrentParameters initial_recurrence(InitialMixing options, Index rows, Index states) {
  mixing_matrix::require_valid(options, sequence(rows), sequence(rows));
  RecurrentParameters p(rows, states);
  for (Index r = 0; r < states; ++r)
    set_state(
        p, r, [](Index) { return 0.0; }, [&](Index) { return spaced_decay(r, states, rows); },
        [](Index) { return 1.0; });
  if (rows == 1)
    initialize_all_blocks(options, p);
  else
    initialize_each_block(options, p);
  return p;
}

}  // namespace mixing_fit

MHLA_NAMESPACE_END
