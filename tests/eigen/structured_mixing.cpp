// SPDX-License-Identifier: MIT
// Expressions with a structured mixing, and with a mix for each head of each batch item, have the
// bits of the calls on views.
#include <mhla/attention.hpp>

#include "tests/eigen/tensors.hpp"
#include "tests/support/catch.hpp"

namespace {

using mhla::Index;
using test::memory_of;
using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;
using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;

template <class V>
void check(const V& attention, Index rows, Index columns) {
  const Tensor4 q = test::tensor<float, Eigen::RowMajor>(1, 2, 4, 24, 6);
  const Tensor4 k = test::tensor<float, Eigen::RowMajor>(2, 2, 2, 24, 6);
  const Tensor4 v = test::tensor<float, Eigen::RowMajor>(3, 2, 2, 24, 5);
  const Tensor4 dy = test::tensor<float, Eigen::RowMajor>(4, 2, 4, 24, 5);
  const Tensor3 mix = test::tensor<float, Eigen::RowMajor>(5, 8, rows, columns);
  const auto view = [](const auto& t) {
    return mhla::make_view(t.data(), t.dimension(0), t.dimension(1), t.dimension(2),
                           t.dimension(3));
  };
  const auto mix_view = mhla::make_view(mix.data(), Index{8}, rows, columns);
  Tensor4 expected_y = dy;
  auto y_view = mhla::make_view(expected_y.data(), 2, 4, 24, 5);
  mhla::forward_into(attention, mhla::SerialExecutor{}, view(q), view(k), view(v), mix_view,
                     y_view);
  const Tensor4 y = attention(q, k, v, mix);
  CHECK(memory_of(y) == memory_of(expected_y));

  Tensor4 dq = q, dk = k, dv = v, expected_dq = q, expected_dk = k, expected_dv = v;
  Tensor3 dmix = mix, expected_dmix = mix;
  mhla::gradients(dq, dk, dv, dmix) = attention.backward(q, k, v, mix, dy);
  mhla::backward_into(attention, mhla::SerialExecutor{}, view(q), view(k), view(v), mix_view,
                      view(dy),
                      {mhla::make_view(expected_dq.data(), 2, 4, 24, 6),
                       mhla::make_view(expected_dk.data(), 2, 2, 24, 6),
                       mhla::make_view(expected_dv.data(), 2, 2, 24, 5),
                       mhla::make_view(expected_dmix.data(), 8, rows, columns)});
  CHECK(memory_of(dq) == memory_of(expected_dq));
  CHECK(memory_of(dk) == memory_of(expected_dk));
  CHECK(memory_of(dv) == memory_of(expected_dv));
  CHECK(memory_of(dmix) == memory_of(expected_dmix));
}

}  // namespace

TEST_CASE("structured mixing: expressions have the bits of calls on views", "[eigen][mixing]") {
  using namespace mhla;
  check(
      Attention<Relu, Blocks1D, Causal, Unnormalized, NoRotation, RecurrentMixing>{
          .blocks = {.block = 4}, .mixing = {.states = 2}},
      6, 7);
  check(
      Attention<Relu, Blocks2D, Bidirectional, Unnormalized, NoRotation, SeparableMixing>{
          .blocks = {.grid = {4, 6}, .block = {2, 2}}, .mixing = {.rank = 2}},
      2, 4 + 9);
}

TEST_CASE("mixing: an expression takes a matrix for each head of each item", "[eigen][mixing]") {
  using namespace mhla;
  check(Attention<Relu, Blocks1D, Bidirectional, Unnormalized>{.blocks = {.block = 4}}, 6, 6);
}
