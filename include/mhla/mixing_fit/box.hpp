// SPDX-License-Identifier: MIT
// Least squares within a box, by active sets: the step of every fit of a structured mixing.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <mhla/core/index.hpp>
#include <vector>

MHLA_NAMESPACE_BEGIN

namespace mixing_fit {

/// Where an unknown may lie.
struct Interval {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
};

/// The norms of a matrix, and of what a fit leaves of it.
struct Norms {
  double matrix = 0;
  double error = 0;

  double relative() const { return matrix == 0 ? error : error / matrix; }
};

inline std::size_t at(Index n) { return static_cast<std::size_t>(n); }

/// Lowers 1/2 x^T G x - c^T x over a box, for few unknowns and positive semidefinite G, which may
/// be singular: exponentials with neighbouring decays hardly differ.
class BoxMinimizer {
 public:
  explicit BoxMinimizer(Index unknowns)
      : normal(at(unknowns * unknowns)),
        right(at(unknowns)),
        count_(unknowns),
        factor_(at(unknowns * unknowns)),
        downhill_(at(unknowns)),
        step_(at(unknowns)),
        free_(at(unknowns)) {}

  std::vector<double> normal;  ///< G, row-major
  std::vector<double> right;   ///< c

  /// From x within the box to where no free unknown and no bound can give way; never uphill.
  template <class IntervalOf>
  void lower(double* x, const IntervalOf& interval) {
    find_downhill(x);
    for (Index r = 0; r < count_; ++r) free_[at(r)] = gives_way(r, x[r], interval(r));
    for (Index round = 0; round < 4 * count_; ++round) {
      solve();
      const double length = advance(x, interval);
      find_downhill(x);
      if (length == 1 && !release(x, interval)) return;
    }
  }

 private:
  double g(Index r, Index s) const { return normal[at(r * count_ + s)]; }
  double& l(Index r, Index s) { return factor_[at(r * count_ + s)]; }

  // c - G x
  void find_downhill(const double* x) {
    for (Index r = 0; r < count_; ++r) {
      downhill_[at(r)] = right[at(r)];
      for (Index s = 0; s < count_; ++s) downhill_[at(r)] -= g(r, s) * x[s];
    }
  }

  bool gives_way(Index r, double x, const Interval& interval) const {
    return g(r, r) > 1e-280 && (x > interval.low || downhill_[at(r)] > 0) &&
           (x < interval.high || downhill_[at(r)] < 0);
  }

  // (G + 1e-13 diag G) step = c - G x over the free unknowns, by Cholesky, with rows of the unit
  // matrix for the others: what the last term holds back, the next call makes good.
  void solve() {
    constexpr double held_back = 1e-13;
    for (Index r = 0; r < count_; ++r) {
      double sum = free_[at(r)] ? downhill_[at(r)] : 0;
      double square = g(r, r);
      for (Index s = 0; s < r; ++s) {
        double entry = free_[at(r)] && free_[at(s)] ? g(r, s) : 0;
        for (Index t = 0; t < s; ++t) entry -= l(r, t) * l(s, t);
        l(r, s) = entry / l(s, s);
        square -= l(r, s) * l(r, s);
        sum -= l(r, s) * step_[at(s)];
      }
      l(r, r) = free_[at(r)] ? std::sqrt((std::max)(square, 0.0) + held_back * g(r, r)) : 1;
      step_[at(r)] = sum / l(r, r);
    }
    for (Index r = count_; r-- > 0;) {
      for (Index s = r + 1; s < count_; ++s) step_[at(r)] -= l(s, r) * step_[at(s)];
      step_[at(r)] /= l(r, r);
    }
  }

  // As far along the step as the box allows, at most 1; the unknown that stops it is free no more.
  template <class IntervalOf>
  double advance(double* x, const IntervalOf& interval) {
    double length = 1;
    Index stopped = -1;
    for (Index r = 0; r < count_; ++r) {
      const double step = step_[at(r)];
      const double room = (step > 0 ? interval(r).high : interval(r).low) - x[r];
      if (step == 0 || length * (std::abs)(step) <= (std::abs)(room)) continue;
      length = room / step;
      stopped = r;
    }
    for (Index r = 0; r < count_; ++r)
      x[r] = std::clamp(x[r] + length * step_[at(r)], interval(r).low, interval(r).high);
    if (stopped < 0) return 1;
    x[stopped] = step_[at(stopped)] > 0 ? interval(stopped).high : interval(stopped).low;
    free_[at(stopped)] = false;
    return 0;
  }

  // Frees the unknown that gains most by leaving its bound; false if none gains more than rounding.
  template <class IntervalOf>
  bool release(const double* x, const IntervalOf& interval) {
    Index best = -1;
    double most = 0;
    for (Index r = 0; r < count_; ++r) {
      if (free_[at(r)] || !gives_way(r, x[r], interval(r))) continue;
      const double gain = downhill_[at(r)] * downhill_[at(r)] / g(r, r);
      if (gain > (std::max)(most, 1e-24 * right[at(r)] * right[at(r)] / g(r, r))) {
        best = r;
        most = gain;
      }
    }
    if (best >= 0) free_[at(best)] = true;
    return best >= 0;
  }

  Index count_;
  std::vector<double> factor_, downhill_, step_;
  std::vector<char> free_;
};

}  // namespace mixing_fit

MHLA_NAMESPACE_END
