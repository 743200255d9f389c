// SPDX-License-Identifier: MIT
// Softmax attention by tiles with a running maximum and sum (FlashAttention's order), for one tile
// of queries, and its gradients: what a user would have instead of linear attention. Eigen does the
// products and the exponentials.
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <limits>

#include "eigen_by_hand.hpp"

namespace bench {

inline constexpr Eigen::Index softmax_query_tile = 64;
inline constexpr Eigen::Index softmax_key_tile = 256;

/// Scratch that is reused from tile to tile.
template <class T>
struct SoftmaxTile {
  Matrix<T> queries, scores, out;
  Column<T> largest, tile_largest, correction, sum;
  Matrix<T> grad_out, grad_scores, grad_queries;  // backward
  Column<T> mean;
};

/// Rows [first, first + rows of y) of softmax(Q K^T / sqrt(key_dim)) V. Causal: row t sees the keys
/// up to t.
template <class T>
void softmax_query_rows(const Rows<T>& q, const Rows<T>& k, const Rows<T>& v, Eigen::Index first,
                        bool causal, SoftmaxTile<T>& tile, Result<T> y) {
  using std::sqrt;
  const Eigen::Index rows = y.rows();
  const Eigen::Index keys = causal ? first + rows : k.rows();
  tile.queries = q.middleRows(first, rows) * (T(1) / sqrt(static_cast<T>(q.cols())));
  tile.out.setZero(rows, v.cols());
  tile.largest.setConstant(rows, std::numeric_limits<T>::lowest());
  tile.sum.setZero(rows);
  for (Eigen::Index j = 0; j < keys; j += softmax_key_tile) {
    const Eigen::Index columns = std::min(softmax_key_tile, keys - j);
    tile.scores.resize(rows, columns);
    tile.scores.noalias() = tile.queries * k.middleRows(j, columns).transpose();
    if (causal && j + columns > first + 1)
      for (Eigen::Index row = 0; row < rows; ++row) {
        const Eigen::Index seen = std::clamp<Eigen::Index>(first + row + 1 - j, 0, columns);
        tile.scores.row(row).tail(columns - seen).setConstant(std::numeric_limits<T>::lowest());
      }
    tile.tile_largest = tile.largest.cwiseMax(tile.scores.rowwise().maxCoeff());
    tile.correction = (tile.largest - tile.tile_largest).array().exp();
    tile.largest = tile.tile_largest;
    for (Eigen::Index row = 0; row < rows; ++row)
      tile.scores.row(row) = (tile.scores.row(row).array() - tile.largest[row]).exp();
    tile.sum = tile.sum.cwiseProduct(tile.correction) + tile.scores.rowwise().sum();
    tile.out.array().colwise() *= tile.correction.array();
    tile.out.noalias() += tile.scores * v.middleRows(j, columns);
  }
  y = tile.out;
  y.array().colwise() /= tile.sum.array();
}

/// The gradients of sum(dy o y) in the same rows of q, and what these add to those in k and v. The
/// forward pass has just left the rows' maxima and sums in `tile`, and y.
template <class T>
void softmax_query_rows_gradient(const Rows<T>& q, const Rows<T>& k, const Rows<T>& v,
                                 const Rows<T>& y, const Rows<T>& dy, Eigen::Index first,
                                 SoftmaxTile<T>& tile, Result<T> dq, Matrix<T>& dk, Matrix<T>& dv) {
  using std::sqrt;
  const Eigen::Index rows = dq.rows();
  const T scale = T(1) / sqrt(static_cast<T>(q.cols()));
  tile.queries = q.middleRows(first, rows) * scale;
  tile.grad_out = dy.middleRows(first, rows);
  tile.mean = tile.grad_out.cwiseProduct(y.middleRows(first, rows)).rowwise().sum();
  tile.grad_queries.setZero(rows, q.cols());
  for (Eigen::Index j = 0; j < k.rows(); j += softmax_key_tile) {
    const Eigen::Index columns = std::min(softmax_key_tile, k.rows() - j);
    tile.scores.resize(rows, columns);
    tile.scores.noalias() = tile.queries * k.middleRows(j, columns).transpose();
    for (Eigen::Index row = 0; row < rows; ++row)
      tile.scores.row(row) =
          (tile.scores.row(row).array() - tile.largest[row]).exp() / tile.sum[row];
    dv.middleRows(j, columns).noalias() += tile.scores.transpose() * tile.grad_out;
    tile.grad_scores.resize(rows, columns);
    tile.grad_scores.noalias() = tile.grad_out * v.middleRows(j, columns).transpose();
    for (Eigen::Index row = 0; row < rows; ++row)
      tile.grad_scores.row(row) =
          tile.scores.row(row).array() * (tile.grad_scores.row(row).array() - tile.mean[row]);
    tile.grad_queries.noalias() += tile.grad_scores * k.middleRows(j, columns);
    dk.middleRows(j, columns).noalias() += tile.grad_scores.transpose() * tile.queries;
  }
  dq = tile.grad_queries * scale;
}

}  // namespace bench
