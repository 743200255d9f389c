// SPDX-License-Identifier: MIT
// quickstart: is it right? The library against its definition, at shapes of the paper.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <mhla/reference/mhla.hpp>
#include <mhla/testing/comparison.hpp>

#include "reports.hpp"
#include "stopwatch.hpp"

namespace quickstart {

namespace {

using mhla::Bidirectional;

// What the library promises for float: RMS of the error over RMS of the exact result.
constexpr double forward_tolerance = 1e-6;
constexpr double gradient_tolerance = 5e-6;

struct Errors {
  double y, dq, dk, dv, dmix;

  bool as_promised() const {
    return y <= forward_tolerance && std::max({dq, dk, dv, dmix}) <= gradient_tolerance;
  }
};

template <class T, int Rank>
double error_of(const Tensor<T, Rank>& actual, const Tensor<double, Rank>& exact) {
  return mhla::testing::compare(view_of(actual), view_of(exact)).rms_ratio;
}

template <class Attention>
Errors errors_of(const Attention& attention, const Tensors& t) {
  const Tensor<double, 4> q = t.q.cast<double>();
  const Tensor<double, 4> k = t.k.cast<double>();
  const Tensor<double, 4> v = t.v.cast<double>();
  const Tensor<double, 4> dy = t.dy.cast<double>();
  const Tensor<double, 3> mix = t.mix.cast<double>();
  Tensor<double, 4> y = dy, dq = q, dk = k, dv = v;
  Tensor<double, 3> dmix = mix;
  mhla::reference::mhla_forward(attention, view_of(q), view_of(k), view_of(v), view_of(mix),
                                view_of(y));
  mhla::reference::mhla_backward(attention, view_of(q), view_of(k), view_of(v), view_of(mix),
                                 view_of(dy),
                                 {view_of(dq), view_of(dk), view_of(dv), view_of(dmix)});
  return {error_of(t.y, y), error_of(t.dq, dq), error_of(t.dk, dk), error_of(t.dv, dv),
          error_of(t.dmix, dmix)};
}

struct Model {
  const char* name;
  Index heads;
  Index key_dim;
  Index value_dim;
};

/// One line of the table.
template <class Attention>
bool report(const Model& model, const Attention& attention, Index tokens, const TokenSource& source,
            const Eigen::ThreadPoolDevice& pool) {
  const mhla::Grid grid = attention.blocks.grid_of(tokens);
  Tensors t(source, grid, model.heads, model.key_dim, model.value_dim);
  const double forward_time =
      milliseconds([&] { t.y.device(pool) = attention(t.q, t.k, t.v, t.mix); });
  const double backward_time = milliseconds([&] {
    mhla::gradients(t.dq, t.dk, t.dv, t.dmix).device(pool) =
        attention.backward(t.q, t.k, t.v, t.mix, t.dy);
  });
  const Errors errors = errors_of(attention, t);
  std::printf("%-15s %5td %5td %7td %7td   %.0e %.0e %.0e %.0e %.0e %8.2f %8.2f%s\n", model.name,
              model.heads, model.key_dim, tokens, grid.num_blocks(), errors.y, errors.dq, errors.dk,
              errors.dv, errors.dmix, forward_time, backward_time,
              errors.as_promised() ? "" : "  TOO LARGE");
  std::fflush(stdout);
  return errors.as_promised();
}

}  // namespace

bool report_agreement(const TokenSource& source, const Eigen::ThreadPoolDevice& pool) {
  using mhla::Attention;
  using mhla::Relu;
  const Attention<Relu, mhla::Blocks2D> image{.blocks = {.grid = {16, 16}, .block = {4, 4}}};
  const Attention<Relu, mhla::Blocks2D, Bidirectional, mhla::MixedProduct> large_image{
      .blocks = {.grid = {32, 32}, .block = {8, 8}}};
  const Attention<Relu, mhla::Blocks3D, Bidirectional, mhla::Unnormalized, mhla::AxialRotary> video{
      .blocks = {.grid = {6, 9, 15}, .block = {2, 3, 3}}};
  const Attention<Relu, mhla::Blocks1D, Bidirectional, mhla::Unnormalized, mhla::HalfSplitRotary>
      language{
          .feature_map = {.epsilon = 0}, .blocks = {.block = 64}, .scale = 1 / std::sqrt(128.0)};

  std::printf(
      "\nIs it right? Shapes of the paper, forward and backward; errors (RMS, relative) against "
      "its\n"
      "definition, computed token by token in double. Times in milliseconds.\n\n"
      "                heads   dim  tokens  blocks   y     dq    dk    dv    dmix   forward "
      "backward\n");
  bool agrees = report({"DeiT-T 256px", 3, 64, 64}, image, 256, source, pool);
  agrees &= report({"DiT-S/2 512px", 6, 64, 64}, large_image, 1024, source, pool);
  agrees &= report({"Wan, smaller", 2, 128, 128}, video, 810, source, pool);
  agrees &= report({"language model", 4, 128, 256}, language, 512, source, pool);
  return agrees;
}

}  // namespace quickstart
