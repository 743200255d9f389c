// SPDX-License-Identifier: MIT
// Eigen's tensors as views: the same elements under the same names of axes.
#include <mhla/eigen/tensor_views.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using mhla::Index;
using namespace mhla::eigen;

using RowMajor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using ColMajor4 = Eigen::Tensor<float, 4, Eigen::ColMajor>;

static_assert(mhla::EigenTensor<RowMajor4>);
static_assert(mhla::EigenTensor<Eigen::TensorMap<const RowMajor4>>);
static_assert(mhla::EigenTensor<std::remove_const_t<decltype(RowMajor4() + RowMajor4())>>);
static_assert(!mhla::EigenTensor<Eigen::MatrixXf>);
static_assert(!mhla::EigenTensor<float>);
static_assert(!mhla::EigenTensor<std::vector<float>>);
static_assert(!mhla::EigenTensor<mhla::TensorView<float, 4>>);
static_assert(mhla::TensorOperand<RowMajor4>);
static_assert(mhla::TensorOperand<mhla::TensorView<const float, 3>>);
static_assert(!mhla::TensorOperand<Eigen::MatrixXf>);
static_assert(!mhla::TensorOperand<int>);

template <class Tensor>
Tensor numbered(Index a, Index b, Index c, Index d) {
  Tensor tensor(a, b, c, d);
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<float>(i);
  return tensor;
}

template <class X>
Operand<X, Eigen::DefaultDevice> operand(const X& expression) {
  static const Eigen::DefaultDevice device;
  return {expression, device};
}

// Every element of a view [batch, heads, tokens, dim] is that of `element`.
template <class View, class Element>
bool equal(const View& view, const Element& element) {
  for (Index b = 0; b < view.extent[0]; ++b)
    for (Index h = 0; h < view.extent[1]; ++h)
      for (Index n = 0; n < view.extent[2]; ++n)
        for (Index c = 0; c < view.extent[3]; ++c)
          if (view(b, h, n, c) != element(b, h, n, c)) return false;
  return true;
}

bool has_extents(const mhla::TensorView<const float, 4>& view, Index a, Index b, Index c, Index d) {
  return view.extent[0] == a && view.extent[1] == b && view.extent[2] == c && view.extent[3] == d;
}

}  // namespace

TEST_CASE("tensor views: RowMajor axes as they are, ColMajor axes reversed", "[eigen]") {
  const auto row = numbered<RowMajor4>(2, 3, 4, 5);
  const auto row_view = operand(row).view();
  CHECK(row_view.data == row.data());
  CHECK(has_extents(row_view, 2, 3, 4, 5));
  CHECK(equal(row_view, row));

  const auto column = numbered<ColMajor4>(5, 4, 3, 2);
  const auto column_view = operand(column).view();
  CHECK(column_view.data == column.data());
  CHECK(has_extents(column_view, 2, 3, 4, 5));
  CHECK(equal(column_view, [&](Index b, Index h, Index n, Index c) { return column(c, n, h, b); }));

  CHECK((eigen_dimensions<Eigen::RowMajor, Eigen::Index>(row_view) == row.dimensions()));
  CHECK((eigen_dimensions<Eigen::ColMajor, Eigen::Index>(column_view) == column.dimensions()));
  CHECK((eigen_dimensions<Eigen::ColMajor, int>(column_view)[0] == 5));
}

TEST_CASE("tensor views: mix of rank 2 is one matrix for all heads", "[eigen]") {
  const mhla::TensorView<float, 2> matrix{nullptr, {3, 4}, {4, 1}};
  const mhla::TensorView<float, 3> mix = matrix;
  CHECK(mix.extent[0] == 1);
  CHECK(mix.extent[1] == 3);
  CHECK(mix.extent[2] == 4);
  CHECK(mix.stride[1] == 4);
  CHECK(mix.stride[2] == 1);
}

TEST_CASE("tensor views: tokens_first is a shuffle, and a view of the same memory", "[eigen]") {
  using mhla::tokens_first;
  const auto row = numbered<RowMajor4>(2, 4, 3, 5);  // [batch, tokens, heads, dim]
  const auto row_op = tokens_first(row);
  const RowMajor4 shuffled = row_op;
  CHECK(shuffled.dimension(1) == 3);
  CHECK(shuffled(1, 2, 3, 4) == row(1, 3, 2, 4));
  CHECK(operand(row_op).view().data == row.data());
  CHECK(equal(operand(row_op).view(), shuffled));

  const auto column = numbered<ColMajor4>(5, 3, 4, 2);  // [dim, heads, tokens, batch]
  const auto column_op = tokens_first(column);
  const ColMajor4 column_shuffled = column_op;
  CHECK(column_shuffled(4, 3, 2, 1) == column(4, 2, 3, 1));
  CHECK(has_extents(operand(column_op).view(), 2, 3, 4, 5));
  CHECK(equal(operand(column_op).view(),
              [&](Index b, Index h, Index n, Index c) { return column(c, h, n, b); }));

  // Of a const tensor it is const, of another it can be written.
  RowMajor4 writable = row;
  CHECK(std::is_const_v<std::remove_reference_t<decltype(tokens_first(row))>>);
  tokens_first(writable) = shuffled * 2.f;
  CHECK(writable(1, 3, 2, 4) == 2.f * row(1, 3, 2, 4));
}

TEST_CASE("tensor views: a lazy operand has its extents at once, and its memory when evaluated",
          "[eigen]") {
  const auto row = numbered<RowMajor4>(2, 3, 4, 5);
  const auto expression = row * 2.f;
  auto lazy = operand(expression);
  CHECK(lazy.view().data == nullptr);
  CHECK(has_extents(lazy.view(), 2, 3, 4, 5));
  lazy.evaluate();
  REQUIRE(lazy.view().data != nullptr);
  CHECK(equal(lazy.view(),
              [&](Index b, Index h, Index n, Index c) { return 2.f * row(b, h, n, c); }));

  auto shuffled_expression = mhla::tokens_first(row + row);
  auto shuffled = operand(shuffled_expression);
  CHECK(shuffled.view().data == nullptr);
  shuffled.evaluate();
  CHECK(equal(shuffled.view(),
              [&](Index b, Index h, Index n, Index c) { return 2.f * row(b, n, h, c); }));

  const auto evaluated_expression = (row * 2.f).eval();
  auto evaluated = operand(evaluated_expression);
  evaluated.evaluate();
  CHECK(evaluated.view()(1, 2, 3, 4) == 2.f * row(1, 2, 3, 4));

  RowMajor4 empty(2, 0, 4, 5);
  const auto empty_expression = empty * 2.f;
  auto nothing = operand(empty_expression);
  nothing.evaluate();
  CHECK(has_extents(nothing.view(), 2, 0, 4, 5));
}

TEST_CASE("tensor views: shape_of of tensors, expressions and views", "[eigen]") {
  const RowMajor4 q(2, 6, 7, 4), k(2, 3, 8, 4), v(2, 3, 8, 5);
  const Eigen::Tensor<float, 2, Eigen::RowMajor> mix(4, 3);
  const mhla::Shape expected{2, 6, 3, 7, 8, 4, 5, 1, 4, 3};
  CHECK(mhla::shape_of(q, k, v, mix) == expected);
  CHECK(mhla::shape_of(q * 2.f, k, mhla::make_view(v.data(), 2, 3, 8, 5), mix) == expected);
  const RowMajor4 q_tokens_first(2, 7, 6, 4);
  CHECK(mhla::shape_of(mhla::tokens_first(q_tokens_first), k, v, mix) == expected);
  const Eigen::Tensor<float, 4> q_reversed(4, 7, 6, 2);
  CHECK(mhla::shape_of(q_reversed, k, v, mix) == expected);
  CHECK_THROWS_AS(mhla::shape_of(q, v, v, mix), mhla::ShapeError);
}
