// SPDX-License-Identifier: MIT
// The loss of predictions among symbols.
#pragma once

#include <cmath>
#include <vector>

#include "parameters.hpp"

namespace layers {

/// A prediction that counts: after token `row`, `target` followed.
struct Prediction {
  Index row;
  int target;
};

/// The sum of -log p(target), in nats. With d_logits: its gradient times `weight`.
template <class T>
double cross_entropy(const Matrix<T>& logits, const std::vector<Prediction>& predictions,
                     T weight = T(0), Matrix<T>* d_logits = nullptr) {
  Matrix<T> log_p(logits.rows(), logits.cols());
  for (Index row = 0; row < logits.rows(); ++row) {
    const T largest = logits.row(row).maxCoeff();
    const T log_sum = std::log((logits.row(row).array() - largest).exp().sum()) + largest;
    log_p.row(row) = logits.row(row).array() - log_sum;
  }
  double loss = 0;
  Values<T> count = Values<T>::Zero(logits.rows());
  for (const auto& [row, target] : predictions) {
    loss -= static_cast<double>(log_p(row, target));
    count(row) += T(1);
  }
  if (d_logits != nullptr) {
    *d_logits = (log_p.array().exp().colwise() * count) * weight;
    for (const auto& [row, target] : predictions) (*d_logits)(row, target) -= weight;
  }
  return loss;
}

/// How many targets have the largest logit of their row.
template <class T>
Index right_predictions(const Matrix<T>& logits, const std::vector<Prediction>& predictions) {
  Index right = 0;
  for (const auto& [row, target] : predictions) {
    Index likeliest = 0;
    logits.row(row).maxCoeff(&likeliest);
    right += likeliest == target ? 1 : 0;
  }
  return right;
}

}  // namespace layers
