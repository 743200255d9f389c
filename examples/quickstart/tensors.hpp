// SPDX-License-Identifier: MIT
// The tensors of one attention call, made from embedded tokens.
#pragma once

#define EIGEN_USE_THREADS
#include <cmath>
#include <cstdint>
#include <mhla/mhla.hpp>

#include "token_source.hpp"

namespace quickstart {

template <class T, int Rank>
using Tensor = Eigen::Tensor<T, Rank, Eigen::RowMajor>;

/// Projects x [tokens, width] to [1, heads, tokens, dim] by a fixed matrix per head.
inline Tensor<float, 4> project_heads(const Matrix& x, std::uint64_t seed, Index heads, Index dim) {
  const Matrix weights =
      random_matrix(seed, x.cols(), heads * dim) / std::sqrt(static_cast<float>(x.cols()));
  Tensor<float, 4> projected(1, heads, x.rows(), dim);
  for (Index h = 0; h < heads; ++h)
    Eigen::Map<Matrix>(&projected(0, h, 0, 0), x.rows(), dim).noalias() =
        x * weights.middleCols(h * dim, dim);
  return projected;
}

/// Operands, results and gradients of one self-attention.
struct Tensors {
  Tensor<float, 4> q, k, v, y, dy, dq, dk, dv;
  Tensor<float, 3> mix, dmix;

  /// q, k, v and dy are four projections of the tokens in `grid`, mix the usual initial one.
  Tensors(const TokenSource& source, const mhla::Grid& grid, Index heads, Index key_dim,
          Index value_dim) {
    const Matrix x = source.embed(grid);
    q = project_heads(x, 2, heads, key_dim);
    k = project_heads(x, 3, heads, key_dim);
    v = project_heads(x, 4, heads, value_dim);
    dy = project_heads(x, 5, heads, value_dim);
    y.resize(dy.dimensions());
    dq.resize(q.dimensions());
    dk.resize(k.dimensions());
    dv.resize(v.dimensions());
    mix.resize(1, grid.num_blocks(), grid.num_blocks());
    dmix.resize(mix.dimensions());
    mhla::initialize(mix, grid);
  }
};

template <class T, int Rank>
auto view_of(const Tensor<T, Rank>& tensor) {
  return mhla::eigen::dense_view<Eigen::RowMajor, Rank>(tensor.data(), tensor.dimensions());
}
template <class T, int Rank>
auto view_of(Tensor<T, Rank>& tensor) {
  return mhla::eigen::dense_view<Eigen::RowMajor, Rank>(tensor.data(), tensor.dimensions());
}

}  // namespace quickstart
