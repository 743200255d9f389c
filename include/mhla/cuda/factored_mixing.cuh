// SPDX-License-Identifier: MIT
// A structured mixing (policy/mixing.hpp) and its adjoint, of all units at once: coefficients from
// parameters, a list of products
//
//   out (+)= (1 x C x 1) in
//
// on rows of a work array, S of the key blocks, then S~ of the query blocks, then rows in between,
// and their adjoint, which runs the list backwards:
//
//   din += (1 x C^T x 1) dout          dC += dout in^T, over all neighbours that C treats alike
//
// and whose dC the policy turns into the parameters' gradient. Every unit and matrix has its own
// coefficients, unless all share one matrix.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/chip/launch.cuh>
#include <mhla/cuda/gemm.cuh>
#include <mhla/cuda/plan.hpp>
#include <mhla/cuda/token_block.cuh>
#include <mhla/policy/mixing.hpp>
#include <mhla/policy/traits.hpp>
#include <utility>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// The work array of every unit, for one of its matrices.
template <class A>
struct MixingRows {
  /// Consecutive rows, from `first` on.
  struct Region {
    Index first;
    A* data;
    Index stride;   // from row to row
    Index of_unit;  // from unit to unit
  };
  Region region[3];  // S or z, S~ or z~, in between
  Index units;
  Index width;

  /// Row `row` and what follows it.
  Region at(Index row) const {
    Region found = region[row < region[1].first ? 0 : row < region[2].first ? 1 : 2];
    found.data += (row - found.first) * found.stride;
    return found;
  }
};

/// Calls run(out, in, C) for all copies of a product's C, some of them side by side in each batch:
/// the copies of one unit come one after another where they `add` to one C.
template <class A, class Run>
void for_each_copy(const MixingProduct& p, const MixingRows<A>& outputs,
                   const MixingRows<A>& inputs, A* coefficients, Index of_unit, bool add,
                   const Run& run) {
  const auto out = outputs.at(p.out);
  const auto in = inputs.at(p.in);
  // Neighbours without a gap are one row.
  const bool wide = out.stride == outputs.width && in.stride == inputs.width;
  const Index cols = outputs.width * (wide ? p.inner : 1);
  struct Axis {
    Index count, out, in, coefficient;
  } axis[3] = {{outputs.units, out.of_unit, in.of_unit, of_unit},
               {p.outer, p.rows * p.inner * out.stride, p.columns * p.inner * in.stride, 0},
               {wide ? 1 : p.inner, out.stride, in.stride, 0}};
  for (int a = 1; a < 3 && !add; ++a)
    if (axis[a].count > axis[0].count) std::swap(axis[a], axis[0]);
  const auto& [batch, x, y] = axis;
  for (Index i = 0; i < x.count; ++i)
    for (Index j = 0; j < y.count; ++j)
      run(Panels<A>{out.data + i * x.out + j * y.out, batch.count, p.rows, cols,
                    p.inner * out.stride, batch.out},
          Panels<A>{in.data + i * x.in + j * y.in, batch.count, p.columns, cols,
                    p.inner * in.stride, batch.in},
          Panels<A>{coefficients + p.coefficient + i * x.coefficient + j * y.coefficient,
                    batch.count, p.rows, p.columns, p.stride, batch.coefficient});
}

/// Which entries of a triangular product's C count.
inline LowerTriangle triangle_of(const MixingProduct& p) { return {0, p.rows - p.columns}; }

/// Calls visit(product) for the list, from its end to its begin.
template <class M, class Visit>
void for_each_product_backwards(const M& mixing, const MixingLayout& layout, const Visit& visit) {
  constexpr Index some = 64;
  MixingProduct products[std::size_t{some}];
  Index end = 0;
  mixing.for_each_product(layout, [&](const MixingProduct&) { ++end; });
  while (end > 0) {
    const Index begin = std::max(Index{0}, end - some);
    Index n = 0;
    mixing.for_each_product(layout, [&](const MixingProduct& product) {
      if (n >= begin && n < end) products[n - begin] = product;
      ++n;
    });
    for (; end > begin; --end) visit(products[end - 1 - begin]);
  }
}

/// The parts that coefficients, or gradients, of one of mix's matrices are computed in.
template <class M>
Index coefficient_parts(const M& mixing, const MixingLayout& layout) {
  if constexpr (requires { mixing.num_parts(layout); }) return mixing.num_parts(layout);
  return 1;
}
template <class M>
Index gradient_parts(const M& mixing, const MixingLayout& layout, Index rows) {
  if constexpr (requires { mixing.num_gradient_parts(layout, rows); })
    return mixing.num_gradient_parts(layout, rows);
  return 1;
}

/// A part of the coefficients of one unit and matrix.
template <class M, class A>
struct MixingCoefficients {
  M mixing;
  MixingLayout layout;
  TensorView<const A, 3> mix;
  Index parts;
  Index size;  // coefficients of a matrix
  A* to;       // [units * matrices or 1, size]

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index n = i / parts;
    const TensorView<const A, 2> matrix = matrix_view(mix, n % mix.extent[0]);
    const Span<A> coefficients{to + n * size, size};
    if constexpr (requires { mixing.num_parts(layout); }) {
      mixing.coefficients(layout, matrix, coefficients, i % parts);
    } else {
      mixing.coefficients(layout, matrix, coefficients);
    }
  }
};

/// m_ii, [units * matrices or 1, blocks].
template <class M, class A>
struct OwnCoefficients {
  M mixing;
  Index blocks;
  Index size;
  const A* coefficients;
  A* to;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    to[i] = coefficients[i / blocks * size + mixing.own_coefficient(i % blocks)];
  }
};

/// Sums the gradients of coefficients, in order, over the units that have one matrix of mix: into
/// its first one's.
template <class A>
struct SumCoefficientGradients {
  A* parts;        // [units * matrices, size]
  Index count;     // units * matrices
  Index matrices;  // of mix
  Index size;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    double sum = 0;
    for (Index n = i / size; n < count; n += matrices)
      sum += static_cast<double>(parts[n * size + i % size]);
    parts[i] = static_cast<A>(sum);
  }
};

/// Adds a part of the gradient of one of mix's matrices.
template <class M, class A>
struct MixingParameterGradient {
  M mixing;
  MixingLayout layout;
  TensorView<const A, 3> mix;
  Index parts;
  Index size;
  const A* grad;  // [mix matrices, size]
  TensorView<A, 3> to;

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index n = i / parts;
    const Span<const A> coefficients{grad + n * size, size};
    if constexpr (requires { mixing.num_gradient_parts(layout, parts); }) {
      mixing.vjp(layout, matrix_view(mix, n), coefficients, matrix_view(to, n), i % parts);
    } else {
      mixing.vjp(layout, matrix_view(mix, n), coefficients, matrix_view(to, n));
    }
  }
};

/// The mixing of a part of the batch.
template <class V, class A>
struct FactoredMixing {
  const CudaDevice& device;
  const V& variant;
  const Plan<V, A>& plan;
  const Extents<V>& e = plan.extents;

  /// The coefficients of the part's matrices.
  void fill_coefficients(const TensorView<const A, 3>& mix) const {
    const auto& mixing = variant.mixing;
    const Index parts = coefficient_parts(mixing, e.layout);
    const Index size = e.mixing_size();
    launch(device, e.mixings() * parts,
           MixingCoefficients<typename V::MixingType, A>{mixing, e.layout, mix, parts, size,
                                                         plan.mixing.data});
    if constexpr (masks_own_block<V>)
      launch(device, e.mixings() * e.mix_rows,
             OwnCoefficients<typename V::MixingType, A>{mixing, e.mix_rows, size, plan.mixing.data,
                                                        plan.own_mixing.data});
  }

  /// S~_i and z~_i of every query block.
  void mix() const {
    for (Index matrix = 0; matrix < e.matrices; ++matrix)
      for_each_sequence_rows([&](const auto& rows_of, const MixingLayout& layout) {
        const auto run = [&](Index width, Span<A> from, Span<A> to, Span<A> between) {
          const MixingRows<A> rows =
              rows_of(matrix, width, from, to, rows_between(between, width, matrix));
          variant.mixing.for_each_product(layout, [&](const MixingProduct& p) {
            const Into into = p.add ? Into::add : Into::overwrite;
            for_each_copy(p, rows, rows, coefficients(matrix), of_unit(), false,
                          [&](const auto& out, const auto& in, const auto& c) {
                            if (p.triangular) {
                              multiply_lower(device, out, c, in, triangle_of(p), into);
                            } else {
                              multiply(device, out, c, in, into);
                            }
                          });
          });
        };
        run(e.summary_size(), plan.summaries, plan.mixed_summaries, plan.between_summaries);
        if constexpr (mixes_key_sums<V>)
          run(e.feature_dim, plan.key_sums, plan.mixed_key_sums, plan.between_key_sums);
      });
  }

  /// dS_b and dz_b of every key block; adds to the units' parts of dC, if they are wanted.
  void mix_gradient(bool coefficients_wanted) const {
    clear(device, plan.grad_summaries);
    if constexpr (mixes_key_sums<V>) clear(device, plan.grad_key_sums);
    for (Index matrix = 0; matrix < e.matrices; ++matrix) {
      clear(device, plan.grad_between_summaries);
      clear(device, plan.grad_between_key_sums);
      for_each_sequence_rows([&](const auto& rows_of, const MixingLayout& layout) {
        const auto run = [&](Index width, const MixingRows<A>& rows, Span<A> grad_from,
                             Span<A> grad_to, Span<A> grad_between) {
          const MixingRows<A> grad = rows_of(matrix, width, grad_from, grad_to, grad_between.data);
          for_each_product_backwards(variant.mixing, layout, [&](const MixingProduct& p) {
            if (coefficients_wanted)
              for_each_copy(p, grad, rows, plan.grad_mixing.data + matrix * e.mixing_size(),
                            e.matrices * e.mixing_size(), true,
                            [&](const auto& grad_out, const auto& in, const auto& grad_c) {
                              multiply_right_transposed(device, grad_c, grad_out, in, Into::add);
                            });
            for_each_copy(p, grad, grad, coefficients(matrix), of_unit(), false,
                          [&](const auto& out, const auto& in, const auto& c) {
                            if (p.triangular) {
                              multiply_lower_transposed(device, in, c, out, triangle_of(p),
                                                        Into::add);
                            } else {
                              multiply_left_transposed(device, in, c, out, Into::add);
                            }
                          });
          });
        };
        const auto rows = [&](Index width, Span<A> from, Span<A> to, Span<A> between) {
          return rows_of(matrix, width, from, to, rows_between(between, width, matrix));
        };
        run(e.summary_size(),
            rows(e.summary_size(), plan.summaries, plan.mixed_summaries, plan.between_summaries),
            plan.grad_summaries, plan.grad_mixed_summaries, plan.grad_between_summaries);
        if constexpr (mixes_key_sums<V>)
          run(e.feature_dim,
              rows(e.feature_dim, plan.key_sums, plan.mixed_key_sums, plan.between_key_sums),
              plan.grad_key_sums, plan.grad_mixed_key_sums, plan.grad_between_key_sums);
      });
    }
  }

  /// dmix from the units' parts of dC.
  void parameter_gradient(const TensorView<const A, 3>& mix, const TensorView<A, 3>& grad_mix,
                          Update update) const {
    if (update == Update::overwrite) clear(device, GradientView<A, 3>(grad_mix));
    const Index parts = e.units() * e.matrices;
    const Index size = e.mixing_size();
    A* const sums = plan.grad_mixing.data;
    launch(device, mix.extent[0] * size,
           SumCoefficientGradients<A>{sums, parts, mix.extent[0], size});
    const Index shares = gradient_parts(variant.mixing, e.layout, mix.extent[1]);
    launch(device, mix.extent[0] * shares,
           MixingParameterGradient<typename V::MixingType, A>{variant.mixing, e.layout, mix, shares,
                                                              size, sums, grad_mix});
  }

 private:
  /// Of the first unit; from unit to unit.
  A* coefficients(Index matrix) const { return plan.mixing.data + matrix * e.mixing_size(); }
  Index of_unit() const { return e.mix_heads == 1 ? 0 : e.matrices * e.mixing_size(); }
  /// Rows in between of a matrix: a backward pass keeps all matrices'.
  A* rows_between(Span<A> rows, Index width, Index matrix) const {
    return rows.data + (plan.backward ? matrix : 0) * e.units() * e.between * width;
  }

  /// Calls f(rows_of, layout) for every sequence; rows_of(matrix, width, S, S~, in between) is its
  /// work array.
  template <class F>
  void for_each_sequence_rows(const F& f) const {
    Index between = 0;
    for_each_sequence_side(variant, e, [&](const Sequence& of_queries, const Sequence& of_keys) {
      const MixingLayout layout = e.layout_of(of_queries);
      const Index keys = layout.key_blocks();
      const Index both = keys + layout.query_blocks();
      f(
          [&](Index matrix, Index width, Span<A> from, Span<A> to, A* rows) {
            const Index row = e.matrices * width;
            return MixingRows<A>{
                {{0, from.data + of_keys.first_block * width, width, e.keys.table.blocks * width},
                 {keys, to.data + of_queries.first_block * row + matrix * width, row,
                  e.queries.table.blocks * row},
                 {both, rows + between * width, width, e.between * width}},
                e.units(),
                width};
          },
          layout);
      between += variant.mixing.num_rows(layout) - both;
    });
  }
};

}  // namespace cuda

MHLA_NAMESPACE_END
