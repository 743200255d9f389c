// SPDX-License-Identifier: MIT
// What a user would write with Eigen alone, for one head and one image: a yardstick that anybody
// can read, run beside the library in the same program.
#pragma once

#include <Eigen/Core>
#include <cstddef>
#include <vector>

namespace bench {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Rows = Eigen::Map<const Matrix<T>>;
template <class T>
using Result = Eigen::Map<Matrix<T>>;

/// Relu with the released code's epsilon.
template <class Features>
auto relu(const Features& x) {
  using T = typename Features::Scalar;
  return (x.array().max(T(0)) + T(1e-6)).matrix();
}

/// y = phi(Q) (phi(K)^T V) / (phi(Q) phi(K)^T 1 + epsilon): linear attention over all tokens, which
/// is MHLA with one block.
template <class T>
void global_linear_attention(const Rows<T>& q, const Rows<T>& k, const Rows<T>& v, Result<T> y) {
  const Matrix<T> features = relu(k);
  const Matrix<T> summary = features.transpose() * v;
  const Eigen::Matrix<T, Eigen::Dynamic, 1> key_sum = features.colwise().sum().transpose();
  const Matrix<T> queries = relu(q);
  y.noalias() = queries * summary;
  y.array().colwise() /= (queries * key_sum).array() + T(1e-6);
}

/// Multi-Head Linear Attention with the MixedKeySum normalizer; `tokens[b]` lists the tokens of
/// block b, and mix is [blocks, blocks].
template <class T>
void mhla_by_hand(const Rows<T>& q, const Rows<T>& k, const Rows<T>& v, const Matrix<T>& mix,
                  const std::vector<std::vector<Eigen::Index>>& tokens, Result<T> y) {
  const auto blocks = static_cast<Eigen::Index>(tokens.size());
  const Eigen::Index size = k.cols() * v.cols();
  Matrix<T> summaries(blocks, size);  // one S_b per row
  Matrix<T> key_sums(blocks, k.cols());
  for (Eigen::Index b = 0; b < blocks; ++b) {
    const auto& block = tokens[static_cast<std::size_t>(b)];
    const Matrix<T> features = relu(k(block, Eigen::all));
    const Matrix<T> values = v(block, Eigen::all);
    Result<T>(summaries.row(b).data(), k.cols(), v.cols()).noalias() =
        features.transpose() * values;
    key_sums.row(b) = features.colwise().sum();
  }
  const Matrix<T> mixed_summaries = mix * summaries;
  const Matrix<T> mixed_key_sums = mix * key_sums;
  for (Eigen::Index i = 0; i < blocks; ++i) {
    const auto& block = tokens[static_cast<std::size_t>(i)];
    const Matrix<T> features = relu(q(block, Eigen::all));
    Matrix<T> out = features * Rows<T>(mixed_summaries.row(i).data(), k.cols(), v.cols());
    out.array().colwise() /= (features * mixed_key_sums.row(i).transpose()).array() + T(1e-6);
    y(block, Eigen::all) = out;
  }
}

}  // namespace bench
