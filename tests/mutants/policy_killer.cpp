// SPDX-License-Identifier: MIT
// Feature maps, block geometries and rotations, which the oracle shares with the backend, against
// formulas written out here; derivatives against central differences; views.
#include <cmath>
#include <limits>
#include <mhla/core/tensor_view.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/rotation.hpp>
#include <mhla/testing/gradient_check.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <vector>

#include "killer.hpp"

namespace {

using killer::expect;
using mhla::Index;
using mhla::Span;
using mhla::testing::HostTensor;
using Row = std::vector<double>;

Span<const double> span(const Row& row) { return {row.data(), static_cast<Index>(row.size())}; }
Span<double> span(Row& row) { return {row.data(), static_cast<Index>(row.size())}; }

bool close(double a, double b) { return std::abs(a - b) <= 1e-14 * (1 + std::abs(b)); }

double sum(const Row& row) {
  double total = 0;
  for (const double x : row) total += x;
  return total;
}

/// phi of a row, as the library has it.
template <class Map>
Row features(const Map& map, const Row& in) {
  Row out(static_cast<std::size_t>(mhla::feature_dim(map, static_cast<Index>(in.size()))));
  if constexpr (mhla::RowwiseFeatureMap<Map>) {
    map.value(span(in), span(out));
  } else {
    for (std::size_t c = 0; c < in.size(); ++c) out[c] = map.value(in[c]);
  }
  return out;
}

/// J(in)^T grad.
template <class Map>
Row adjoint(const Map& map, const Row& in, const Row& grad) {
  Row out(in.size());
  if constexpr (mhla::RowwiseFeatureMap<Map>) {
    map.vjp(span(in), span(grad), span(out));
  } else {
    for (std::size_t c = 0; c < in.size(); ++c) out[c] = map.derivative(in[c]) * grad[c];
  }
  return out;
}

/// phi(x) is `formula(x)` for 5 random elements, and its adjoint is that of its derivative.
template <class Map, class Formula>
void check_feature_map(const std::string& name, const Map& map, const Formula& formula) {
  auto x = mhla::testing::random_tensor<double>(mhla::testing::AwayFromKink{}, 11, 5);
  const Row value = features(map, x.elements());
  const Row expected = formula(x.elements());
  expect(value.size() == expected.size(), name + " has the right number of features");
  for (std::size_t c = 0; c < value.size(); ++c)
    expect(close(value[c], expected[c]), name + ": feature " + std::to_string(c));

  const auto weight = mhla::testing::random_tensor<double>(mhla::testing::Normal{}, 12,
                                                           static_cast<Index>(value.size()));
  HostTensor<double, 1> gradient(5);
  gradient.elements() = adjoint(map, x.elements(), weight.elements());
  const auto loss = [&] {
    const Row y = features(map, x.elements());
    double total = 0;
    for (std::size_t c = 0; c < y.size(); ++c) total += weight.elements()[c] * y[c];
    return total;
  };
  const auto check = mhla::testing::check_gradient(
      loss, 13, 8, mhla::testing::differentiate<double, 1>(x.view(), gradient.view()));
  expect(check.error <= 1e-11, name + ": gradient: " + check.report());
}

/// A formula of one element, for every element of a row.
template <class F>
auto each(const F& f) {
  return [f](Row row) {
    for (double& x : row) x = f(x);
    return row;
  };
}

Row softmax(Row row) {
  for (double& x : row) x = std::exp(x);
  const double total = sum(row);
  for (double& x : row) x /= total;
  return row;
}

void check_feature_maps() {
  check_feature_map("Identity", mhla::Identity{}, each([](double x) { return x; }));
  check_feature_map("Relu", mhla::Relu{.epsilon = 0.125},
                    each([](double x) { return std::fmax(x, 0) + 0.125; }));
  check_feature_map("SquaredRelu", mhla::SquaredRelu{.epsilon = 0.125},
                    each([](double x) { return std::fmax(x, 0) * std::fmax(x, 0) + 0.125; }));
  check_feature_map("EluPlusOne", mhla::EluPlusOne{},
                    each([](double x) { return x > 0 ? 1 + x : std::exp(x); }));
  check_feature_map("Exp", mhla::Exp{}, each([](double x) { return std::exp(x); }));
  check_feature_map("Softmax", mhla::Softmax{}, softmax);
  check_feature_map("Hedgehog", mhla::Hedgehog{}, [](const Row& x) {
    Row doubled;
    for (const double sign : {2.0, -2.0})
      for (const double element : x) doubled.push_back(sign * element);
    return softmax(doubled);
  });
  check_feature_map("Dpfp", mhla::Dpfp{.nu = 3}, [](const Row& x) {
    Row y;
    for (const double element : x) y.push_back(std::fmax(element, 0));
    for (const double element : x) y.push_back(std::fmax(-element, 0));
    Row products;
    for (std::size_t j = 1; j <= 3; ++j)
      for (std::size_t c = 0; c < y.size(); ++c)
        products.push_back(y[c] * y[(c + y.size() - j) % y.size()]);
    return products;
  });
  const auto w = mhla::testing::random_tensor<double>(mhla::testing::Normal{}, 14, 7, 5);
  check_feature_map("Favor", mhla::Favor<double>{w.view()}, [&](const Row& x) {
    Row result;
    for (Index r = 0; r < 7; ++r) {
      double inner = 0;
      double norm = 0;
      for (Index c = 0; c < 5; ++c) {
        const double scaled = x[static_cast<std::size_t>(c)] * std::pow(5, -0.25);
        inner += w(r, c) * scaled;
        norm += scaled * scaled;
      }
      result.push_back(std::exp(inner - norm / 2) / std::sqrt(7));
    }
    return result;
  });

  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect(std::isnan(mhla::Relu{}.value(nan)), "Relu of NaN is NaN");
  expect(std::isnan(mhla::SquaredRelu{}.value(nan)), "SquaredRelu of NaN is NaN");
  expect(std::isnan(mhla::EluPlusOne{}.value(nan)), "EluPlusOne of NaN is NaN");
  expect(mhla::Relu{}.derivative(0.0) == 0, "the derivative of Relu at 0 is 0");
}

/// Every token of a ragged grid, counted where a formula says its block is.
void check_geometry() {
  const Index extent[3] = {3, 7, 5};
  const Index block[3] = {2, 3, 2};
  const mhla::Blocks3D geometry{{extent[0], extent[1], extent[2]}, {block[0], block[1], block[2]}};
  const mhla::Grid grid = geometry.grid_of(105);
  expect(grid.num_blocks() == 2 * 3 * 3, "number of blocks of a ragged grid");
  expect(grid.ragged(), "a ragged grid is ragged");
  std::vector<Index> tokens(18);
  Index token = 0;
  for (Index f = 0; f < extent[0]; ++f)
    for (Index r = 0; r < extent[1]; ++r)
      for (Index c = 0; c < extent[2]; ++c, ++token) {
        const Index expected = (f / block[0] * 3 + r / block[1]) * 3 + c / block[2];
        const std::string at = " of token " + std::to_string(token);
        expect(grid.block_of(token) == expected, "block" + at);
        expect(grid.coordinate(token, 0) == f && grid.coordinate(token, 1) == r &&
                   grid.coordinate(token, 2) == c,
               "coordinates" + at);
        ++tokens[static_cast<std::size_t>(expected)];
      }
  for (Index b = 0; b < 18; ++b)
    expect(grid.block_extent(b, 0) * grid.block_extent(b, 1) * grid.block_extent(b, 2) ==
               tokens[static_cast<std::size_t>(b)],
           "extents of block " + std::to_string(b));
  expect(mhla::Blocks2D{{4, 6}, {2, 3}}.grid_of(24).block_of(15) == 3, "block in an image");
  expect(mhla::Blocks1D{4}.grid_of(10).num_blocks() == 3, "blocks of a ragged sequence");
}

void check_rotations() {
  const mhla::HalfSplitRotary half;
  expect(half.pairs(12).step == 1 && half.pairs(12).gap == 6, "pairs of HalfSplitRotary");
  expect(close(half.frequency(2, 6), std::pow(10000, -4.0 / 12)), "angle of HalfSplitRotary");
  const mhla::AxialRotary axial;
  expect(axial.pairs(12).step == 2 && axial.pairs(12).gap == 1, "pairs of AxialRotary");
  expect(close(axial.frequency(1, 3), std::pow(10000, -2.0 / 6)), "angle of AxialRotary");
  for (int axis = 0; axis < 3; ++axis)
    expect(axial.axis_pairs(axis, 3, 8) == (axis == 0 ? 4 : 2), "pairs of each axis of a video");
  expect(axial.axis_pairs(0, 2, 5) == 3 && axial.axis_pairs(1, 2, 5) == 2,
         "pairs of each axis of an image");
}

void check_views() {
  HostTensor<double, 4> memory(2, 3, 5, 7);  // [batch, tokens, heads, dim]
  const auto view = mhla::tokens_first(memory.view());
  for (Index axis = 0; axis < 4; ++axis) {
    constexpr Index extent[] = {2, 5, 3, 7};
    expect(view.extent[axis] == extent[axis], "extents of tokens_first");
  }
  expect(&view(1, 4, 2, 6) == &memory(1, 2, 4, 6), "elements of tokens_first");
}

}  // namespace

int main() {
  killer::run([] {
    check_feature_maps();
    check_geometry();
    check_rotations();
    check_views();
  });
}
