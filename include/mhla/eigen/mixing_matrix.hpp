// SPDX-License-Identifier: MIT
// initialize, project and fit for mixing matrices, and structured mixings' parameters, that are
// Eigen tensors: mix [1 | heads, query blocks, key blocks] or [query blocks, key blocks]; with its
// axes reversed in a ColMajor tensor.
#pragma once

#include <mhla/eigen/tensor_views.hpp>
#include <mhla/structured_mixing.hpp>

MHLA_NAMESPACE_BEGIN

namespace eigen {

/// An Eigen::Tensor or Eigen::TensorMap that can be written to.
template <class X>
concept WritableTensor = EigenTensor<std::remove_cvref_t<X>> && requires(X& tensor) {
  { tensor.data() } -> std::same_as<typename TensorTraits<std::remove_cvref_t<X>>::Scalar*>;
};

}  // namespace eigen

/// \addtogroup mixing_matrix
/// \{

/// Fills an Eigen tensor or map, which already has its extents, with the initial matrix of
/// `attention`: see the overload for views.
template <eigen::WritableTensor X, AttentionVariant A>
void initialize(X&& mix, const A& attention, const InitialMixing& options = {}) {
  initialize(eigen::memory_view(mix), attention, options);
}

/// Fills mix between the blocks of one grid.
template <eigen::WritableTensor X>
void initialize(X&& mix, const Grid& grid, const InitialMixing& options = {}) {
  initialize(eigen::memory_view(mix), grid, options);
}

/// Fills mix between the blocks of two grids.
template <eigen::WritableTensor X, std::same_as<Grid> KeyGrid>
void initialize(X&& mix, const Grid& query_grid, const KeyGrid& key_grid,
                const InitialMixing& options = {}) {
  initialize(eigen::memory_view(mix), query_grid, key_grid, options);
}

/// Clamps every entry of mix: see the overload for views.
template <eigen::WritableTensor X>
void project(X&& mix, const Projection& onto = {}) {
  project(eigen::memory_view(mix), onto);
}

/// Limits the parameters of any mixing.
template <eigen::WritableTensor X, AttentionVariant A>
void project(X&& mix, const A& attention, const Projection& onto = {}) {
  project(eigen::memory_view(mix), attention, onto);
}

/// Fits the parameters of a structured mixing to dense matrices: see the overloads for views.
template <eigen::WritableTensor X, EigenTensor Dense, AttentionVariant A>
double fit(X&& mix, const Dense& dense, const A& attention, const FitOptions& options = {}) {
  return fit(eigen::memory_view(mix), eigen::memory_view(dense), attention, options);
}

/// \}

MHLA_NAMESPACE_END
