// SPDX-License-Identifier: MIT
// Attention: one variant of Multi-Head Linear Attention (arXiv 2601.07832) as a type, its run-time
// numbers as members. Independent of Eigen, so that device code can name the same variant.
#pragma once

#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/mixing.hpp>
#include <mhla/policy/normalizer.hpp>
#include <mhla/policy/rotation.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// forward_expression(...) of the Eigen layer, found by argument-dependent lookup, or an error that
// names the missing header.
template <class Variant, class... Operand>
auto expression_of_forward(const Variant& variant, const Operand&... operand) {
  constexpr bool eigen_layer = requires { forward_expression(variant, operand...); };
  static_assert(eigen_layer,
                "mhla: attention(q, k, v, mix) takes Eigen tensors and needs "
                "#include <mhla/attention.hpp>; without Eigen call mhla::forward_into");
  if constexpr (eigen_layer) return forward_expression(variant, operand...);
}

// The expression of attention.backward(q, k, v, mix, dy).
template <class Variant, class... Operand>
auto expression_of_backward(const Variant& variant, const Operand&... operand) {
  constexpr bool eigen_layer = requires { backward_expression(variant, operand...); };
  static_assert(eigen_layer,
                "mhla: attention.backward(q, k, v, mix, dy) takes Eigen tensors and needs "
                "#include <mhla/attention.hpp>; without Eigen call mhla::backward_into");
  if constexpr (eigen_layer) return backward_expression(variant, operand...);
}
/// \endcond

/// \addtogroup variant
/// \{

/// How the CPU computes a call. Both paths compute the same function with different rounding
/// errors. `automatic` decides by the variant and the shape alone, never by the number of threads.
enum class Path {
  automatic,  ///< the path with the lower estimated cost
  /// By summaries of blocks: time grows with the tokens, and with the square of the blocks.
  linear,
  /// By scores of all pairs of tokens, each times the mixing weight of its blocks: time grows with
  /// the square of the tokens and hardly depends on the blocks. Requires DenseMixing and a
  /// normalizer other than MixedProduct. Stages, SequenceParallel and decoders ignore it and are
  /// linear. Precision::fast computes as `exact`, and a ForwardState stays empty.
  quadratic,
};

/// The factors of matrix products on the CPU, whose sums are in the accumulator type either way.
enum class Precision {
  exact,  ///< in the accumulator type
  /// Rounded to bfloat16 for bfloat16 tensors, on machines that multiply bfloat16 at a higher rate
  /// (VDPBF16PS of AMD's Zen 4 and later, AMX, Arm's BFMMLA), where gradients stay accurate. As
  /// `exact` on other machines, for other tensors (instructions for half sum in half, or are no
  /// faster than float), with fewer than 32 features or values, and by Path::quadratic. A
  /// structured mixing, Stages and SequenceParallel mix in the accumulator type; the last two have
  /// exact gradients. A decoder rounds where it takes 16 or more tokens of a block at once. RMS
  /// errors are at most 3e-3 for y (5e-3 with a rotation or features of either sign) and 5e-3 for
  /// gradients, unless few terms make up a result.
  fast,
};

/// One variant of attention. For a query t of block i, with R the rotation and s the scale
/// (arXiv 2601.07832, eq. 3 to 5):
///
///     S_b  = sum_{j in b} R phi(k_j) v_j^T        z_b = sum_{j in b} phi(k_j)
///     S~_i = sum_b m_ib S_b
///     y_t  = s (R phi(q_t))^T S~_i / den_t        den_t: the normalizer's
///
/// Causal attention has b < i in the sum and its own block token by token.
///
/// \code
/// using Attention = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
/// const Attention attention{.blocks = {.grid = {32, 32}, .block = {8, 8}}};
/// y = attention(q, k, v, mix);                                             // lazy, composes
/// mhla::gradients(dq, dk, dv, dmix) = attention.backward(q, k, v, mix, dy);
/// \endcode
///
/// An aggregate of a few numbers: cheap to copy, and safe to use from any number of threads. Shapes
/// are on \ref rules. Combinations that make no sense do not compile: causality needs Blocks1D and
/// excludes MixedProduct, HalfSplitRotary needs Blocks1D, RecurrentMixing causality, and
/// SeparableMixing excludes it.
template <class FeatureMapT, class GeometryT = void, class CausalityT = Bidirectional,
          class NormalizerT = MixedKeySum, class RotationT = NoRotation,
          class MixingT = DenseMixing>
struct Attention {
  static_assert(CausalityT::sight == Sight::all || GeometryT::rank == 1,
                "mhla: causal attention needs a sequence: use Blocks1D with Causal or BlockCausal");
  static_assert(CausalityT::sight == Sight::all || !std::is_same_v<NormalizerT, MixedProduct>,
                "mhla: MixedProduct divides by products of later blocks' queries and so cannot be "
                "causal: use MixedKeySum or Unnormalized with Causal and BlockCausal");
  static_assert(!std::is_same_v<RotationT, HalfSplitRotary> || GeometryT::rank == 1,
                "mhla: HalfSplitRotary has one axis: use AxialRotary with Blocks2D or Blocks3D");
  static_assert(mixing_fits<MixingT>(CausalityT::sight),
                "mhla: a causal mixing, as RecurrentMixing, needs Causal or BlockCausal, and any "
                "other, as SeparableMixing, Bidirectional");
  static_assert(std::is_same_v<MixingT, DenseMixing> || !std::is_same_v<NormalizerT, MixedProduct>,
                "mhla: MixedProduct mixes products by the matrix itself: use DenseMixing with it");

  FeatureMapT feature_map = {};  ///< phi, of queries and keys
  GeometryT blocks = {};         ///< of the queries, and of the keys unless key_blocks is set
  GeometryT key_blocks = {};     ///< of cross-attention's keys; all extents 0: as `blocks`
  CausalityT causality = {};     ///< has no numbers
  NormalizerT normalizer = {};   ///< den_t, with its epsilon
  RotationT rotation = {};       ///< R, with its theta
  MixingT mixing = {};           ///< how S~ comes from S
  double scale = 1;              ///< multiplies phi(q) in numerator and denominator; 0 or more
  Precision precision = Precision::exact;  ///< of products with bfloat16 tensors
  Path path = Path::automatic;             ///< how the CPU computes it

  using FeatureMapType = FeatureMapT;  ///< 1st argument
  using GeometryType = GeometryT;      ///< 2nd argument
  using CausalityType = CausalityT;    ///< 3rd argument
  using NormalizerType = NormalizerT;  ///< 4th argument
  using RotationType = RotationT;      ///< 5th argument
  using MixingType = MixingT;          ///< 6th argument

  /// The lazy forward expression, an mhla::ForwardOp; needs `<mhla/attention.hpp>`.
  template <class Query, class Key, class Value, class Mix>
  auto operator()(const Query& q, const Key& k, const Value& v, const Mix& mix) const {
    return expression_of_forward(*this, q, k, v, mix);
  }

  /// The lazy backward expression, an mhla::BackwardOp, to be assigned to mhla::gradients(...); it
  /// needs `<mhla/attention.hpp>`.
  template <class Query, class Key, class Value, class Mix, class GradOutput>
  auto backward(const Query& q, const Key& k, const Value& v, const Mix& mix,
                const GradOutput& dy) const {
    return expression_of_backward(*this, q, k, v, mix, dy);
  }
};

/// \cond INTERNAL
// Where an argument of Attention is wrong: fails with one sentence that says which.
template <class F, class G, class C, class N, class R, class M>
requires(!(FeatureMap<F> && BlockGeometry<G> && Causality<C> && Normalizer<N> && Rotation<R> &&
           Mixing<M>)) struct Attention<F, G, C, N, R, M> {
  // Of a concept in a static_assert compilers list the requirements; of a constant they do not.
  static constexpr bool is_feature_map = FeatureMap<F>;
  static constexpr bool is_geometry = BlockGeometry<G>;
  static constexpr bool is_causality = Causality<C>;
  static constexpr bool is_normalizer = Normalizer<N>;
  static constexpr bool is_rotation = Rotation<R>;
  static constexpr bool is_mixing = Mixing<M>;
  static_assert(is_feature_map,
                "mhla: the 1st argument of Attention must be a feature map: trivially copyable, "
                "with T value(T) const and T derivative(T) const for every floating-point T, or "
                "with feature_dim(key_dim), value(in, out) and vjp(in, grad, out) on mhla::Span");
  static_assert(is_geometry,
                "mhla: the 2nd argument of Attention must be a block geometry: Blocks1D, Blocks2D, "
                "Blocks3D, or a type with rank, unset() and grid_of(tokens)");
  static_assert(is_causality,
                "mhla: the 3rd argument of Attention must be Bidirectional, Causal or BlockCausal");
  static_assert(is_normalizer,
                "mhla: the 4th argument of Attention must be MixedKeySum, MixedProduct or "
                "Unnormalized");
  static_assert(is_rotation,
                "mhla: the 5th argument of Attention must be NoRotation, HalfSplitRotary, "
                "AxialRotary, or a type with pairs, axis_pairs and frequency");
  static_assert(is_mixing,
                "mhla: the 6th argument of Attention must be DenseMixing, RecurrentMixing, "
                "SeparableMixing, or a type with the members that StructuredMixing lists");
  MHLA_ANY_CALL(Attention, {})
  MHLA_ANY_CALL(static AnyArgument backward, { return {}; })
};

// Any Attention<...>, and batch layouts of one.
template <class A>
inline constexpr bool is_attention = false;
template <class F, class G, class C, class N, class R, class M>
inline constexpr bool is_attention<Attention<F, G, C, N, R, M>> = true;
/// \endcond

/// Any Attention, Packed or Padded.
template <class A>
concept AttentionVariant = is_attention<std::remove_cv_t<A>>;

/// \cond INTERNAL
// The template arguments of a Decoder, of Stages and so on: a variant and its tensors' scalar.
template <class V, class T>
concept VariantOfTensors = AttentionVariant<V> && StorageScalar<T>;
// Their base where the arguments are others: fails with one sentence.
template <class V, class T>
struct NoVariantOfTensors {
  static constexpr bool is_variant = AttentionVariant<V>;
  static constexpr bool is_scalar = !is_variant || StorageScalar<T>;
  static_assert(is_variant,
                "mhla: the 1st argument of this class is an mhla::Attention, or an mhla::Packed or "
                "mhla::Padded of one; the 2nd is the scalar of its tensors");
  static_assert(is_scalar,
                "mhla: the 2nd argument of this class is the scalar of its tensors: float, double, "
                "another floating-point type, mhla::BFloat16 or mhla::Half, which stand for "
                "Eigen's");
  MHLA_ANY_CALL(NoVariantOfTensors, {})
};

// What the stages of every backend need to know about a variant, or a lowered one.
// z~_i = sum_b m_ib z_b
template <class V>
inline constexpr bool mixes_key_sums = std::is_same_v<typename V::NormalizerType, MixedKeySum>;
// R_bp = s q_(b,p) . z_b of every block: so all blocks have one size, the same on both sides, are
// seen by all, and have no masked token.
template <class V>
inline constexpr bool mixes_products = std::is_same_v<typename V::NormalizerType, MixedProduct>;
// Sums are divided by denominators, which are computed from key sums.
template <class V>
inline constexpr bool normalizes = mixes_key_sums<V> || mixes_products<V>;

template <class V>
inline constexpr Sight sight_of = V::CausalityType::sight;
template <class V>
inline constexpr bool is_causal = sight_of<V> != Sight::all;
// Queries see their own block only up to themselves: it is handled token by token.
template <class V>
inline constexpr bool is_causal_within_block = sight_of<V> == Sight::past_tokens;

template <class V>
inline constexpr bool rotates = !std::is_same_v<typename V::RotationType, NoRotation>;
// S~ comes from S by a list of products in place of one matrix.
template <class V>
inline constexpr bool is_structured = !std::is_same_v<typename V::MixingType, DenseMixing>;
template <class V>
inline constexpr bool is_rowwise = RowwiseFeatureMap<typename V::FeatureMapType>;
/// \endcond

/// \}

MHLA_NAMESPACE_END
