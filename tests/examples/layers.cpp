// SPDX-License-Identifier: MIT
// The layers that the examples are made of: each one's gradient against central differences, and
// values against formulas that do not share its loops.
#include <cmath>
#include <string>
#include <vector>

#include "examples/layers/activations.hpp"
#include "examples/layers/convolution.hpp"
#include "examples/layers/embedding.hpp"
#include "examples/layers/linear.hpp"
#include "examples/layers/mhla_attention.hpp"
#include "examples/layers/mlp.hpp"
#include "examples/layers/modulation.hpp"
#include "examples/layers/norms.hpp"
#include "mhla/mhla.hpp"
#include "tests/examples/gradients.hpp"

namespace {

using namespace layers;
using namespace test;

Values<double> random_values(const ParameterList& list) {
  const Matrix<double> normal = random_matrix(list.size(), 1, 99);
  return 0.7 * normal.col(0).array();
}
/// The gradients in `of` of y(), an array, with these weights.
template <class Y, class... D>
void require_derivatives(double tolerance, const Matrix<double>& weight, const Y& y,
                         const D&... of) {
  require_gradients(
      tolerance, [&] { return (y().array() * weight.array()).sum(); }, of...);
}

/// The gradients of a layer, in x and in its parameters. Its backward pass takes the input, or what
/// the forward pass kept.
template <class Layer, class... Kept>
void require_layer(const ParameterList& list, const Layer& layer, Matrix<double> x, Kept... kept) {
  Values<double> values = random_values(list);
  Matrix<double> y, dx;
  const auto forward = [&]() -> const Matrix<double>& {
    layer.forward(values, x, y, kept...);
    return y;
  };
  forward();
  const Matrix<double> weight = random_matrix(y.rows(), y.cols(), 5);
  // What is not written shows as NaN.
  Values<double> gradient = Values<double>::Constant(list.size(), std::nan(""));
  if constexpr (sizeof...(kept) == 0) {
    layer.backward(values, x, weight, dx, gradient);
  } else {
    layer.backward(values, kept..., weight, dx, gradient);
  }
  REQUIRE(dx.rows() == x.rows());
  REQUIRE(gradient.isFinite().all());
  require_derivatives(1e-9, weight, forward, with(x, dx), with(values, gradient));
}

/// A layer that is told its grid.
struct OnGrid {
  DepthwiseConvolution layer;
  Grid grid;

  void forward(const Values<double>& values, const Matrix<double>& x, Matrix<double>& y) const {
    layer.forward(values, grid, x, y);
  }
  void backward(const Values<double>& values, const Matrix<double>& x, const Matrix<double>& dy,
                Matrix<double>& dx, Values<double>& gradient) const {
    layer.backward(values, grid, x, dy, dx, gradient);
  }
};

template <class F>
void require_derivative() {
  for (const double x : {-3.1, -0.4, 0.0, 0.3, 2.7}) {
    const double h = 1e-3;
    const double measured =
        (8 * (F::value(x + h) - F::value(x - h)) - (F::value(x + 2 * h) - F::value(x - 2 * h))) /
        (12 * h);
    REQUIRE(std::abs(F::derivative(x) - measured) <= 1e-10);
  }
}

}  // namespace

TEST_CASE("gradients of layers") {
  // Each has the parameters of a list of its own.
  const auto require = [](const auto& make, const Matrix<double>& x, auto... kept) {
    ParameterList list;
    const auto layer = make(list);
    require_layer(list, layer, x, kept...);
  };
  for (const Bias bias : {Bias::none, Bias::one})
    require([&](auto& list) { return Linear(list, "l", 5, 7, bias); }, random_matrix(6, 5, 1));
  for (const double epsilon : {1e-6, 0.3})
    require([&](auto& list) { return RmsNorm(list, "n", 4, epsilon); }, random_matrix(6, 12, 3));
  for (const Affine affine : {Affine::yes, Affine::no})
    require([&](auto& list) { return LayerNorm(list, "n", 7, 1e-2, affine); },
            random_matrix(6, 7, 4));
  require(
      [](auto& list) {
        return Mlp<Gelu>(list, {"a", "b"}, 5, 9, 4);
      },
      random_matrix(6, 5, 1), MlpActivations<double>{});
  require([](auto& list) { return GatedMlp(list, "m", 5, 8); }, random_matrix(6, 5, 1),
          GatedMlpActivations<double>{});
  require(
      [](auto& list) {
        return OnGrid{DepthwiseConvolution::causal(list, "c", 3, 4), {{1, 1, 7}}};
      },
      random_matrix(14, 3, 1));
  require(
      [](auto& list) {
        return OnGrid{{list, "c", 3, {3, 5}, Bias::one}, {{1, 4, 3}}};
      },
      random_matrix(24, 3, 2));
  require(
      [](auto& list) {
        return OnGrid{{list, "c", 2, {3, 1, 3}, Bias::one}, {{3, 2, 4}}};
      },
      random_matrix(48, 2, 3));
  const ImageShape shape{3, 4, 6};
  require([&](auto& list) { return PatchEmbedding(list, "p", shape, 2, 5); },
          random_matrix(2, shape.size(), 1), Matrix<double>());
}

TEST_CASE("a layer norm without weights") {
  ParameterList list;
  const LayerNorm norm(list, "", 7, 1e-2, Affine::no);
  REQUIRE(list.size() == 0);
  const Matrix<double> x = random_matrix(5, 7, 1);
  Matrix<double> y;
  norm.forward(Values<double>(0), x, y);
  for (Index r = 0; r < 5; ++r) {
    REQUIRE(std::abs(y.row(r).mean()) <= 1e-14);
    const double variance = (x.row(r).array() - x.row(r).mean()).square().mean();
    REQUIRE(std::abs(y.row(r).squaredNorm() / 7 - variance / (variance + 1e-2)) <= 1e-13);
  }
}

TEST_CASE("derivatives of activations, and values") {
  require_derivative<Silu>();
  require_derivative<Gelu>();
  require_derivative<GeluTanh>();
  REQUIRE(std::abs(Silu::value(1.0) - 0.7310585786300049) <= 1e-15);
  REQUIRE(std::abs(Gelu::value(1.0) - 0.8413447460685429) <= 1e-15);
  REQUIRE(std::abs(GeluTanh::value(1.0) - 0.8411919906082768) <= 1e-15);
}

TEST_CASE("gradients of a gate") {
  Matrix<double> a = random_matrix(4, 5, 1), b = random_matrix(4, 5, 2), y, da, db;
  const Matrix<double> weight = random_matrix(4, 5, 3);
  gate_backward(a, b, weight, da, db);
  const auto forward = [&] { return gate(a, b, y), y; };
  require_derivatives(1e-10, weight, forward, with(a, da), with(b, db));
}

TEST_CASE("a depthwise convolution is the sum over its window") {
  ParameterList list;
  const DepthwiseConvolution layer(list, "c", 2, {3, 3}, Bias::one);
  const Values<double> values = random_values(list);
  const Index height = 4, width = 5;
  const Matrix<double> x = random_matrix(height * width, 2, 4);
  Matrix<double> y;
  layer.forward(values, {{1, height, width}}, x, y);
  for (Index c = 0; c < 2; ++c)
    for (Index row = 0; row < height; ++row)
      for (Index column = 0; column < width; ++column) {
        double sum = values(2 * 9 + c);
        for (Index i = 0; i < 3; ++i)
          for (Index j = 0; j < 3; ++j) {
            const Index r = row + i - 1, s = column + j - 1;
            if (r >= 0 && r < height && s >= 0 && s < width)
              sum += values(c * 9 + i * 3 + j) * x(r * width + s, c);
          }
        REQUIRE(std::abs(y(row * width + column, c) - sum) <= 1e-13);
      }
}

TEST_CASE("a causal convolution sees no later token, nor another sequence") {
  ParameterList list;
  const auto layer = DepthwiseConvolution::causal(list, "c", 2, 3);
  const Values<double> values = random_values(list);
  Matrix<double> x = random_matrix(10, 2, 4), y, changed;  // two sequences of five
  layer.forward(values, {{1, 1, 5}}, x, y);
  x.row(3).setConstant(9);
  layer.forward(values, {{1, 1, 5}}, x, changed);
  for (Index t = 0; t < 10; ++t) REQUIRE((y.row(t) == changed.row(t)) == (t != 3 && t != 4));
}

TEST_CASE("the windows of a patch embedding lie where they did") {
  const ImageShape shape{3, 4, 6};
  const Matrix<double> images = random_matrix(2, shape.size(), 8);
  Matrix<double> windows, back;
  cut_patches(images, shape, 2, windows);
  REQUIRE(windows.rows() == 2 * 2 * 3);
  // Image 1, channel 2, pixel (3, 5): window (1, 2), pixel (1, 1) in it.
  REQUIRE(windows((1 * 2 + 1) * 3 + 2, (2 * 2 + 1) * 2 + 1) == images(1, (2 * 4 + 3) * 6 + 5));
  join_patches(windows, shape, 2, back);
  REQUIRE(back == images);
}

TEST_CASE("gradients of modulation and of gated sums") {
  Matrix<double> x = random_matrix(6, 4, 1), shift = random_matrix(2, 4, 2),
                 scale = random_matrix(2, 4, 3), by = random_matrix(2, 4, 4), y;
  const Matrix<double> weight = random_matrix(6, 4, 5);
  Matrix<double> dx, d_shift(2, 4), d_scale(2, 4), d_by(2, 4), d_modulated;
  const auto forward = [&] {
    modulate(x, shift, scale, y);
    Matrix<double> sum = x;
    add_gated(y, by, sum);
    return sum;
  };
  forward();
  add_gated_backward(y, by, weight, d_modulated, d_by);
  modulate_backward(x, scale, d_modulated, dx, d_shift, d_scale);
  dx += weight;
  require_derivatives(1e-10, weight, forward, with(x, dx), with(shift, d_shift),
                      with(scale, d_scale), with(by, d_by));
}

TEST_CASE("an embedding adds up what comes back for a symbol that occurs twice") {
  ParameterList list;
  const Embedding embedding(list, "e", 4, 3);
  const Values<double> values = random_values(list);
  Matrix<double> x;
  const std::vector<int> symbols = {2, 0, 2};
  embedding.forward(values, symbols, x);
  REQUIRE(x.row(0) == x.row(2));
  REQUIRE(x(1, 2) == values(2));
  Values<double> gradient = Values<double>::Constant(12, 10.0);
  Matrix<double> dx(3, 3);
  dx << 1, 2, 3, 4, 5, 6, 7, 8, 9;
  embedding.add_backward(symbols, dx, gradient);
  REQUIRE(gradient(2 * 3 + 1) == 20);
  REQUIRE(gradient(0) == 14);
  REQUIRE(gradient(1 * 3) == 10);
}

TEST_CASE("positions are added to every sequence") {
  ParameterList list;
  const PositionEmbedding position(list, "p", 3, 2);
  Values<double> values = random_values(list);
  Matrix<double> x = random_matrix(6, 2, 1);
  const Matrix<double> before = x;
  position.add_forward(values, x);
  REQUIRE(std::abs(x(4, 1) - before(4, 1) - values(3)) <= 1e-15);
  Values<double> gradient = Values<double>::Constant(6, std::nan(""));
  position.backward(before, gradient);
  REQUIRE(std::abs(gradient(3) - before(1, 1) - before(4, 1)) <= 1e-15);
}

TEST_CASE("gradients of MHLA over matrices, with fewer heads of keys") {
  using Variant = mhla::Attention<mhla::Softmax, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized>;
  const mhla::ForkJoin team(2);
  const MhlaAttention<Variant> attention({.blocks = {.block = 3}}, team);
  const Heads heads{4, 2, 2};
  Matrix<double> q = random_matrix(14, 4 * 3, 1), k = random_matrix(14, 2 * 3, 2),
                 v = random_matrix(14, 2 * 5, 3), mix = random_matrix(3, 3, 4), y;
  mix.triangularView<Eigen::StrictlyUpper>().setZero();
  const Matrix<double> weight = random_matrix(14, 4 * 5, 5);
  Matrix<double> dq(14, 12), dk(14, 6), dv(14, 10), dmix(3, 3);
  attention.backward(heads, q, k, v, mix, weight, dq, dk, dv, dmix);
  const auto forward = [&] { return attention.forward(heads, q, k, v, mix, y), y; };
  require_derivatives(1e-10, weight, forward, with(q, dq), with(k, dk), with(v, dv));
  REQUIRE(y.cols() == 20);
}

TEST_CASE("MHLA in bfloat16 is near to that in float") {
  using Variant = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D>;
  const mhla::ForkJoin team(1);
  const Heads heads{2, 2, 1};
  const Matrix<float> q = random_matrix(24, 8, 1).cast<float>(),
                      k = random_matrix(24, 8, 2).cast<float>(),
                      v = random_matrix(24, 8, 3).cast<float>(),
                      mix = random_matrix(3, 3, 4).cwiseAbs().cast<float>();
  Matrix<float> y, y16;
  MhlaAttention<Variant>({.blocks = {.block = 8}}, team).forward(heads, q, k, v, mix, y);
  MhlaAttention<Variant>({.blocks = {.block = 8}}, team, Storage::bfloat16)
      .forward(heads, q, k, v, mix, y16);
  const float error = (y - y16).norm() / y.norm();
  REQUIRE(error <= 1e-2f);
  REQUIRE(error > 1e-4f);
}
