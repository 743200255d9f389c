// SPDX-License-Identifier: MIT
/// \defgroup normalizers Normalizers
/// \ingroup variant
/// What a query's weighted sum of values is divided by (arXiv 2601.07832, section 4.1, and the
/// released code, which differs from it). Query t lies in block i, at offset p; s is the scale; q
/// and k stand for phi(q) and phi(k) before any rotation. Where den is 0 the output is 0 and
/// contributes 0 to every gradient.
#pragma once

#include <mhla/core/shape.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup normalizers
/// \{

/// den_t = s q_t^T sum_b m_ib z_b + epsilon, z_b = sum of the keys of block b: the paper's. Rows
/// of the attention matrix sum to 1, up to epsilon.
struct MixedKeySum {
  double epsilon = 1e-6;  ///< added to den; 0 or more

  /// \private
  void require_valid() const { require_not_negative("normalizer.epsilon", epsilon); }
};

/// den_(i,p) = sum_b m_ib (s q_(b,p)^T z_b) + epsilon: the released vision, DiT and video code's.
/// It mixes the products of other blocks' queries at the same offset, so it needs blocks of one
/// size, and rows do not sum to 1. For checkpoints trained with that code; not causal, packed or
/// padded.
struct MixedProduct {
  double epsilon = 1e-6;  ///< added to den; 0 or more

  /// \private
  void require_valid() const { require_not_negative("normalizer.epsilon", epsilon); }
};

/// den = 1: the released language model and Wan configuration, where an RMS norm follows.
struct Unnormalized {};

/// MixedKeySum, MixedProduct or Unnormalized.
template <class N>
concept Normalizer =
    std::same_as<N, MixedKeySum> || std::same_as<N, MixedProduct> || std::same_as<N, Unnormalized>;

/// \}

MHLA_NAMESPACE_END
