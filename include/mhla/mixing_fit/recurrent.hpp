// SPDX-License-Identifier: MIT
// Fits of a recurrent mixing to a causal matrix of M blocks, and initial matrices as recurrences,
// in closed form where there is one: for j < i
//
//     m_ij = sum_r a_ir (prod_{k = j+2..i} g_kr) b_{j+1,r}        H_i = g_i H_(i-1) + b_i S_(i-1)
//
// The diagonal is the own weights', and exact.
#pragma once

#include <cstdlib>
#include <mhla/mixing_fit/box.hpp>
#include <mhla/mixing_matrix.hpp>

MHLA_NAMESPACE_BEGIN

namespace mixing_fit {

/// m [blocks, blocks], row-major; above the diagonal whatever there is.
using CausalMatrix = TensorView<const double, 2>;

inline double largest_entry(const CausalMatrix& m) {
  double largest = 0;
  for (Index i = 0; i < m.extent[0]; ++i)
    for (Index j = 0; j <= i; ++j) largest = (std::max)(largest, (std::abs)(m(i, j)));
  return largest;
}

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
  const Index blocks = m.extent[0];
  const double scale = square_scale(largest_entry(m));
  const auto square = [&](double entry) { return entry / scale * (entry / scale); };
  Norms squares;
  std::vector<double> h(at(states * blocks));  // of H_i, the weights of S_0 to S_(i-1)
  for (Index i = 0; i < blocks; ++i) {
    const Index row = p.rows == 1 ? 0 : i;
    std::vector<double> left(&m(i, 0), &m(i, i) + 1);
    for (const double entry : left) squares.matrix += square(entry);
    left[at(i)] -= p.own(row);
    for (Index r = 0; r < states; ++r)
      for (Index j = 0; j < i; ++j) {
        double& weight = h[at(r * blocks + j)];
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
  const Index blocks = m.extent[0];
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
      : mean(at(m.extent[0])), states(num_states), least(2 * num_states) {
    for (Index d = 0; d < m.extent[0]; ++d) {
      for (Index j = 0; j + d < m.extent[0]; ++j) mean[at(d)] += m(j + d, j);
      mean[at(d)] /= static_cast<double>(m.extent[0] - d);
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
  p.own(0) = m.extent[0] == 0 ? 0 : std::clamp(fit.mean[0], weights.low, weights.high);
  std::fill_n(p.b(0), states, 1.0);
  std::vector<double> x(at(2 * states));
  for (Index r = 0; r < states; ++r) {
    x[at(r)] = std::clamp(0.0, weights.low, weights.high);
    x[at(states + r)] = spaced_decay(r, states, m.extent[0]);
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
    for (Index i = 0; i < m.extent[0]; ++i) {
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
  if (start(spaced, [&](Index r) { return spaced_decay(r, p.states, m.extent[0]); }) < error)
    p = spaced;
  for (int sweep = 2; sweep < sweeps; ++sweep) improve_recurrent(m, p, weights);
}

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
    const TensorView<double, 2> m = make_view(dense.data(), blocks, blocks);
    initialize(m, sequence(blocks), options);
    fit_each_block(m, p, {0, 1}, 100);
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
