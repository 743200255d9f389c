// SPDX-License-Identifier: MIT
// quickstart: what does it do? Three attention matrices, and what they can tell apart.
#include <cmath>
#include <cstdio>
#include <mhla/diagnostics/attention_matrix.hpp>
#include <mhla/diagnostics/bounds.hpp>
#include <mhla/diagnostics/rank.hpp>
#include <mhla/reference/softmax_attention.hpp>

#include "reports.hpp"

namespace quickstart {

namespace {

void report(const char* name, Index rank_bound, const Tensor<double, 2>& weights) {
  const mhla::diagnostics::Spectrum spectrum(view_of(weights));
  std::printf("%-14s %5td %10td %16.1f %10.2f\n", name, spectrum.rank(), rank_bound,
              spectrum.effective_rank(), mhla::diagnostics::mean_row_entropy(view_of(weights)));
  std::fflush(stdout);
}

}  // namespace

void report_matrices(const TokenSource& source) {
  using Attention = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
  constexpr Index side = 24;
  constexpr Index tokens = side * side;
  const Attention attention{.blocks = {.grid = {side, side}, .block = {6, 6}}};
  const Attention linear{.blocks = {.grid = {side, side}, .block = {side, side}}};
  const mhla::Grid grid = attention.blocks.grid_of(tokens);
  const Tensors t(source, grid, 1, 64, 64);
  const Tensor<double, 4> q = t.q.cast<double>();
  const Tensor<double, 4> k = t.k.cast<double>();
  const Tensor<double, 3> mix = t.mix.cast<double>();
  Tensor<double, 3> one(1, 1, 1);
  one.setConstant(1);

  std::printf(
      "\nWhat does it do? Attention matrices of one head of 64 over %td tokens, with random\n"
      "projections. More rank tells more tokens apart; less entropy (of at most %.2f nats) is "
      "sharper\n"
      "attention.\n\n"
      "                rank   at most   effective rank    entropy\n",
      tokens, std::log(static_cast<double>(tokens)));
  Tensor<double, 2> weights(tokens, tokens);
  mhla::reference::softmax_attention_weights(mhla::reference::SoftmaxAttention<>{}, view_of(q),
                                             view_of(k), 0, 0, view_of(weights));
  report("softmax", tokens, weights);
  mhla::diagnostics::attention_matrix(linear, view_of(q), view_of(k), view_of(one), 0, 0,
                                      view_of(weights));
  report("linear", mhla::diagnostics::linear_attention_rank_bound(tokens, tokens, 64), weights);
  mhla::diagnostics::attention_matrix(attention, view_of(q), view_of(k), view_of(mix), 0, 0,
                                      view_of(weights));
  report("MHLA", mhla::diagnostics::mhla_rank_bound(grid, grid, 64), weights);
}

}  // namespace quickstart
