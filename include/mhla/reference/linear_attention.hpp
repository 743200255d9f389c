// SPDX-License-Identifier: MIT
// Global linear attention in plain loops (arXiv 2006.16236, eq. 4): MHLA with every entry of the
// mixing matrix equal to 1.
#pragma once

#include <mhla/reference/mhla.hpp>

MHLA_NAMESPACE_BEGIN

namespace reference {

/// \addtogroup reference
/// \{

/// \cond INTERNAL
template <class A>
inline constexpr A one = A(1);

// A matrix of ones between the blocks of a call. Throws ShapeError if the variant's grids do not
// have its tokens.
template <class T, AttentionVariant V>
InputView<Accumulator<T>, 3> ones(const V& attention, const TensorView<const T, 4>& q,
                                  const TensorView<const T, 4>& k) {
  static_assert(!std::is_same_v<typename V::NormalizerType, MixedProduct>,
                "mhla: linear attention has one normalizer: use MixedKeySum or Unnormalized");
  static_assert(!is_structured<V>, "mhla: linear attention does not mix: use DenseMixing");
  const auto [query_grid, key_grid] = checked_grids(attention, q.extent[2], k.extent[2]);
  return {&one<Accumulator<T>>, {1, query_grid.num_blocks(), key_grid.num_blocks()}, {}};
}
/// \endcond

/// y = linear attention with the variant's feature map, causality, normalizer, rotation and scale.
/// Its blocks matter only to a rotation, for the grid, and to BlockCausal.
/// \throws ShapeError if variant, operands, masks and y do not fit.
template <AttentionVariant V, class Output, StorageScalar T = ElementOf<Output>>
void linear_attention_forward(const V& attention, InputView<T, 4> q, InputView<T, 4> k,
                              InputView<T, 4> v, Output&& output, const TokenMasks& masks = {}) {
  mhla_forward(attention, q, k, v, ones<T>(attention, q, k), view_of(output), masks);
}

/// Gradients of sum(dy o y) in q, k and v, each of which may be skipped; that of mix must be.
/// \throws ShapeError if variant, operands, masks, dy and gradients do not fit.
template <AttentionVariant V, class Query, class T = std::remove_const_t<ElementOf<const Query>>>
requires StorageScalar<T>
void linear_attention_backward(const V& attention, const Query& query, InputView<T, 4> k,
                               InputView<T, 4> v, InputView<T, 4> dy,
                               const GradientViews<std::type_identity_t<T>>& gradients,
                               Update update = Update::overwrite, const TokenMasks& masks = {}) {
  require_no_mix(gradients);
  const InputView<T, 4> q = view_of(query);
  write_gradients<V, T>(attention, {q, k, v, ones<T>(attention, q, k)}, dy, gradients, update,
                        masks);
}

/// The attention matrix of one batch item and head: weights [query tokens, key tokens]; if
/// normalized, y = weights v.
/// \throws ShapeError if variant, operands, masks and weights do not fit.
template <AttentionVariant V, class Query, class T = std::remove_const_t<ElementOf<const Query>>>
requires StorageScalar<T>
void linear_attention_weights(const V& attention, const Query& query, InputView<T, 4> k,
                              Index batch, Index head_index, Weights form,
                              TensorView<Accumulator<std::type_identity_t<T>>, 2> weights,
                              const TokenMasks& masks = {}) {
  const InputView<T, 4> q = view_of(query);
  mhla_weights(attention, q, k, ones<T>(attention, q, k), batch, head_index, form, weights, masks);
}

/// \cond INTERNAL
MHLA_ANY_CALL(void linear_attention_forward, { explain_oracle<Given...>(); })
MHLA_ANY_CALL(void linear_attention_backward, { explain_oracle<Given...>(); })
MHLA_ANY_CALL(void linear_attention_weights, { explain_oracle<Given...>(); })
/// \endcond

/// \}

}  // namespace reference

MHLA_NAMESPACE_END
