// SPDX-License-Identifier: MIT
// The dense matrix that a mixing's parameters stand for.
#pragma once

#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// m [query blocks, key blocks] from one matrix of parameters: the products applied to unit vectors.
template <StructuredMixing M, class A>
void expand(const M& mixing, const MixingLayout& layout, const TensorView<const A, 2>& mix,
            const TensorView<A, 2>& dense) {
  const Index keys = layout.key_blocks();
  std::vector<A> coefficients(static_cast<std::size_t>(mixing.num_coefficients(layout)));
  mixing.coefficients(layout, mix,
                      Span<A>{coefficients.data(), static_cast<Index>(coefficients.size())});
  std::vector<A> memory(static_cast<std::size_t>(checked_mul(mixing.num_rows(layout), keys)));
  const auto row = [&](Index r) { return memory.data() + r * keys; };
  for (Index b = 0; b < keys; ++b) row(b)[b] = A(1);
  mixing.for_each_product(layout, [&](const MixingProduct& p) {
    for (Index n = 0; n < p.outer * p.inner; ++n)
      for (Index r = 0; r < p.rows; ++r) {
        const Index o = n / p.inner;
        A* const out = row(p.out + (o * p.rows + r) * p.inner + n % p.inner);
        if (!p.add) std::fill_n(out, keys, A(0));
        const Index terms = p.triangular ? p.columns - (p.rows - 1 - r) : p.columns;
        for (Index c = 0; c < terms; ++c) {
          const A weight = coefficients[static_cast<std::size_t>(p.coefficient + r * p.stride + c)];
          const A* const in = row(p.in + (o * p.columns + c) * p.inner + n % p.inner);
          for (Index b = 0; b < keys; ++b) out[b] += weight * in[b];
        }
      }
  });
  for (Index i = 0; i < layout.query_blocks(); ++i)
    for (Index b = 0; b < keys; ++b) dense(i, b) = row(keys + i)[b];
  if constexpr (M::causal) {
    for (Index i = 0; i < keys && layout.sight == Sight::past_tokens; ++i)
      dense(i, i) = coefficients[static_cast<std::size_t>(mixing.own_coefficient(i))];
  }
}
/// \endcond

/// Fills `dense` [mix heads, query blocks, key blocks] with the matrices that `mix` stands for in a
/// call of `attention` on `shape`: with them and DenseMixing the call has the same result. What
/// a causal query does not see is 0. Allocates.
/// \throws ShapeError if they do not fit, or dense shares memory with mix or itself.
/// \code
/// const mhla::Shape shape = mhla::shape_of(q_view, k_view, v_view, mix_view);
/// mhla::TensorView<float, 3> dense;  // [mix heads, query blocks, key blocks]
/// mhla::expand(attention, shape, mix_view, dense);
/// \endcode
/// \ingroup mixings
template <AttentionVariant V, class A>
void expand(const V& attention, const Shape& shape, const InputView<A, 3>& mix,
            const TensorView<A, 3>& dense) {
  const Problem problem = checked_problem(attention, shape);
  require_extents(mix, "mix", shape.mix_heads, shape.mix_query_blocks, shape.mix_key_blocks,
                  "mix has the extents that `shape` says");
  require_extents(dense, "dense", shape.mix_heads, problem.query_blocks, problem.key_blocks,
                  "dense has a matrix [query blocks, key blocks] for each of mix's");
  if (!is_injective(dense) || share_memory(dense, mix))
    throw ShapeError(
        "mhla: dense: shares memory with mix, or with itself; a destination needs elements of its "
        "own");
  for (Index h = 0; h < shape.mix_heads; ++h) {
    if constexpr (is_structured<V>) {
      expand(attention.mixing, mixing_layout<V>(problem), matrix_view(mix, h),
             matrix_view(dense, h));
    } else {
      for (Index i = 0; i < problem.query_blocks; ++i)
        for (Index b = 0; b < problem.key_blocks; ++b)
          dense(h, i, b) = is_causal<V> && b > i ? A(0) : mix(h, i, b);
    }
  }
}

/// \cond INTERNAL
MHLA_NO_SUCH_CALL(void expand,
                  "mhla: call expand(attention, shape, mix, dense): shape is an mhla::Shape, as of "
                  "mhla::shape_of(q, k, v, mix), mix and dense are views of rank 3, [heads, rows, "
                  "columns], of one scalar, dense not const")
/// \endcond

MHLA_NAMESPACE_END
