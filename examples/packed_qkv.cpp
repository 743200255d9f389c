// SPDX-License-Identifier: MIT
// Attention where a projection has left q, k and v: side by side in the rows of one matrix, here a
// std::vector, then an Eigen::Matrix. Nothing is copied.
#include <cstdio>
#include <mhla/mhla.hpp>
#include <vector>

namespace {

using RowMajorMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
constexpr mhla::Index tokens = 1024, heads = 8, dim = 64, width = heads * dim, block = 64;
constexpr mhla::Index blocks = mhla::ceil_div(tokens, block);

// qkv [tokens, 3 * heads * dim] -> y [tokens, heads * dim]
std::vector<float> attend(const Attention& attention, const std::vector<float>& qkv,
                          const std::vector<float>& mix) {
  std::vector<float> y(tokens * width);
  const auto [q, k, v] = mhla::qkv_views(qkv.data(), tokens, heads, dim);
  mhla::forward_into(attention, mhla::SerialExecutor{}, q, k, v,
                     mhla::make_view(mix.data(), blocks, blocks),
                     mhla::heads_view(y.data(), tokens, heads, dim));
  return y;
}

// The same with matrices, of either storage order.
template <class Matrix>
Matrix attend(const Attention& attention, const Matrix& qkv, const Matrix& mix) {
  Matrix y(tokens, width);
  const auto q = mhla::heads_view(qkv.leftCols(width), heads);
  const auto k = mhla::heads_view(qkv.middleCols(width, width), heads);
  const auto v = mhla::heads_view(qkv.rightCols(width), heads);
  mhla::forward_into(attention, mhla::SerialExecutor{}, q, k, v, mhla::mix_view(mix),
                     mhla::heads_view(y, heads));
  return y;
}

}  // namespace

int main() {
  const Attention attention{.blocks = {.block = block}};
  const RowMajorMatrix qkv = RowMajorMatrix::Random(tokens, 3 * width);
  RowMajorMatrix mix(blocks, blocks);
  mhla::initialize(mhla::mix_view(mix), attention);

  const RowMajorMatrix y = attend(attention, qkv, mix);
  const Eigen::MatrixXf y_of_columns =
      attend(attention, Eigen::MatrixXf(qkv), Eigen::MatrixXf(mix));
  const std::vector<float> y_of_vector =
      attend(attention, std::vector<float>(qkv.data(), qkv.data() + qkv.size()),
             std::vector<float>(mix.data(), mix.data() + mix.size()));

  const bool same = y_of_columns == Eigen::MatrixXf(y) &&
                    RowMajorMatrix::Map(y_of_vector.data(), y.rows(), y.cols()) == y &&
                    y.norm() > 0;
  std::printf("%td tokens, %td heads of %td: std::vector, RowMajor and ColMajor matrices give %s\n",
              tokens, heads, dim, same ? "the same bits" : "DIFFERENT results");
  return same ? 0 : 1;
}
