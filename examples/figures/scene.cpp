// SPDX-License-Identifier: MIT
#include "scene.hpp"

#include <Eigen/Core>
#include <cmath>
#include <cstdint>
#include <mhla/core/tensor_view.hpp>
#include <mhla/testing/random_tensor.hpp>

namespace figures {

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr Index width = 128;  // of an embedded token
constexpr int waves = 3;      // of a position, along each axis

Matrix random_matrix(std::uint64_t seed, Index rows, Index columns) {
  Matrix matrix(rows, columns);
  mhla::testing::fill_random(mhla::testing::Normal{}, seed,
                             mhla::make_view(matrix.data(), rows, columns));
  return matrix;
}

Eigen::RowVectorXd position_features(const std::array<double, 2>& place) {
  constexpr double pi = 3.141592653589793;
  Eigen::RowVectorXd features(4 * waves);
  Index feature = 0;
  for (const double along : place)
    for (int wave = 1; wave <= waves; ++wave)
      for (const double phase : {0.0, pi / 2})
        features(feature++) = std::sin(pi * wave * along + phase);
  return features;
}

}  // namespace

Scene::Thing Scene::thing(Index token) const {
  const auto [y, x] = place(token);
  const auto within_disc = [y = y, x = x](double centre_y, double centre_x) {
    return std::hypot(y - centre_y, x - centre_x) < 0.15;
  };
  if (within_disc(0.25, 0.28) || within_disc(0.7, 0.76)) return disc;
  return std::abs(y - 0.6 - 0.5 * x) < 0.06 && x < 0.6 ? band : ground;
}

mhla::testing::HostTensor<double, 4> Scene::queries(Index key_dim) const {
  const Matrix things = random_matrix(1, 3, width);
  const Matrix places = random_matrix(2, 4 * waves, width) / std::sqrt(2.0 * waves);
  Matrix x = 0.3 * random_matrix(4, tokens(), width);  // what only this token has
  for (Index t = 0; t < tokens(); ++t) {
    x.row(t) += things.row(thing(t)) + 0.45 * position_features(place(t)) * places;
    x.row(t) *= std::sqrt(static_cast<double>(width)) / x.row(t).norm();
  }
  mhla::testing::HostTensor<double, 4> q(1, 1, tokens(), key_dim);
  Eigen::Map<Matrix>(q.view().data, tokens(), key_dim) =
      x * random_matrix(3, width, key_dim) / std::sqrt(static_cast<double>(width));
  return q;
}

}  // namespace figures
