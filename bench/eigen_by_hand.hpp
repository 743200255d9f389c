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
using Column = Eigen::Matrix<T, Eigen::Dynamic, 1>;
template <class T>
using Rows = Eigen::Map<const Matrix<T>>;
template <class T>
using Result = Eigen::Map<Matrix<T>>;
/// tokens[b] lists the tokens of block b.
using BlockTokens = std::vector<std::vector<Eigen::Index>>;

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
  const Column<T> key_sum = features.colwise().sum().transpose();
  const Matrix<T> queries = relu(q);
  y.noalias() = queries * summary;
  y.array().colwise() /= (queries * key_sum).array() + T(1e-6);
}

/// Block summaries and key sums, a row each, and their mixture.
template <class T>
struct Summaries {
  Matrix<T> kv, key_sum;  // [blocks, key_dim value_dim], [blocks, key_dim]
  Matrix<T> mixed_kv, mixed_key_sum;

  Summaries(const Rows<T>& k, const Rows<T>& v, const Matrix<T>& mix, const BlockTokens& tokens)
      : kv(mix.rows(), k.cols() * v.cols()), key_sum(mix.rows(), k.cols()) {
    for (Eigen::Index b = 0; b < mix.rows(); ++b) {
      const auto& block = tokens[static_cast<std::size_t>(b)];
      const Matrix<T> features = relu(k(block, Eigen::all));
      const Matrix<T> values = v(block, Eigen::all);
      Result<T>(kv.row(b).data(), k.cols(), v.cols()).noalias() = features.transpose() * values;
      key_sum.row(b) = features.colwise().sum();
    }
    mixed_kv = mix * kv;
    mixed_key_sum = mix * key_sum;
  }
};

/// Multi-Head Linear Attention with the MixedKeySum normalizer; mix is [blocks, blocks].
template <class T>
void mhla_by_hand(const Rows<T>& q, const Rows<T>& k, const Rows<T>& v, const Matrix<T>& mix,
                  const BlockTokens& tokens, Result<T> y) {
  const Summaries<T> summaries(k, v, mix, tokens);
  for (Eigen::Index i = 0; i < mix.rows(); ++i) {
    const auto& block = tokens[static_cast<std::size_t>(i)];
    const Matrix<T> features = relu(q(block, Eigen::all));
    Matrix<T> out = features * Rows<T>(summaries.mixed_kv.row(i).data(), k.cols(), v.cols());
    out.array().colwise() /=
        (features * summaries.mixed_key_sum.row(i).transpose()).array() + T(1e-6);
    y(block, Eigen::all) = out;
  }
}

/// Its gradients, summaries computed again; dmix is added to.
template <class T>
void mhla_gradients_by_hand(const Rows<T>& q, const Rows<T>& k, const Rows<T>& v,
                            const Matrix<T>& mix, const BlockTokens& tokens, const Rows<T>& dy,
                            Result<T> dq, Result<T> dk, Result<T> dv, Matrix<T>& dmix) {
  const Summaries<T> summaries(k, v, mix, tokens);
  Matrix<T> grad_mixed_kv(mix.rows(), k.cols() * v.cols());
  Matrix<T> grad_mixed_key_sum(mix.rows(), k.cols());
  for (Eigen::Index i = 0; i < mix.rows(); ++i) {
    const auto& block = tokens[static_cast<std::size_t>(i)];
    const Rows<T> mixed(summaries.mixed_kv.row(i).data(), k.cols(), v.cols());
    const auto mixed_key_sum = summaries.mixed_key_sum.row(i);
    const Matrix<T> queries = q(block, Eigen::all);
    const Matrix<T> features = relu(queries);
    const Column<T> denominators = (features * mixed_key_sum.transpose()).array() + T(1e-6);
    Matrix<T> grad_numerators = dy(block, Eigen::all);
    grad_numerators.array().colwise() /= denominators.array();
    Matrix<T> out = features * mixed;
    out.array().colwise() /= denominators.array();
    const Column<T> grad_denominators = -grad_numerators.cwiseProduct(out).rowwise().sum();
    Matrix<T> grad_features = grad_numerators * mixed.transpose();
    grad_features.noalias() += grad_denominators * mixed_key_sum;
    dq(block, Eigen::all) = (queries.array() > T(0)).select(grad_features, T(0));
    Result<T>(grad_mixed_kv.row(i).data(), k.cols(), v.cols()).noalias() =
        features.transpose() * grad_numerators;
    grad_mixed_key_sum.row(i).noalias() = grad_denominators.transpose() * features;
  }
  dmix.noalias() += grad_mixed_kv * summaries.kv.transpose();
  dmix.noalias() += grad_mixed_key_sum * summaries.key_sum.transpose();
  const Matrix<T> grad_kv = mix.transpose() * grad_mixed_kv;
  const Matrix<T> grad_key_sum = mix.transpose() * grad_mixed_key_sum;
  for (Eigen::Index b = 0; b < mix.rows(); ++b) {
    const auto& block = tokens[static_cast<std::size_t>(b)];
    const Rows<T> grad(grad_kv.row(b).data(), k.cols(), v.cols());
    const Matrix<T> keys = k(block, Eigen::all);
    const Matrix<T> values = v(block, Eigen::all);
    Matrix<T> grad_features = values * grad.transpose();
    grad_features.rowwise() += grad_key_sum.row(b);
    dk(block, Eigen::all) = (keys.array() > T(0)).select(grad_features, T(0));
    const Matrix<T> grad_values = relu(keys) * grad;
    dv(block, Eigen::all) = grad_values;
  }
}

}  // namespace bench
