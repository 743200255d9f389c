// SPDX-License-Identifier: MIT
// The sum of products of a column and a row that is nearest to a matrix: the leading terms of its
// singular value decomposition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/mixing_fit/box.hpp>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

MHLA_NAMESPACE_BEGIN

namespace mixing_fit {

using Vector = std::vector<double>;

inline double inner(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

inline void normalize(std::vector<Vector>& x) {
  for (Vector& vector : x) {
    const double length = std::sqrt(inner(vector, vector));
    if (length > 0)
      for (double& entry : vector) entry /= length;
  }
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

/// Rotates pairs of vectors x until every two are orthogonal (the one-sided Jacobi method).
/// `others`, as many or none, are rotated alike, so that sum_r x_r other_r^T does not change.
inline void make_orthogonal(std::vector<Vector>& x, std::vector<Vector>& others) {
  constexpr double accuracy = 1e-13;  // cosine of the angle between two vectors
  constexpr int most_sweeps = 60;     // five or six suffice
  bool rotated = true;
  for (int sweep = 0; rotated && sweep < most_sweeps; ++sweep) {
    rotated = false;
    for (std::size_t i = 0; i < x.size(); ++i)
      for (std::size_t j = i + 1; j < x.size(); ++j) {
        const double ii = inner(x[i], x[i]), jj = inner(x[j], x[j]), ij = inner(x[i], x[j]);
        if (!((std::abs)(ij) > accuracy * std::sqrt(ii) * std::sqrt(jj))) continue;
        rotated = true;
        const double cotangent = (jj - ii) / (2 * ij);  // of twice the angle
        const double tangent =
            std::copysign(1 / ((std::abs)(cotangent) + std::hypot(1.0, cotangent)), cotangent);
        rotate(x[i], x[j], tangent);
        if (!others.empty()) rotate(others[i], others[j], tangent);
      }
  }
}

/// Terms columns_r rows_r^T of a sum.
struct Products {
  std::vector<Vector> columns;
  std::vector<Vector> rows;
};

// columns_r = m rows_r
inline void multiply(const Vector& m, Products& p) {
  for (std::size_t r = 0; r < p.rows.size(); ++r)
    for (std::size_t i = 0; i < p.columns[r].size(); ++i)
      p.columns[r][i] = std::inner_product(p.rows[r].begin(), p.rows[r].end(),
                                           m.data() + i * p.rows[r].size(), 0.0);
}

// rows_r = m^T columns_r
inline void multiply_transposed(const Vector& m, Products& p) {
  for (std::size_t r = 0; r < p.rows.size(); ++r) {
    Vector& row = p.rows[r];
    std::fill(row.begin(), row.end(), 0.0);
    for (std::size_t i = 0; i < p.columns[r].size(); ++i)
      for (std::size_t j = 0; j < row.size(); ++j)
        row[j] += p.columns[r][i] * m[i * row.size() + j];
  }
}

// Sorts products, the largest first; returns the sum of the squares of the first `count`.
inline double sort(Products& p, std::size_t count) {
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t r = 0; r < p.rows.size(); ++r)
    order.emplace_back(-inner(p.rows[r], p.rows[r]), r);
  std::sort(order.begin(), order.end());
  Products sorted;
  double sum = 0;
  for (const auto& [square, r] : order) {
    if (sorted.rows.size() < count) sum -= square;
    sorted.columns.push_back((std::move)(p.columns[r]));
    sorted.rows.push_back((std::move)(p.rows[r]));
  }
  p = (std::move)(sorted);
  return sum;
}

/// At least `terms` products a_r b_r^T, or as many as m [rows, cols], row-major, can have; the sum
/// of the leading ones is nearest to m in squares. Found by power iteration of some more vectors.
inline Products nearest_products(const Vector& m, Index rows, Index cols, Index terms) {
  constexpr int most_steps = 500;
  constexpr double least_gain = 1e-15;  // a step with a smaller gain is the last
  const std::size_t kept = at((std::min)({2 * terms + 24, rows, cols}));

  Products p{std::vector<Vector>(kept, Vector(at(rows))), std::vector<Vector>(kept)};
  std::minstd_rand random(1);  // has a part in every direction
  for (Vector& row : p.rows)
    for (Index j = 0; j < cols; ++j)
      row.push_back(static_cast<double>(random()) / static_cast<double>((random.max)()) - 0.5);
  std::vector<Vector> none;
  double before = 0;
  for (int step = 0; step < most_steps; ++step) {
    make_orthogonal(p.rows, none);
    normalize(p.rows);
    multiply(m, p);
    make_orthogonal(p.columns, none);
    normalize(p.columns);
    multiply_transposed(m, p);
    make_orthogonal(p.rows, p.columns);
    const double now = sort(p, at(terms));
    if (!(now > before * (1 + least_gain))) break;
    before = now;
  }
  return p;
}

}  // namespace mixing_fit

MHLA_NAMESPACE_END
