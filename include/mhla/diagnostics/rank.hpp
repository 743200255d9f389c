// SPDX-License-Identifier: MIT
// Numerical rank and effective rank of an attention matrix, from its singular values
// (arXiv 2601.07832, figure 3b, shows both collapse in linear attention).
#pragma once

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <Eigen/Householder>
#include <limits>
#include <mhla/diagnostics/attention_matrix.hpp>

MHLA_NAMESPACE_BEGIN
namespace diagnostics {

/// The singular values of a matrix, computed in double, and its ranks. The rank does not depend on
/// whether rows were normalized. O(rows * columns * min(rows, columns)) time. For a matrix with NaN
/// or infinity every singular value and the effective rank are NaN, and the rank is 0.
/// \ingroup diagnostics
class Spectrum {
 public:
  /// Of matrix [rows, columns]. \throws ShapeError if no tensor has these extents.
  template <class T>
  explicit Spectrum(const TensorView<T, 2>& matrix)
      : longer_side_(matrix.extent[0] < matrix.extent[1] ? matrix.extent[1] : matrix.extent[0]) {
    require_tensor("matrix", {{"rows", matrix.extent[0]}, {"columns", matrix.extent[1]}});
    const Index values = matrix.extent[0] < matrix.extent[1] ? matrix.extent[0] : matrix.extent[1];
    if (values == 0) return;
    Eigen::MatrixXd copy(matrix.extent[0], matrix.extent[1]);
    for (Index i = 0; i < matrix.extent[0]; ++i)
      for (Index j = 0; j < matrix.extent[1]; ++j) copy(i, j) = static_cast<double>(matrix(i, j));
    if (!copy.allFinite()) {
      values_.assign(static_cast<std::size_t>(values), std::numeric_limits<double>::quiet_NaN());
      return;
    }
    const double scale = square_scale(copy.cwiseAbs().maxCoeff());
    copy /= scale;
    const Eigen::VectorXd bidiagonal =
        copy.rows() < copy.cols() ? bidiagonalized(copy.transpose()) : bidiagonalized(copy);
    // The singular values of a bidiagonal matrix, and their negatives, are the eigenvalues of a
    // tridiagonal one: a zero diagonal, and beside it d_1, f_1, d_2, f_2, ... (Golub and Kahan).
    Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver;
    solver.computeFromTridiagonal(Eigen::VectorXd::Zero(bidiagonal.size() + 1), bidiagonal,
                                  Eigen::EigenvaluesOnly);
    for (Index i = 0; i < values; ++i)
      values_.push_back(scale * (std::max)(0.0, solver.eigenvalues()[2 * values - 1 - i]));
  }

  /// min(rows, columns) values, the largest first.
  const std::vector<double>& singular_values() const { return values_; }

  /// `rank()` takes singular values below this fraction of the largest for rounding errors: what a
  /// matrix computed in float can resolve (the default of common tensor frameworks).
  double default_tolerance() const {
    return static_cast<double>(longer_side_) *
           static_cast<double>(std::numeric_limits<float>::epsilon());
  }

  /// Numerical rank: the number of singular values above `relative_tolerance` times the largest.
  /// \throws ShapeError unless relative_tolerance is 0 or more.
  Index rank(double relative_tolerance) const {
    require_not_negative("relative_tolerance", relative_tolerance);
    Index count = 0;
    for (const double value : values_) count += value > relative_tolerance * values_.front();
    return count;
  }
  /// rank(default_tolerance())
  Index rank() const { return rank(default_tolerance()); }

  /// exp(H(p)), p the singular values divided by their sum, H the entropy in nats: k for k equal
  /// singular values, 0 for a zero matrix.
  double effective_rank() const {
    if (values_.empty() || values_.front() == 0) return 0;
    const double entropy =
        entropy_of(static_cast<Index>(values_.size()), values_.front(),
                   [&](Index j) { return values_[static_cast<std::size_t>(j)]; });
    return std::exp(entropy);
  }

 private:
  // d_1, f_1, d_2, f_2, ..., d_n: diagonal and upper diagonal of the bidiagonal matrix with the
  // singular values of a [rows, n], rows >= n. Without the factors it is a tenth of the code of an
  // SVD, which takes 16 s to compile.
  static Eigen::VectorXd bidiagonalized(Eigen::MatrixXd a) {
    const Index rows = a.rows();
    const Index cols = a.cols();
    Eigen::VectorXd bidiagonal(2 * cols - 1);
    Eigen::VectorXd reflector(rows);
    Eigen::VectorXd workspace(rows);
    for (Index i = 0; i < cols; ++i) {
      double tau;
      auto below = reflector.head(rows - i - 1);
      a.col(i).tail(rows - i).makeHouseholder(below, tau, bidiagonal[2 * i]);
      a.bottomRightCorner(rows - i, cols - i - 1)
          .applyHouseholderOnTheLeft(below, tau, workspace.data());
      if (i + 1 == cols) break;
      auto right = reflector.head(cols - i - 2);
      a.row(i).tail(cols - i - 1).transpose().makeHouseholder(right, tau, bidiagonal[2 * i + 1]);
      a.bottomRightCorner(rows - i - 1, cols - i - 1)
          .applyHouseholderOnTheRight(right, tau, workspace.data());
    }
    return bidiagonal;
  }

  Index longer_side_ = 0;
  std::vector<double> values_;
};

}  // namespace diagnostics
MHLA_NAMESPACE_END
