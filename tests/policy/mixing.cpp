// SPDX-License-Identifier: MIT
// Structured mixings by themselves: the matrix that their products make, the adjoint of their
// coefficients, and what is wrong with parameters.
#include <algorithm>
#include <cmath>
#include <mhla/policy/expand_mixing.hpp>
#include <mhla/reference/mixing.hpp>
#include <mhla/testing/gradient_check.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"
#include "tests/support/tolerances.hpp"

namespace {

using namespace mhla;
using mhla::testing::HostTensor;
using mhla::testing::random_tensor;

template <class C>
using Recurrent = Attention<Relu, Blocks1D, C, MixedKeySum, NoRotation, RecurrentMixing>;
template <class G>
using Separable = Attention<Relu, G, Bidirectional, MixedKeySum, NoRotation, SeparableMixing>;

// What the products make is the matrix that the formulas make.
template <class V>
void check_expansion(const V& attention, const Shape& shape) {
  CAPTURE(shape.query_tokens, shape.mix_query_blocks, shape.mix_key_blocks);
  const auto mix = random_tensor<long double>(mhla::testing::Uniform{0.3f, 1.0f}, 1, 1,
                                              shape.mix_query_blocks, shape.mix_key_blocks);
  const Problem problem = checked_problem(attention, shape);
  HostTensor<long double, 3> dense(1, problem.query_blocks, problem.key_blocks);
  expand(attention, shape, mix.view(), dense.view());
  const auto formula =
      reference::mixing_matrix(attention, problem, matrix_view(mix.view(), Index{0}));
  long double worst = 0;
  for (Index i = 0; i < problem.query_blocks; ++i)
    for (Index b = 0; b < problem.key_blocks; ++b) {
      const long double error = dense(0, i, b) - formula(i, b);
      worst = std::max(worst, std::abs(error) / std::max(std::abs(formula(i, b)), 1e-30L));
    }
  CHECK(worst <= 64 * tolerance::unit_roundoff<long double>);
}

// vjp is the derivative of what the coefficients make of the parameters.
template <class V>
void check_vjp(const V& attention, const Shape& shape) {
  CAPTURE(shape.query_tokens, shape.mix_query_blocks, shape.mix_key_blocks);
  const MixingLayout layout = mixing_layout<V>(checked_problem(attention, shape));
  const auto& mixing = attention.mixing;
  auto mix = random_tensor<double>(mhla::testing::Uniform{0.3f, 1.0f}, 1, shape.mix_query_blocks,
                                   shape.mix_key_blocks);
  const Index count = mixing.num_coefficients(layout);
  HostTensor<double, 1> coefficients(count);
  const auto grad = random_tensor<double>(mhla::testing::Normal{}, 2, count);
  auto grad_mix = HostTensor<double, 2>::like(mix.view());
  mixing.vjp(layout, TensorView<const double, 2>(mix.view()),
             Span<const double>{grad.elements().data(), count}, grad_mix.view());
  const auto loss = [&] {
    mixing.coefficients(layout, TensorView<const double, 2>(mix.view()),
                        Span<double>{coefficients.elements().data(), count});
    long double sum = 0;
    for (std::size_t i = 0; i < grad.elements().size(); ++i)
      sum += static_cast<long double>(grad.elements()[i]) * coefficients.elements()[i];
    return sum;
  };
  const auto check =
      mhla::testing::check_gradient(loss, 3, 4, mhla::testing::differentiate(mix, grad_mix));
  INFO(check);
  CHECK(check.error <= tolerance::gradient_check);
}

}  // namespace

TEST_CASE("recurrent mixing: products make the matrix of the recurrence", "[policy][mixing]") {
  for (const Index states : {1, 2, 5})
    for (const Index blocks : {1, 2, 15, 16, 17, 32, 33, 40})
      for (const Index rows : {Index{1}, blocks, blocks + 3}) {
        const Shape shape{1, 1, 1, 2 * blocks - 1, 2 * blocks - 1, 1, 1, 1, rows, 3 * states + 1};
        const Recurrent<Causal> causal{.blocks = {.block = 2}, .mixing = {.states = states}};
        check_expansion(causal, shape);
        const Recurrent<BlockCausal> block{.blocks = {.block = 2}, .mixing = {.states = states}};
        check_expansion(block, shape);
        if (blocks > 33) continue;
        check_vjp(causal, shape);
        check_vjp(block, shape);
      }
}

TEST_CASE("recurrent mixing: what row 0 writes and decays is not read", "[policy][mixing]") {
  const Recurrent<Causal> attention{.blocks = {.block = 1}, .mixing = {.states = 2}};
  const Shape shape{1, 1, 1, 20, 20, 1, 1, 1, 22, 7};
  const MixingLayout layout = mixing_layout<Recurrent<Causal>>(checked_problem(attention, shape));
  const auto mix = random_tensor<double>(mhla::testing::Positive{}, 1, 22, 7);
  const Index count = attention.mixing.num_coefficients(layout);
  const std::vector<double> grad(static_cast<std::size_t>(count), 1.0);
  auto grad_mix = HostTensor<double, 2>::like(mix.view());
  attention.mixing.vjp(layout, mix.view(), Span<const double>{grad.data(), count}, grad_mix.view());
  for (Index c = 3; c < 7; ++c) CHECK(grad_mix(0, c) == 0);
  for (Index c = 0; c < 7; ++c) {
    CHECK(grad_mix(20, c) == 0);  // after the blocks
    CHECK(grad_mix(19, c) != 0);
  }
}

TEST_CASE("separable mixing: products make the sum of Kronecker products", "[policy][mixing]") {
  for (const Index rank : {1, 2, 4}) {
    const Separable<Blocks1D> line{.blocks = {.block = 2}, .mixing = {.rank = rank}};
    check_expansion(line, {1, 1, 1, 9, 9, 1, 1, 1, rank, 25});
    check_vjp(line, {1, 1, 1, 9, 9, 1, 1, 1, rank, 25});
    const Separable<Blocks2D> image{.blocks = {.grid = {5, 6}, .block = {2, 2}},
                                    .key_blocks = {.grid = {2, 4}, .block = {1, 1}},
                                    .mixing = {.rank = rank}};
    check_expansion(image, {1, 1, 1, 30, 8, 1, 1, 1, rank, 6 + 12});
    check_vjp(image, {1, 1, 1, 30, 8, 1, 1, 1, rank, 6 + 12});
    const Separable<Blocks3D> video{.blocks = {.grid = {3, 4, 5}, .block = {1, 2, 3}},
                                    .key_blocks = {.grid = {2, 1, 4}, .block = {1, 1, 1}},
                                    .mixing = {.rank = rank}};
    check_expansion(video, {1, 1, 1, 60, 8, 1, 1, 1, rank, 6 + 2 + 8});
    const Separable<Blocks3D> one{.blocks = {.grid = {1, 1, 7}, .block = {1, 1, 2}},
                                  .mixing = {.rank = rank}};
    check_expansion(one, {1, 1, 1, 7, 7, 1, 1, 1, rank, 1 + 1 + 16});
  }
}

TEST_CASE("structured mixing: says what is wrong with parameters", "[policy][mixing]") {
  const auto message = [](const auto& attention, const Shape& shape) {
    return error_message<ShapeError>([&] { checked_problem(attention, shape); });
  };
  const Recurrent<Causal> recurrent{.blocks = {.block = 2}, .mixing = {.states = 2}};
  CHECK(says(message(recurrent, {1, 1, 1, 9, 9, 1, 1, 1, 4, 7}),
             "mhla: mix: axis rows is 4 but must be 5", "or a single row for all blocks"));
  CHECK(says(message(recurrent, {1, 1, 1, 9, 9, 1, 1, 1, 5, 8}),
             "mhla: mix: axis columns is 8 but must be 7", "read, write and decay"));
  Recurrent<Causal> none = recurrent;
  none.mixing.states = 0;
  CHECK(says(message(none, {1, 1, 1, 9, 9, 1, 1, 1, 5, 1}), "mhla: mixing.states is 0"));
  const Separable<Blocks2D> separable{.blocks = {.grid = {4, 4}, .block = {2, 2}},
                                      .mixing = {.rank = 2}};
  CHECK(says(message(separable, {1, 1, 1, 16, 16, 1, 1, 1, 1, 8}),
             "mhla: mix: axis rows is 1 but must be 2"));
  CHECK(says(message(separable, {1, 1, 1, 16, 16, 1, 1, 1, 2, 16}),
             "mhla: mix: axis columns is 16 but must be 8", "for every axis of the blocks"));
  Separable<Blocks2D> rankless = separable;
  rankless.mixing.rank = 0;
  CHECK(says(message(rankless, {1, 1, 1, 16, 16, 1, 1, 1, 0, 8}), "mhla: mixing.rank is 0"));
}
