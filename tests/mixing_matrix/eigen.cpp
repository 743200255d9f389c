// SPDX-License-Identifier: MIT
// initialize and project on Eigen's tensors: the numbers of the view, in either layout.
#include <algorithm>
#include <cmath>
#include <mhla/eigen/mixing_matrix.hpp>
#include <type_traits>
#include <unsupported/Eigen/CXX11/Tensor>
#include <utility>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using mhla::make_view;

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
const Attention attention{.blocks = {.grid = {6, 8}, .block = {3, 4}},
                          .key_blocks = {.grid = {6, 9}, .block = {3, 3}}};

}  // namespace

TEST_CASE("initial mixing: Eigen tensors, row-major and column-major", "[mixing_matrix]") {
  std::vector<double> expected(4 * 6);
  mhla::initialize(make_view(expected.data(), 4, 6), attention);

  Eigen::Tensor<double, 3, Eigen::RowMajor> row_major(2, 4, 6);
  mhla::initialize(row_major, attention, {.transform = mhla::Transform::linear});
  Eigen::Tensor<double, 3> column_major(6, 4, 2);
  mhla::initialize(column_major, attention);
  Eigen::Tensor<double, 2> matrix(6, 4);
  mhla::initialize(matrix, attention.blocks.grid_of(48), attention.key_blocks.grid_of(54));
  std::vector<float> memory(2 * 4 * 6);
  mhla::initialize(
      Eigen::TensorMap<Eigen::Tensor<float, 3, Eigen::RowMajor>>(memory.data(), 2, 4, 6), attention,
      {});
  for (int head = 0; head < 2; ++head)
    for (int i = 0; i < 4; ++i)
      for (int b = 0; b < 6; ++b) {
        const double entry = expected[static_cast<std::size_t>(i * 6 + b)];
        CHECK(row_major(head, i, b) == entry);
        CHECK(column_major(b, i, head) == entry);
        CHECK(matrix(b, i) == entry);
        CHECK(memory[static_cast<std::size_t>((head * 4 + i) * 6 + b)] ==
              static_cast<float>(entry));
      }

  Eigen::Tensor<double, 3, Eigen::RowMajor> square(1, 4, 4);
  mhla::initialize(square, attention.blocks.grid_of(48),
                   {.max_mode = mhla::MaxMode::row, .norm_axis = mhla::NormAxis::row});
  std::vector<double> paper(16);
  mhla::initialize(make_view(paper.data(), 4, 4), attention.blocks.grid_of(48),
                   {.max_mode = mhla::MaxMode::row, .norm_axis = mhla::NormAxis::row});
  mhla::initialize(row_major, attention, {.transform = mhla::Transform::uniform});
  CHECK(row_major(1, 0, 5) == 1. / 6);
  for (int i = 0; i < 4; ++i)
    for (int b = 0; b < 4; ++b)
      CHECK(square(0, i, b) == paper[static_cast<std::size_t>(i * 4 + b)]);
}

TEST_CASE("initial mixing: an Eigen tensor of the wrong extents is refused, and not resized",
          "[mixing_matrix]") {
  Eigen::Tensor<float, 3, Eigen::RowMajor> mix(1, 6, 4);
  mix.setConstant(-7.F);
  CHECK_THROWS_AS(mhla::initialize(mix, attention), mhla::ShapeError);
  CHECK(mix.dimension(1) == 6);
  for (int n = 0; n < 24; ++n) CHECK(mix.data()[n] == -7.F);
}

TEST_CASE("structured mixing: Eigen tensors, row-major and column-major", "[mixing_matrix]") {
  using Recurrent = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
                                    mhla::NoRotation, mhla::RecurrentMixing>;
  const Recurrent recurrent{.blocks = {.block = 4}, .mixing = {.states = 1}};
  Eigen::Tensor<float, 3, Eigen::RowMajor> dense(2, 5, 5), row_major(2, 5, 4);
  Eigen::Tensor<float, 3> column_dense(5, 5, 2), column_major(4, 5, 2);
  for (int head = 0; head < 2; ++head)
    for (int i = 0; i < 5; ++i)
      for (int j = 0; j < 5; ++j)
        column_dense(j, i, head) = dense(head, i, j) =
            static_cast<float>(1 + (7 * i + 3 * j + 5 * head) % 4);
  const double error = mhla::fit(row_major, dense, recurrent);
  CHECK(error > 0);
  CHECK(mhla::fit(column_major, column_dense, recurrent) == error);
  std::vector<float> expected(2 * 5 * 4);
  const auto view = make_view(expected.data(), 2, 5, 4);
  CHECK(mhla::fit(view, make_view(std::as_const(dense).data(), 2, 5, 5), recurrent) == error);
  const auto require_equal = [&] {
    for (int head = 0; head < 2; ++head)
      for (int i = 0; i < 5; ++i)
        for (int c = 0; c < 4; ++c) {
          CHECK(row_major(head, i, c) == view(head, i, c));
          CHECK(column_major(c, i, head) == view(head, i, c));
        }
  };
  require_equal();
  mhla::project(row_major, recurrent, mhla::causal_projection);
  mhla::project(column_major, recurrent, mhla::causal_projection);
  mhla::project(view, recurrent, mhla::causal_projection);
  require_equal();
  CHECK(*std::max_element(expected.begin(), expected.end()) == 1);
  mhla::initialize(row_major, recurrent);
  mhla::initialize(column_major, recurrent);
  mhla::initialize(view, recurrent);
  require_equal();
  CHECK(std::abs(view(1, 4, 0) - 0.2F) <= 1e-7F);
}
