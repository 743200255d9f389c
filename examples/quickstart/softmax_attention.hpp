// SPDX-License-Identifier: MIT
// Softmax attention as one would write it with Eigen: in tiles of queries and keys, so that the
// scores stay in cache, with matrix products, a running maximum and sum (arXiv 2205.14135), and all
// threads. The peer that attention in linear time has to beat.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "tensors.hpp"

namespace quickstart {

inline void softmax_attention(const Eigen::ThreadPoolDevice& device, const Tensor<float, 4>& q,
                              const Tensor<float, 4>& k, const Tensor<float, 4>& v,
                              Tensor<float, 4>& y) {
  const Index heads = q.dimension(1);
  const Index tokens = q.dimension(2);
  const Index key_dim = q.dimension(3);
  const Index value_dim = v.dimension(3);
  constexpr Index query_tile = 64;
  constexpr Index key_tile = 256;
  const float scale = 1 / std::sqrt(static_cast<float>(key_dim));
  const Index tiles = mhla::ceil_div(tokens, query_tile);

  const mhla::ThreadPoolExecutor executor(device);
  executor.parallel_for(heads * tiles, [&](Index task, Index) {
    const Index h = task / tiles;
    const Index first = task % tiles * query_tile;
    const Index rows = std::min(query_tile, tokens - first);
    using Input = Eigen::Map<const Matrix>;
    const Matrix queries = scale * Input(&q(0, h, first, 0), rows, key_dim);
    Matrix sum = Matrix::Zero(rows, value_dim);
    Eigen::ArrayXf largest =
        Eigen::ArrayXf::Constant(rows, -std::numeric_limits<float>::infinity());
    Eigen::ArrayXf total = Eigen::ArrayXf::Zero(rows);
    Matrix scores;
    for (Index key = 0; key < tokens; key += key_tile) {
      const Index columns = std::min(key_tile, tokens - key);
      scores.noalias() = queries * Input(&k(0, h, key, 0), columns, key_dim).transpose();
      const Eigen::ArrayXf risen = largest.max(scores.rowwise().maxCoeff().array());
      const Eigen::ArrayXf fade = (largest - risen).exp();
      scores.array().colwise() -= risen;
      scores = scores.array().exp();
      total = total * fade + scores.rowwise().sum().array();
      sum.array().colwise() *= fade;
      sum.noalias() += scores * Input(&v(0, h, key, 0), columns, value_dim);
      largest = risen;
    }
    Eigen::Map<Matrix>(&y(0, h, first, 0), rows, value_dim) = sum.array().colwise() / total;
  });
}

}  // namespace quickstart
