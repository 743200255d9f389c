// SPDX-License-Identifier: MIT
// Initial mixing matrices against their definitions, written out for an image of 3 x 4 blocks, and
// the projection.
#include <algorithm>
#include <cmath>
#include <mhla/mixing_matrix.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>

#include "killer.hpp"

namespace {

using killer::expect;
using mhla::Index;
using mhla::InitialMixing;
using mhla::MaxMode;
using mhla::NormAxis;
using mhla::Transform;
using Matrix = mhla::testing::HostTensor<double, 2>;

constexpr Index rows = 3;
constexpr Index columns = 4;
constexpr Index blocks = rows * columns;

bool close(double a, double b) { return std::abs(a - b) <= 1e-14; }

double distance(Index i, Index b) {
  const double down = static_cast<double>(i / columns - b / columns);
  const double right = static_cast<double>(i % columns - b % columns);
  return std::sqrt(down * down + right * right);
}

double farthest_from(Index i) {
  double farthest = 0;
  for (Index b = 0; b < blocks; ++b) farthest = std::max(farthest, distance(i, b));
  return farthest;
}

const double diagonal = std::sqrt(4.0 + 9.0);

double total(const Matrix& matrix, Index i, Index b) {
  double sum = 0;
  for (Index j = 0; j < blocks; ++j) sum += i < 0 ? matrix(j, b) : matrix(i, j);
  return sum;
}

/// The library's matrix is weight(i, b), normalized along `axis`.
template <class Weight>
void check_initial(const std::string& name, const InitialMixing& options, NormAxis axis,
                   const Weight& weight) {
  Matrix weights(blocks, blocks);
  for (Index i = 0; i < blocks; ++i)
    for (Index b = 0; b < blocks; ++b) weights(i, b) = weight(i, b);

  const mhla::Attention<mhla::Relu, mhla::Blocks2D> attention{
      .blocks = {.grid = {6, 8}, .block = {2, 2}}};
  Matrix mix(blocks, blocks);
  mhla::initialize(mix.view(), attention, options);
  for (Index i = 0; i < blocks; ++i)
    for (Index b = 0; b < blocks; ++b) {
      const double sum = axis == NormAxis::none  ? 1
                         : axis == NormAxis::row ? total(weights, i, -1)
                                                 : total(weights, -1, b);
      expect(close(mix(i, b), weights(i, b) / sum),
             name + " at " + std::to_string(i) + ", " + std::to_string(b));
    }
}

void check_initial_matrices() {
  check_initial("linear", {}, NormAxis::column,
                [](Index i, Index b) { return 1 - distance(i, b) / diagonal; });
  check_initial("linear, the paper's", {.max_mode = MaxMode::row, .norm_axis = NormAxis::row},
                NormAxis::row,
                [](Index i, Index b) { return 1 - distance(i, b) / farthest_from(i); });
  check_initial("cos", {.transform = Transform::cos}, NormAxis::column, [](Index i, Index b) {
    return std::cos(distance(i, b) / diagonal * std::acos(-1.0) / 4);
  });
  check_initial("exp", {.transform = Transform::exp}, NormAxis::column,
                [](Index i, Index b) { return std::exp(-distance(i, b) / 3); });
  check_initial("gaussian", {.transform = Transform::gaussian}, NormAxis::none,
                [](Index i, Index b) {
                  const double sigma = diagonal / 3;
                  return std::exp(-distance(i, b) * distance(i, b) / (2 * sigma * sigma));
                });
  check_initial("local", {.transform = Transform::local}, NormAxis::column,
                [](Index i, Index b) { return distance(i, b) <= 1.5 ? 1.0 : 0.0; });

  const mhla::Attention<mhla::Relu, mhla::Blocks1D> sequence{.blocks = {.block = 4}};
  Matrix causal(5, 5);
  mhla::initialize(causal.view(), sequence, {.transform = Transform::causal});
  Matrix alone(1, 1);
  mhla::initialize(alone.view(), sequence);
  expect(alone(0, 0) == 1, "a single block has weight 1");
  Matrix cross(3, 2);
  mhla::Attention<mhla::Relu, mhla::Blocks1D> crossing{.blocks = {.block = 4},
                                                       .key_blocks = {.block = 7}};
  mhla::initialize(cross.view(), crossing);
  for (Index i = 0; i < 5; ++i)
    for (Index b = 0; b < 5; ++b)
      expect(close(causal(i, b), b <= i ? 1 / static_cast<double>(i + 1) : 0), "causal");
  // Centres 1/6, 3/6, 5/6 and 1/4, 3/4, in units of a third; the largest distance is 7/12 of 3.
  for (Index i = 0; i < 3; ++i) {
    double weight[2];
    for (Index b = 0; b < 2; ++b) {
      const double apart =
          3 * std::abs((static_cast<double>(i) + 0.5) / 3 - (static_cast<double>(b) + 0.5) / 2);
      weight[b] = 1 - apart / 1.75;
    }
    for (Index b = 0; b < 2; ++b)
      expect(close(cross(i, b), weight[b] / (weight[0] + weight[1])), "between two layouts");
  }
}

void check_projection() {
  auto mix = mhla::testing::random_tensor<double>(mhla::testing::Uniform{-1, 2}, 21, 2, 5, 5);
  const auto before = mix;
  mhla::project(mix.view(), {.low = 0.125, .high = 0.75, .lower_triangle = true});
  for (Index h = 0; h < 2; ++h)
    for (Index i = 0; i < 5; ++i)
      for (Index b = 0; b < 5; ++b)
        expect(mix(h, i, b) == (b > i ? 0 : std::clamp(before(h, i, b), 0.125, 0.75)),
               "projection onto a lower triangle");
  mix = before;
  mhla::project(mix.view());
  for (std::size_t n = 0; n < mix.elements().size(); ++n)
    expect(mix.elements()[n] == std::clamp(before.elements()[n], 0.0, 1.0), "projection to [0, 1]");
}

}  // namespace

int main() {
  killer::run([] {
    check_initial_matrices();
    check_projection();
  });
}
