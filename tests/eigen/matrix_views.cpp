// SPDX-License-Identifier: MIT
#include <mhla/eigen/tensor_views.hpp>
#include <mhla/mhla.hpp>

#include "tests/support/catch.hpp"

namespace {

using mhla::Index;
using mhla::TensorView;

constexpr Index batch = 2, tokens = 11, heads = 3, dim = 5, width = heads * dim;
using RowMajorMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The view of columns [width, 2 width) of a packed q, k, v.
template <class View, class Matrix>
void check_keys(const View& keys, const Matrix& qkv) {
  CHECK(keys.extent[0] == batch);
  CHECK(keys.extent[1] == heads);
  CHECK(keys.extent[2] == tokens);
  CHECK(keys.extent[3] == dim);
  bool same_place = true;
  for (Index n = 0; n < batch; ++n)
    for (Index h = 0; h < heads; ++h)
      for (Index t = 0; t < tokens; ++t)
        for (Index c = 0; c < dim; ++c)
          same_place = same_place && static_cast<const void*>(&keys(n, h, t, c)) ==
                                         &qkv(n * tokens + t, width + h * dim + c);
  CHECK(same_place);
}

template <class Matrix>
void check_storage_order() {
  Matrix qkv = Matrix::Random(batch * tokens, 3 * width);
  check_keys(mhla::heads_view(qkv.middleCols(width, width), heads, batch), qkv);
  const Matrix& read_only = qkv;
  const auto keys = mhla::heads_view(read_only.middleCols(width, width), heads, batch);
  STATIC_REQUIRE(std::is_same_v<decltype(keys), const TensorView<const float, 4>>);
  check_keys(keys, qkv);
  check_keys(mhla::heads_view(
                 Eigen::Map<Matrix>(qkv.data(), qkv.rows(), qkv.cols()).middleCols(width, width),
                 heads, batch),
             qkv);
  Eigen::Ref<Matrix> ref = qkv;
  const auto whole = mhla::heads_view(ref, 3 * heads, batch);
  STATIC_REQUIRE(std::is_same_v<decltype(whole), const TensorView<float, 4>>);
  CHECK(&whole(1, heads + 2, 7, 4) == &qkv(tokens + 7, width + 2 * dim + 4));

  Matrix mix = Matrix::Random(4, 6);
  const auto matrix = mhla::mix_view(mix);
  CHECK(matrix.extent[0] == 4);
  CHECK(matrix.extent[1] == 6);
  CHECK(&matrix(3, 1) == &mix(3, 1));
}

template <class Call>
std::string message_of(const Call& throws) {
  try {
    throws();
  } catch (const mhla::ShapeError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace

TEST_CASE("matrix_views: the matrix' own memory, whatever its storage order", "[eigen]") {
  check_storage_order<RowMajorMatrix>();
  check_storage_order<Eigen::MatrixXf>();
}

TEST_CASE("matrix_views: a vector is one token, a segment of it some of its heads", "[eigen]") {
  const auto check = [](const auto& view, const float* first, Index of_heads, Index stride) {
    CHECK(view.extent[0] == 1);
    CHECK(view.extent[1] == of_heads);
    CHECK(view.extent[2] == 1);
    CHECK(view.extent[3] == dim);
    CHECK(&view(0, 0, 0, 0) == first);
    CHECK(&view(0, of_heads - 1, 0, dim - 1) == first + (of_heads * dim - 1) * stride);
  };
  Eigen::VectorXf column(3 * width);
  Eigen::RowVectorXf row(3 * width);
  const Eigen::VectorXf& read_only = column;
  check(mhla::heads_view(column, 3 * heads), column.data(), 3 * heads, 1);
  check(mhla::heads_view(column.head(width), heads), column.data(), heads, 1);
  check(mhla::heads_view(column.segment(width, dim), 1), column.data() + width, 1, 1);
  check(mhla::heads_view(row.tail(width), heads), row.data() + 2 * width, heads, 1);
  check(mhla::heads_view(read_only.head(width), heads), column.data(), heads, 1);
  check(mhla::heads_view(Eigen::Map<const Eigen::VectorXf>(column.data(), width), heads),
        column.data(), heads, 1);
  Eigen::MatrixXf columns(2, width);
  RowMajorMatrix rows(2, width);
  check(mhla::heads_view(columns.row(1), heads), columns.data() + 1, heads, 2);
  check(mhla::heads_view(columns.row(1).tail(dim), 1), &columns(1, width - dim), 1, 2);
  check(mhla::heads_view(rows.row(1).head(width), heads), rows.data() + width, heads, 1);
  Eigen::MatrixXf tokens_in_columns(width, 2);
  check(mhla::heads_view(tokens_in_columns.col(1), heads), &tokens_in_columns(0, 1), heads, 1);

  const auto mix = mhla::mix_view(rows.row(1).segment(2, 4));
  CHECK(mix.extent[0] == 1);
  CHECK(mix.extent[1] == 4);
  CHECK(&mix(0, 3) == &rows(1, 5));
  CHECK(message_of([&] { mhla::heads_view(column.head(width), heads + 1); }) ==
        "mhla: heads_view: 15 columns do not make 4 heads of equal dim");
}

TEST_CASE("matrix_views: columns and rows that cannot be shared out", "[eigen]") {
  Eigen::MatrixXf x(10, 12);
  CHECK(message_of([&] { mhla::heads_view(x, 5); }) ==
        "mhla: heads_view: 12 columns do not make 5 heads of equal dim");
  CHECK(message_of([&] { mhla::heads_view(x, 3, 4); }) ==
        "mhla: heads_view: 10 rows do not make 4 sequences of equal length");
  CHECK(message_of([&] { mhla::heads_view(x, 0); }) ==
        "mhla: heads_view: 12 columns do not make 0 heads of equal dim");
  CHECK(message_of([&] { mhla::heads_view(x, 3, 0); }) ==
        "mhla: heads_view: 10 rows do not make 0 sequences of equal length");
}

TEST_CASE("matrix_views: a call on matrices is the call on tensors, with a workspace or without",
          "[eigen]") {
  const mhla::Attention<mhla::Relu, mhla::Blocks1D> attention{.blocks = {.block = 4}};
  const mhla::SerialExecutor serial;
  const RowMajorMatrix qkv = RowMajorMatrix::Random(batch * tokens, 3 * width);
  const RowMajorMatrix grad_out = RowMajorMatrix::Random(batch * tokens, width);
  Eigen::MatrixXf mix = Eigen::MatrixXf::Random(3, 3).cwiseAbs();
  const auto q = mhla::heads_view(qkv.leftCols(width), heads, batch);
  const auto k = mhla::heads_view(qkv.middleCols(width, width), heads, batch);
  const auto v = mhla::heads_view(qkv.rightCols(width), heads, batch);
  const auto dy = mhla::heads_view(grad_out, heads, batch);

  RowMajorMatrix y(batch * tokens, width), grad(batch * tokens, 3 * width);
  Eigen::MatrixXf grad_mix(3, 3);
  const auto dq = mhla::heads_view(grad.leftCols(width), heads, batch);
  const auto dk = mhla::heads_view(grad.middleCols(width, width), heads, batch);
  const auto dv = mhla::heads_view(grad.rightCols(width), heads, batch);
  mhla::forward_into(attention, serial, q, k, v, mhla::mix_view(mix),
                     mhla::heads_view(y, heads, batch));
  mhla::backward_into(attention, serial, q, k, v, mhla::mix_view(mix), dy,
                      {dq, dk, dv, mhla::mix_view(grad_mix)});

  // The same through tensors of their own.
  using Tensor4 = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  using Tensor2 = Eigen::Tensor<float, 2, Eigen::RowMajor>;
  const auto copied = [](const auto& view) {
    Tensor4 tensor(view.extent[0], view.extent[1], view.extent[2], view.extent[3]);
    for (Index i = 0; i < view.size(); ++i) tensor.data()[i] = view.element(i);
    return tensor;
  };
  const Tensor4 tq = copied(q), tk = copied(k), tv = copied(v), tdy = copied(dy);
  Tensor2 tmix(3, 3);
  for (Index i = 0; i < 3; ++i)
    for (Index b = 0; b < 3; ++b) tmix(i, b) = mix(i, b);
  const Tensor4 ty = attention(tq, tk, tv, tmix);
  Tensor4 tdq(tq.dimensions()), tdk(tk.dimensions()), tdv(tv.dimensions());
  Tensor2 tdmix(3, 3);
  mhla::gradients(tdq, tdk, tdv, tdmix) = attention.backward(tq, tk, tv, tmix, tdy);

  const auto check_same = [&](const auto& view, const Tensor4& tensor) {
    const Tensor4 got = copied(view);
    CHECK(std::equal(got.data(), got.data() + got.size(), tensor.data()));
  };
  check_same(mhla::heads_view(y, heads, batch), ty);
  check_same(dq, tdq);
  check_same(dk, tdk);
  check_same(dv, tdv);
  bool same_mix = true;
  for (Index i = 0; i < 3; ++i)
    for (Index b = 0; b < 3; ++b) same_mix = same_mix && grad_mix(i, b) == tdmix(i, b);
  CHECK(same_mix);

  // += adds to what is there.
  const RowMajorMatrix once = grad;
  mhla::backward_into(attention, serial, q, k, v, mhla::mix_view(mix), dy,
                      {dq, mhla::skip, mhla::skip, mhla::skip}, mhla::Update::accumulate);
  CHECK(grad.leftCols(width).isApprox(2 * once.leftCols(width)));
  CHECK(grad.rightCols(2 * width) == once.rightCols(2 * width));
}
