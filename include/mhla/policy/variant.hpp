// SPDX-License-Identifier: MIT
// Attention: one variant of Multi-Head Linear Attention (arXiv 2601.07832) as a type, its run-time
// numbers as members. Free of Eigen, so that device code can name the same variant.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/causality.hpp>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/normalizer.hpp>
#include <mhla/policy/rotation.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

/// forward_expression(...) of the Eigen layer, found by argument-dependent lookup, or a sentence.
template <class Variant, class Query, class Key, class Value, class Mix>
auto expression_of_forward(const Variant& variant, const Query& q, const Key& k, const Value& v,
                           const Mix& mix) {
  constexpr bool eigen_layer = requires { forward_expression(variant, q, k, v, mix); };
  static_assert(eigen_layer,
                "mhla: attention(q, k, v, mix) takes Eigen tensors and needs "
                "#include <mhla/attention.hpp>; without Eigen call mhla::forward_into");
  if constexpr (eigen_layer) return forward_expression(variant, q, k, v, mix);
}

/// backward_expression(...) of the Eigen layer, or a sentence.
template <class Variant, class Query, class Key, class Value, class Mix, class GradOutput>
auto expression_of_backward(const Variant& variant, const Query& q, const Key& k, const Value& v,
                            const Mix& mix, const GradOutput& dy) {
  constexpr bool eigen_layer = requires { backward_expression(variant, q, k, v, mix, dy); };
  static_assert(eigen_layer,
                "mhla: attention.backward(q, k, v, mix, dy) takes Eigen tensors and needs "
                "#include <mhla/attention.hpp>; without Eigen call mhla::backward_into");
  if constexpr (eigen_layer) return backward_expression(variant, q, k, v, mix, dy);
}

/// o_t = s phi(q_t)^T S~_i / den_t with S~_i = sum_b m_ib S_b, S_b = sum_{j in b} phi(k_j) v_j^T,
/// for a query t of block i (arXiv 2601.07832, eq. 3 to 5).
///
/// \code
/// using Attention = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
/// const Attention attention{.blocks = {.grid = {32, 32}, .block = {8, 8}}};
/// y = attention(q, k, v, mix);                                             // lazy, composes
/// mhla::gradients(dq, dk, dv, dmix) = attention.backward(q, k, v, mix, dy);
/// \endcode
///
/// Shapes: q [batch, heads, query tokens, key_dim], k [batch, kv_heads, key tokens, key_dim],
/// v [batch, kv_heads, key tokens, value_dim], y and dy [batch, heads, query tokens, value_dim],
/// mix [1 | heads, query blocks, key blocks] or [query blocks, key blocks]; heads is a multiple of
/// kv_heads, and query head h reads kv head h / (heads / kv_heads).
template <class FeatureMapT, class GeometryT, class CausalityT = Bidirectional,
          class NormalizerT = MixedKeySum, class RotationT = NoRotation>
struct Attention {
  static_assert(FeatureMap<FeatureMapT>,
                "mhla: the 1st argument of Attention must be a feature map: trivially copyable, "
                "with T value(T) const and T derivative(T) const for every floating-point T, or "
                "with feature_dim(key_dim), value(in, out) and vjp(in, grad, out) on mhla::Span");
  static_assert(BlockGeometry<GeometryT>,
                "mhla: the 2nd argument of Attention must be a block geometry: Blocks1D, Blocks2D, "
                "Blocks3D, or a type with rank, unset() and grid_of(tokens)");
  static_assert(Causality<CausalityT>,
                "mhla: the 3rd argument of Attention must be Bidirectional, Causal or BlockCausal");
  static_assert(Normalizer<NormalizerT>,
                "mhla: the 4th argument of Attention must be MixedKeySum, MixedProduct or "
                "Unnormalized");
  static_assert(Rotation<RotationT>,
                "mhla: the 5th argument of Attention must be NoRotation, HalfSplitRotary, "
                "AxialRotary, or a type with pairs, axis_pairs and frequency");
  static_assert(CausalityT::sight == Sight::all || GeometryT::rank == 1,
                "mhla: causal attention needs a sequence: use Blocks1D with Causal or BlockCausal");
  static_assert(CausalityT::sight == Sight::all || !NormalizerT::needs.mixed_products,
                "mhla: MixedProduct divides by products of later blocks' queries and so cannot be "
                "causal: use MixedKeySum or Unnormalized with Causal and BlockCausal");
  static_assert(!std::is_same_v<RotationT, HalfSplitRotary> || GeometryT::rank == 1,
                "mhla: HalfSplitRotary knows one axis: use AxialRotary with Blocks2D or Blocks3D");

  FeatureMapT feature_map = {};
  GeometryT blocks = {};
  GeometryT key_blocks = {};  ///< of cross-attention's keys; all extents 0: as `blocks`
  CausalityT causality = {};
  NormalizerT normalizer = {};
  RotationT rotation = {};
  double scale = 1;  ///< multiplies phi(q): numerator and denominator, before epsilon

  using FeatureMapType = FeatureMapT;
  using GeometryType = GeometryT;
  using CausalityType = CausalityT;
  using NormalizerType = NormalizerT;
  using RotationType = RotationT;

  /// The lazy forward expression; needs <mhla/attention.hpp>.
  template <class Query, class Key, class Value, class Mix>
  auto operator()(const Query& q, const Key& k, const Value& v, const Mix& mix) const {
    return expression_of_forward(*this, q, k, v, mix);
  }

  /// The lazy backward expression, to be assigned to mhla::gradients(...); needs
  /// <mhla/attention.hpp>.
  template <class Query, class Key, class Value, class Mix, class GradOutput>
  auto backward(const Query& q, const Key& k, const Value& v, const Mix& mix,
                const GradOutput& dy) const {
    return expression_of_backward(*this, q, k, v, mix, dy);
  }
};

/// Any Attention<...>.
template <class A>
inline constexpr bool is_attention = false;
template <class F, class G, class C, class N, class R>
inline constexpr bool is_attention<Attention<F, G, C, N, R>> = true;

template <class A>
concept AttentionVariant = is_attention<std::remove_cv_t<A>>;

MHLA_NAMESPACE_END
