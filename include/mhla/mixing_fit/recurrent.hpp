// SPDX-License-Identifier: MIT
// Fits of a recurrent mixing to a causal matrix of M blocks: for j < i
//
//     m_ij = sum_r a_ir (prod_{k = j+2..i} g_kr) b_{j+1,r}        H_i = g_i H_(i-1) + b_i S_(i-1)
//
// The diagonal is the own weights', and exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/mixing_fit/box.hpp>
#include <vector>

MHLA_NAMESPACE_BEGIN

namespace mixing_fit {

/// m [blocks, blocks], row-major; above the diagonal whatever there is.
struct CausalMatrix {
  Index blocks;
  const double* entries;

  double operator()(Index i, Index j) const { return entries[i * blocks + j]; }
};

/// Rows of own | a | b | g, as in a recurrent mixing's parameters: [blocks, 3 states + 1].
struct RecurrentParameters {
  RecurrentParameters(Index rows_, Index states_)
      : rows(rows_), states(states_), values(at(rows_ * (3 * states_ + 1))) {}

  double& own(Index i) { return values[at(i * (3 * states + 1))]; }
  double* a(Index i) { return &own(i) + 1; }
  double* b(Index i) { return a(i) + states; }
  double* g(Index i) { return b(i) + states; }

  Index rows;
  Index states;
  std::vector<double> values;
};

/// The decays of `states` exponentials whose lengths, from half a block to twice the matrix, grow
/// by equal ratios.
inline double spaced_decay(Index r, Index states, Index blocks) {
  const double ratio = 4.0 * static_cast<double>((std::max)(blocks, Index{1}));
  const double place = states == 1 ? 1.0 : static_cast<double>(r) / static_cast<double>(states - 1);
  return std::exp(-2 / std::pow(ratio, place));
}

/// Of m without what lies above its diagonal. Parameters of one row are those of every block.
inline Norms recurrent_error(const CausalMatrix& m, RecurrentParameters& p) {
  const Index states = p.states;
  double largest = 0;
  for (Index i = 0; i < m.blocks; ++i)
    for (Index j = 0; j <= i; ++j) largest = (std::max)(largest, (std::abs)(m(i, j)));
  const double scale = square_scale(largest);
  const auto square = [&](double entry) { return entry / scale * (entry / scale); };
  Norms squares;
  std::vector<double> h(at(states * m.blocks));  // of H_i, the weights of S_0 to S_(i-1)
  for (Index i = 0; i < m.blocks; ++i) {
    const Index row = p.rows == 1 ? 0 : i;
    std::vector<double> left(m.entries + i * m.blocks, m.entries + i * m.blocks + i + 1);
    for (const double entry : left) squares.matrix += square(entry);
    left[at(i)] -= p.own(row);
    for (Index r = 0; r < states; ++r)
      for (Index j = 0; j < i; ++j) {
        double& weight = h[at(r * m.blocks + j)];
        weight = j == i - 1 ? p.b(row)[r] : p.g(row)[r] * weight;
        left[at(j)] -= p.a(row)[r] * weight;
      }
    for (const double entry : left) squares.error += square(entry);
  }
  return {scale * std::sqrt(squares.matrix), scale * std::sqrt(squares.error)};
}

/// A of every k, rows i >= k, and A^T A.
struct Readers {
  std::vector<std::vector<double>> rows;
  std::vector<double> squares;

  Readers(RecurrentParameters& p, Index blocks)
      : rows(at(blocks + 1)), squares(at((blocks + 1) * p.states * p.states)) {
    const Index states = p.states;
    for (Index k = blocks - 1; k > 0; --k) {
      rows[at(k)].assign(p.a(k), p.a(k) + states);
      for (Index i = k + 1; i < blocks; ++i)
        for (Index r = 0; r < states; ++r)
          rows[at(k)].push_back(p.g(k + 1)[r] * rows[at(k + 1)][at((i - k - 1) * states + r)]);
      for (Index r = 0; r < states; ++r)
        for (Index s = 0; s < states; ++s) {
          const Index n = r * states + s;
          const double later = k + 1 == blocks ? 0
                                               : p.g(k + 1)[r] * p.g(k + 1)[s] *
                                                     squares[at((k + 1) * states * states + n)];
          squares[at(k * states * states + n)] = p.a(k)[r] * p.a(k)[s] + later;
        }
    }
  }
};

/// One sweep over the blocks k, in each of which g_k, b_k and a_k in turn become the best there are
/// with everything else as it is. With A_i = a_i prod_{l = k+1..i} g_l and h_j the weight of S_j in
/// H_(k-1), the unknowns are linear:
///
///     m_ij = sum_r A_ir g_kr h_jr    i >= k, j < k - 1        m_kj = sum_r a_kr h'_jr, of H_k
///     m_ij = sum_r A_ir b_kr         i >= k, j = k - 1
///
/// and as normal matrices and right sides have recurrences of their own, it all takes
/// O(blocks^2 states) steps.
inline void improve_recurrent(const CausalMatrix& m, RecurrentParameters& p,
                              const Interval& weights) {
  const Index blocks = m.blocks;
  const Index states = p.states;
  const auto weight = [&](Index) { return weights; };
  const auto decay = [](Index) { return Interval{0, 1}; };

  const Readers readers(p, blocks);
  BoxMinimizer least(states);
  std::vector<double> written(at(blocks * states));        // sum_j m_ij h_jr
  std::vector<double> write_squares(at(states * states));  // sum_j h_jr h_js
  for (Index k = 1; k < blocks; ++k) {
    double* const g = p.g(k);
    double* const b = p.b(k);
    const double* const squares = &readers.squares[at(k * states * states)];
    std::vector<double> of_b(at(states));
    std::fill(least.right.begin(), least.right.end(), 0.0);
    for (Index i = k; i < blocks; ++i)
      for (Index r = 0; r < states; ++r) {
        const double reader = readers.rows[at(k)][at((i - k) * states + r)];
        least.right[at(r)] += reader * written[at(i * states + r)];
        of_b[at(r)] += reader * m(i, k - 1);
      }
    for (Index n = 0; n < states * states; ++n)
      least.normal[at(n)] = squares[n] * write_squares[at(n)];
    least.lower(g, decay);
    least.normal.assign(squares, squares + states * states);
    least.right = of_b;
    least.lower(b, weight);

    for (Index r = 0; r < states; ++r)
      for (Index s = 0; s < states; ++s) {
        double& square = write_squares[at(r * states + s)];
        square = g[r] * g[s] * square + b[r] * b[s];
      }
    for (Index i = k; i < blocks; ++i)
      for (Index r = 0; r < states; ++r) {
        double& sum = written[at(i * states + r)];
        sum = g[r] * sum + b[r] * m(i, k - 1);
      }
    least.normal = write_squares;
    std::copy_n(&written[at(k * states)], states, least.right.begin());
    least.lower(p.a(k), weight);
  }
}

/// Exponentials c_r g_r^(d-1) for the mean weight at every distance d; x: c | g.
struct ExponentialFit {
  std::vector<double> mean;
  Index states;
  BoxMinimizer least;

  ExponentialFit(const CausalMatrix& m, Index num_states)
      : mean(at(m.blocks)), states(num_states), least(2 * num_states) {
    for (Index d = 0; d < m.blocks; ++d) {
      for (Index j = 0; j + d < m.blocks; ++j) mean[at(d)] += m(j + d, j);
      mean[at(d)] /= static_cast<double>(m.blocks - d);
    }
  }

  /// The squared error of x; with its normal matrix and right side.
  double assess(const std::vector<double>& x, bool differentiate) {
    const auto blocks = static_cast<Index>(mean.size());
    double error = 0;
    std::vector<double> power(at(states), 1.0);  // g^(d-1)
    std::vector<double> slope(at(2 * states));
    if (differentiate) {
      std::fill(least.normal.begin(), least.normal.end(), 0.0);
      std::fill(least.right.begin(), least.right.end(), 0.0);
    }
    for (Index d = 1; d < blocks; ++d) {
      const double count = static_cast<double>(blocks - d);
      double left = mean[at(d)];
      for (Index r = 0; r < states; ++r) {
        const double c = x[at(r)];
        const double g = x[at(states + r)];
        left -= c * power[at(r)];
        slope[at(r)] = power[at(r)];
        slope[at(states + r)] =
            d == 1 ? 0 : c * static_cast<double>(d - 1) * std::pow(g, static_cast<double>(d - 2));
        power[at(r)] *= g;
      }
      error += count * left * left;
      if (!differentiate) continue;
      for (Index r = 0; r < 2 * states; ++r) {
        least.right[at(r)] += count * slope[at(r)] * left;
        for (Index s = 0; s < 2 * states; ++s)
          least.normal[at(r * 2 * states + s)] += count * slope[at(r)] * slope[at(s)];
      }
    }
    return error;
  }
};

/// The best own weight, and exponentials, by Levenberg and Marquardt's steps. b becomes 1.
inline void fit_constant(const CausalMatrix& m, RecurrentParameters& p, const Interval& weights,
                         Index sweeps) {
  const Index states = p.states;
  ExponentialFit fit(m, states);
  BoxMinimizer& least = fit.least;
  p.own(0) = m.blocks == 0 ? 0 : std::clamp(fit.mean[0], weights.low, weights.high);
  std::fill_n(p.b(0), states, 1.0);
  std::vector<double> x(at(2 * states));
  for (Index r = 0; r < states; ++r) {
    x[at(r)] = std::clamp(0.0, weights.low, weights.high);
    x[at(states + r)] = spaced_decay(r, states, m.blocks);
  }
  // The exponentials as they are to begin with, then both.
  double damping = 0;
  for (Index sweep = 0; sweep < sweeps; ++sweep) {
    const double error = fit.assess(x, true);
    if (sweep == 0)
      for (Index r = 0; r < 2 * states; ++r)
        for (Index s = 0; s < 2 * states; ++s)
          if (r >= states || s >= states) least.normal[at(r * 2 * states + s)] = 0;
    for (Index r = 0; r < 2 * states; ++r) least.normal[at(r * (2 * states + 1))] *= 1 + damping;
    // The step, not x, is the unknown.
    std::vector<double> step(at(2 * states));
    least.lower(step.data(), [&](Index r) {
      const double low = r < states ? weights.low : 0;
      const double high = r < states ? weights.high : 1;
      return Interval{low - x[at(r)], high - x[at(r)]};
    });
    std::vector<double> next = x;
    for (Index r = 0; r < 2 * states; ++r) next[at(r)] += step[at(r)];
    const bool better = fit.assess(next, false) < error;
    if (better) x = next;
    damping = sweep == 0 ? 1e-3 : better ? damping / 3 : damping * 4;
    if (damping > 1e12) break;
  }
  std::copy_n(x.data(), states, p.a(0));
  std::copy_n(x.data() + states, states, p.g(0));
}

/// Parameters for every block: sweeps from log-spaced decays or from those of the constant fit,
/// whichever two sweeps bring further.
inline void fit_each_block(const CausalMatrix& m, RecurrentParameters& p, const Interval& weights,
                           Index sweeps) {
  RecurrentParameters constant(1, p.states);
  fit_constant(m, constant, weights, 60);
  RecurrentParameters spaced = p;
  const auto start = [&](RecurrentParameters& from, const auto& decay) {
    for (Index i = 0; i < m.blocks; ++i) {
      from.own(i) = std::clamp(m(i, i), weights.low, weights.high);
      for (Index r = 0; r < p.states; ++r) {
        from.a(i)[r] = std::clamp(0.0, weights.low, weights.high);
        from.b(i)[r] = 1;
        from.g(i)[r] = decay(r);
      }
    }
    for (int sweep = 0; sweep < 2; ++sweep) improve_recurrent(m, from, weights);
    return recurrent_error(m, from).error;
  };
  const double error = start(p, [&](Index r) { return constant.g(0)[r]; });
  if (start(spaced, [&](Index r) { return spaced_decay(r, p.states, m.blocks); }) < error)
    p = spaced;
  for (int sweep = 2; sweep < sweeps; ++sweep) improve_recurrent(m, p, weights);
}

}  // namespace mixing_fit

MHLA_NAMESPACE_END
