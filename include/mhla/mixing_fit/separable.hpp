// SPDX-License-Identifier: MIT
// Fits of a separable mixing to a matrix m between the blocks of two layouts:
//
//     m = sum_r F_r0 x F_r1 x F_r2        F_ra [query blocks, key blocks] along axis a
//
// by alternating least squares over the axes, one more term at a time; with two axes and unbounded
// entries, by the singular values of m with its axes regrouped (the nearest sum of Kronecker
// products).
#pragma once

#include <mhla/mixing_fit/box.hpp>
#include <mhla/policy/mixing.hpp>
#include <numeric>
#include <random>
#include <utility>

MHLA_NAMESPACE_BEGIN

namespace mixing_fit {

using Vector = std::vector<double>;

inline double inner(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// (a, b) = (cosine (a - tangent b), cosine (b + tangent a))
inline void rotate(Vector& a, Vector& b, double tangent) {
  const double cosine = 1 / std::hypot(1.0, tangent);
  for (std::size_t n = 0; n < a.size(); ++n) {
    const double old = a[n];
    a[n] = cosine * (old - tangent * b[n]);
    b[n] = cosine * (b[n] + tangent * old);
  }
}

/// Rotates pairs of vectors x until every two are orthogonal, and the longest first (the one-sided
/// Jacobi method). `others` are rotated alike, so that sum_r x_r other_r^T does not change.
inline void make_orthogonal(std::vector<Vector>& x, std::vector<Vector>& others) {
  constexpr double accuracy = 1e-13;  // cosine of the angle between two vectors
  constexpr int most_sweeps = 60;     // five or six suffice
  bool rotated = true;
  for (int sweep = 0; rotated && sweep < most_sweeps; ++sweep) {
    rotated = false;
    for (std::size_t i = 0; i < x.size(); ++i)
      for (std::size_t j = i + 1; j < x.size(); ++j) {
        double ii = inner(x[i], x[i]), jj = inner(x[j], x[j]), ij = inner(x[i], x[j]);
        if (ii < jj) {
          (std::swap)(ii, jj);
          (std::swap)(x[i], x[j]);
          (std::swap)(others[i], others[j]);
        }
        if (!((std::abs)(ij) > accuracy * std::sqrt(ii) * std::sqrt(jj))) continue;
        rotated = true;
        const double cotangent = (jj - ii) / (2 * ij);  // of twice the angle
        const double tangent =
            std::copysign(1 / ((std::abs)(cotangent) + std::hypot(1.0, cotangent)), cotangent);
        rotate(x[i], x[j], tangent);
        rotate(others[i], others[j], tangent);
      }
  }
}

/// Terms columns_r rows_r^T of a sum.
struct Products {
  std::vector<Vector> columns;
  std::vector<Vector> rows;
};

/// At least `terms` products, or as many as m [rows, cols], row-major, can have, the largest first;
/// the sum of the leading ones is nearest to m in squares: the leading terms of its singular value
/// decomposition. Found by power iteration of some more vectors.
inline Products nearest_products(const Vector& m, Index rows, Index cols, Index terms) {
  constexpr int most_steps = 500;
  constexpr double least_gain = 1e-15;  // a step with a smaller gain is the last
  const std::size_t kept = at((std::min)({2 * terms + 24, rows, cols}));

  Products p{std::vector<Vector>(kept, Vector(at(rows))), std::vector<Vector>(kept)};
  std::minstd_rand random(1);  // has a part in every direction
  for (Vector& row : p.rows)
    for (Index j = 0; j < cols; ++j)
      row.push_back(static_cast<double>(random()) / static_cast<double>((random.max)()) - 0.5);
  double before = 0;
  for (int step = 0; step < most_steps; ++step) {
    for (std::size_t r = 0; r < kept; ++r)  // columns_r = m rows_r
      for (Index i = 0; i < rows; ++i)
        p.columns[r][at(i)] =
            std::inner_product(p.rows[r].begin(), p.rows[r].end(), m.data() + i * cols, 0.0);
    make_orthogonal(p.columns, p.rows);
    for (std::size_t r = 0; r < kept; ++r) {  // rows_r = m^T columns_r, columns_r of length 1
      Vector& row = p.rows[r];
      row.assign(at(cols), 0.0);
      const double length = std::sqrt(inner(p.columns[r], p.columns[r]));
      for (Index i = 0; i < rows; ++i) {
        double& entry = p.columns[r][at(i)];
        if (length > 0) entry /= length;
        for (Index j = 0; j < cols; ++j) row[at(j)] += entry * m[at(i * cols + j)];
      }
    }
    make_orthogonal(p.rows, p.columns);
    double now = 0;
    for (std::size_t r = 0; r < (std::min)(kept, at(terms)); ++r)
      now += inner(p.rows[r], p.rows[r]);
    if (!(now > before * (1 + least_gain))) break;
    before = now;
  }
  return p;
}

class SeparableFit {
 public:
  /// Of m [query blocks, key blocks], row-major. `projected`: only factors in [0, 1], of entries
  /// that are at most 1 as well.
  SeparableFit(const MixingLayout& layout, Vector m, Index terms, bool projected)
      : layout_(layout),
        m_((std::move)(m)),
        weights_{projected ? 0 : -infinity, infinity},
        sum_(m_.size()) {
    double largest = 0;
    for (const double entry : m_) largest = (std::max)(largest, (std::abs)(entry));
    scale_ = square_scale(largest);
    for (double& entry : m_) entry /= scale_;
    norm_ = std::sqrt(inner(m_, m_));
    for (int axis = 0; axis < 3; ++axis)
      factors_[axis].assign(at(terms * factor_size(axis)), axis < 3 - layout.rank ? 1 : 0);
    for (Index r = 0; r < terms; ++r) start_unused(r);
    const int axis_of_one = single_block_axis();
    if (!projected && axis_of_one >= 0)
      find_nearest(terms, axis_of_one);
    else
      alternate(terms);
    for (Index r = 0; r < terms_; ++r) balance(r);
    if (projected) round_to([](double x) { return (std::min)(x, 1.0); });
  }

  /// The norm of m, and of what the terms leave of it.
  Norms norms() { return {scale_ * norm_, scale_ * error_now(scale_)}; }

  /// Rows of the terms' factors, as in a separable mixing's parameters.
  Vector parameters() const {
    Vector all;
    const auto terms = static_cast<Index>(factors_[0].size()) / factor_size(0);
    for (Index r = 0; r < terms; ++r)
      for (int axis = 3 - layout_.rank; axis < 3; ++axis) {
        const auto first = factors_[axis].begin() + r * factor_size(axis);
        all.insert(all.end(), first, first + factor_size(axis));
      }
    return all;
  }

  /// Replaces every entry x of a factor by round(x).
  template <class Round>
  void round_to(const Round& round) {
    for (Vector& factors : factors_)
      std::transform(factors.begin(), factors.end(), factors.begin(), round);
  }

 private:
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  static constexpr int sweeps = 500;            // after each new term
  static constexpr double least_gain = 1e-5;    // a sweep with a smaller gain is the last
  static constexpr double least_error = 1e-13;  // relative to the norm; below it no term is added

  // An axis with one query block and one key block, so that two axes remain. -1 if there is none.
  int single_block_axis() const {
    for (int axis = 0; axis < 3; ++axis)
      if (factor_size(axis) == 1) return axis;
    return -1;
  }

  // Finds the factors with the least error for the two axes other than `one`.
  void find_nearest(Index terms, int one) {
    const int a = one == 0 ? 1 : 0;
    const int b = one == 2 ? 1 : 2;
    Vector regrouped(m_.size());
    for_each_entry([&](Index n, const Index* place) {
      regrouped[at(place[a] * factor_size(b) + place[b])] = m_[at(n)];
    });
    const Products nearest = nearest_products(regrouped, factor_size(a), factor_size(b), terms);
    while (terms_ < (std::min)(terms, static_cast<Index>(nearest.rows.size())) &&
           error_now(1) > least_error * norm_) {
      const Index r = terms_++;
      *entries(r, one) = 1;
      std::copy(nearest.columns[at(r)].begin(), nearest.columns[at(r)].end(), entries(r, a));
      std::copy(nearest.rows[at(r)].begin(), nearest.rows[at(r)].end(), entries(r, b));
    }
  }

  void alternate(Index terms) {
    double error = error_now(1);
    while (terms_ < terms && error > least_error * norm_) {
      start(terms_++);
      for (int sweep = 0; sweep < 10; ++sweep)
        for (int axis = 3 - layout_.rank; axis < 3; ++axis) improve(axis, terms_ - 1, sum_.data());
      for (int sweep = 0; sweep < sweeps; ++sweep) {
        for (int axis = 3 - layout_.rank; axis < 3; ++axis) improve(axis, 0, m_.data());
        const double before = error;
        error = error_now(1);
        if (!(error < (1 - least_gain) * before) && sweep > 0) break;
      }
    }
  }

  Index factor_size(int axis) const { return layout_.queries[axis] * layout_.keys[axis]; }
  double* entries(Index r, int axis) { return factors_[axis].data() + r * factor_size(axis); }

  // Calls f(n, place) for every entry n of m; place[a] is where the factors of axis a have theirs.
  template <class F>
  void for_each_entry(const F& f) const {
    const Index* const q = layout_.queries;
    const Index* const k = layout_.keys;
    Index n = 0;
    for (Index i0 = 0; i0 < q[0]; ++i0)
      for (Index i1 = 0; i1 < q[1]; ++i1)
        for (Index i2 = 0; i2 < q[2]; ++i2)
          for (Index j0 = 0; j0 < k[0]; ++j0)
            for (Index j1 = 0; j1 < k[1]; ++j1)
              for (Index j2 = 0; j2 < k[2]; ++j2) {
                const Index place[] = {i0 * k[0] + j0, i1 * k[1] + j1, i2 * k[2] + j2};
                f(n++, place);
              }
  }

  // The norm of m - sum_, as the factors are now; their products are `scale` times m's.
  double error_now(double scale) {
    sum_ = m_;
    for (Index r = 0; r < terms_; ++r) {
      const double* const f[] = {entries(r, 0), entries(r, 1), entries(r, 2)};
      for_each_entry([&](Index n, const Index* place) {
        sum_[at(n)] -= f[0][place[0]] * f[1][place[1]] * f[2][place[2]] / scale;
      });
    }
    return std::sqrt(inner(sum_, sum_));
  }

  // A term that is 0 by its last factor alone, so that training can make use of it; no two of them
  // alike.
  void start_unused(Index r) {
    for (int axis = 3 - layout_.rank; axis < 2; ++axis)
      for (Index i = 0; i < layout_.queries[axis]; ++i)
        for (Index j = 0; j < layout_.keys[axis]; ++j)
          entries(r, axis)[i * layout_.keys[axis] + j] =
              std::exp(-static_cast<double>((r + 1) * (std::abs)(i - j)));
  }

  // The lines of what is left through its largest entry.
  void start(Index r) {
    const auto excess = [&](Index n) {
      return weights_.low < 0 ? (std::abs)(sum_[at(n)]) : sum_[at(n)];
    };
    Index best = 0;
    Index through[3] = {};
    for_each_entry([&](Index n, const Index* place) {
      if (!(excess(n) > excess(best))) return;
      best = n;
      std::copy_n(place, 3, through);
    });
    for_each_entry([&](Index n, const Index* place) {
      for (int axis = 3 - layout_.rank; axis < 3; ++axis) {
        bool on_line = true;
        for (int other = 0; other < 3; ++other)
          on_line = on_line && (other == axis || place[other] == through[other]);
        if (on_line)
          entries(r, axis)[place[axis]] = std::clamp(sum_[at(n)], weights_.low, weights_.high);
      }
    });
  }

  // The best factors of one axis, of the terms from `first` on, for what is to be their sum: for
  // each of their entries n_a, unknowns F_ra[n_a] with
  //
  //     G_rs = product over the other axes of F_r . F_s    c_r = sum m (product of F_r's entries)
  void improve(int axis, Index first, const double* m) {
    const Index count = terms_ - first;
    const Index size = factor_size(axis);
    const int others[] = {axis == 0 ? 1 : 0, axis == 2 ? 1 : 2};
    BoxMinimizer least(count);
    Vector right(at(count * size));
    for (Index r = 0; r < count; ++r) {
      const double* const f = entries(first + r, others[0]);
      const double* const g = entries(first + r, others[1]);
      for (Index s = 0; s < count; ++s) {
        double& product = least.normal[at(r * count + s)];
        product = 1;
        for (const int other : others)
          product *= std::inner_product(entries(first + r, other), entries(first + r + 1, other),
                                        entries(first + s, other), 0.0);
      }
      double* const of_term = &right[at(r * size)];
      for_each_entry([&](Index n, const Index* place) {
        of_term[place[axis]] += m[n] * f[place[others[0]]] * g[place[others[1]]];
      });
    }
    Vector x(at(count));
    for (Index n = 0; n < size; ++n) {
      for (Index r = 0; r < count; ++r) {
        x[at(r)] = entries(first + r, axis)[n];
        least.right[at(r)] = right[at(r * size + n)];
      }
      least.lower(x.data(), [&](Index) { return weights_; });
      for (Index r = 0; r < count; ++r) entries(first + r, axis)[n] = x[at(r)];
    }
  }

  // Makes the largest entries of a term's factors equally large, of m as it was given.
  void balance(Index r) {
    double product = 1;
    double largest[3] = {1, 1, 1};
    for (int axis = 3 - layout_.rank; axis < 3; ++axis) {
      largest[axis] = 0;
      for (Index n = 0; n < factor_size(axis); ++n)
        largest[axis] = (std::max)(largest[axis], (std::abs)(entries(r, axis)[n]));
      product *= largest[axis];
    }
    if (product == 0) return;
    const double common = std::pow(product * scale_, 1.0 / layout_.rank);
    for (int axis = 3 - layout_.rank; axis < 3; ++axis)
      for (Index n = 0; n < factor_size(axis); ++n) entries(r, axis)[n] *= common / largest[axis];
  }

  MixingLayout layout_;
  Vector m_;  // divided by scale_
  Interval weights_;
  double scale_ = 1;
  double norm_ = 0;
  Vector sum_;
  Vector factors_[3];  // [terms, factor_size(axis)]
  Index terms_ = 0;
};

}  // namespace mixing_fit

MHLA_NAMESPACE_END
