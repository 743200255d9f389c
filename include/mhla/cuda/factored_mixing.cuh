// SPDX-License-Identifier: MIT
// A structured mixing (policy/mixing.hpp) of a part of the batch, and its adjoint: coefficients
// from the parameters, then a list of products
//
//   out (+)= (1 x C x 1) in
//
// on rows of a work array, S of the key blocks, then S~ of the query blocks, then rows in between;
// of z likewise, one matrix of every unit at a time. The adjoint runs the list backwards:
//
//   din += (1 x C^T x 1) dout          dC += dout in^T, over all neighbours that C treats alike
//
// and makes the parameters' gradient from the coefficients'. Every unit and matrix has coefficients
// of its own, unless all share one matrix.
#pragma once

#include <mhla/cuda/plan.hpp>
#include <mhla/cuda/token_block.cuh>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// The work arrays of all units, for one matrix of each.
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
  /// `count` rows in between.
  Panels<A> between(Index count) const {
    return {region[2].data, units, count, width, region[2].stride, region[2].of_unit};
  }
};

/// The coefficients of one matrix of each unit, or their gradients.
template <class A>
struct MixingCoefficients {
  A* data;
  Index of_unit;  // from unit to unit; 0: all share them
};

/// Calls run(out, in, C) for all copies of a product's C, some of them side by side in a batch: of
/// units alone where the copies of one unit `share` what is written to C.
template <class A, class Run>
void for_each_copy(const MixingProduct& p, const MixingRows<A>& outputs,
                   const MixingRows<A>& inputs, const MixingCoefficients<A>& c, bool share,
                   const Run& run) {
  const auto out = outputs.at(p.out);
  const auto in = inputs.at(p.in);
  // Neighbours without a gap are one row.
  const bool wide = out.stride == outputs.width && in.stride == inputs.width;
  const Index cols = outputs.width * (wide ? p.inner : 1);
  struct Axis {
    Index count, out, in, coefficient;
  } axis[3] = {{outputs.units, out.of_unit, in.of_unit, c.of_unit},
               {p.outer, p.rows * p.inner * out.stride, p.columns * p.inner * in.stride, 0},
               {wide ? 1 : p.inner, out.stride, in.stride, 0}};
  for (int a = 1; a < 3 && !share; ++a)
    if (axis[a].count > axis[0].count) (std::swap)(axis[a], axis[0]);
  const auto& [batch, x, y] = axis;
  for (Index i = 0; i < x.count; ++i)
    for (Index j = 0; j < y.count; ++j)
      run(Panels<A>{out.data + i * x.out + j * y.out, batch.count, p.rows, cols,
                    p.inner * out.stride, batch.out},
          Panels<A>{in.data + i * x.in + j * y.in, batch.count, p.columns, cols,
                    p.inner * in.stride, batch.in},
          Panels<A>{c.data + p.coefficient + i * x.coefficient + j * y.coefficient, batch.count,
                    p.rows, p.columns, p.stride, batch.coefficient});
}

/// Which entries of a product's C count: none means all.
inline std::optional<LowerTriangle> triangle_of(const MixingProduct& p) {
  if (!p.triangular) return {};
  return LowerTriangle{0, p.rows - p.columns};
}

/// Calls visit(product) for the list, from its end to its begin.
template <class M, class Visit>
void for_each_product_backwards(const M& mixing, const MixingLayout& layout, const Visit& visit) {
  constexpr Index some = 64;
  MixingProduct products[std::size_t{some}];
  Index end = 0;
  mixing.for_each_product(layout, [&](const MixingProduct&) { ++end; });
  while (end > 0) {
    const Index begin = (std::max)(Index{0}, end - some);
    Index n = 0;
    mixing.for_each_product(layout, [&](const MixingProduct& product) {
      if (n >= begin && n < end) products[n - begin] = product;
      ++n;
    });
    for (; end > begin; --end) visit(products[end - 1 - begin]);
  }
}

/// A part of the coefficients of one unit and matrix.
template <class M, class A>
struct FillCoefficients {
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
struct AddParameterGradient {
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

/// The structured mixing of a part of the batch.
template <class V, class A>
struct FactoredMixing {
  using M = typename V::MixingType;
  const CudaDevice& device;
  const V& variant;
  const Plan<V, A>& plan;
  const Extents<V>& e = plan.extents;
  const M& mixing = variant.mixing;

  /// The coefficients of the part's matrices, and m_ii.
  void fill_coefficients(const TensorView<const A, 3>& mix) const {
    Index parts = 1;  // that those of a matrix are computed in
    if constexpr (requires { mixing.num_parts(e.layout); }) parts = mixing.num_parts(e.layout);
    const Index size = e.mixing_size();
    launch(device, e.mixings() * parts,
           FillCoefficients<M, A>{mixing, e.layout, mix, parts, size, plan.mixing.data});
    if constexpr (is_causal_within_block<V>)
      launch(
          device, e.mixings() * e.mix_rows,
          OwnCoefficients<M, A>{mixing, e.mix_rows, size, plan.mixing.data, plan.own_mixing.data});
  }

  /// S~_i and z~_i of every query block.
  void mix() const {
    for_each_list([&](Index matrix, const MixingLayout& layout, const auto& rows_of) {
      mix_rows(matrix, layout, rows_of(summaries()));
      if constexpr (mixes_key_sums<V>) mix_rows(matrix, layout, rows_of(key_sums()));
    });
  }

  /// dS_b and dz_b of every key block; adds to the units' parts of dC, if they are wanted.
  void mix_gradient(bool coefficients_wanted) const {
    set_zero(device, plan.grad_summaries);
    if constexpr (mixes_key_sums<V>) set_zero(device, plan.grad_key_sums);
    for_each_list([&](Index matrix, const MixingLayout& layout, const auto& rows_of) {
      const auto run = [&](const Arrays& values, const Arrays& grad) {
        mix_rows_gradient(matrix, layout, rows_of(values), rows_of(grad), coefficients_wanted);
      };
      run(summaries(), {e.summary_size(), plan.grad_summaries, plan.grad_mixed_summaries,
                        plan.grad_between_summaries});
      if constexpr (mixes_key_sums<V>)
        run(key_sums(), {e.feature_dim, plan.grad_key_sums, plan.grad_mixed_key_sums,
                         plan.grad_between_key_sums});
    });
  }

  /// dmix from the units' parts of dC.
  void parameter_gradient(const TensorView<const A, 3>& mix, const TensorView<A, 3>& grad_mix,
                          Update update) const {
    if (update == Update::overwrite) set_zero(device, grad_mix);
    const Index size = e.mixing_size();
    A* const sums = plan.grad_mixing.data;
    launch(device, mix.extent[0] * size,
           SumCoefficientGradients<A>{sums, e.units() * e.matrices, mix.extent[0], size});
    Index parts = 1;  // that a matrix's gradient is computed in
    if constexpr (requires { mixing.num_gradient_parts(e.layout, Index{}); })
      parts = mixing.num_gradient_parts(e.layout, mix.extent[1]);
    launch(device, mix.extent[0] * parts,
           AddParameterGradient<M, A>{mixing, e.layout, mix, parts, size, sums, grad_mix});
  }

 private:
  /// What work arrays of one width consist of.
  struct Arrays {
    Index width;
    Span<A> inputs;
    Span<A> mixed;
    Span<A> between;
    bool kept = false;  // rows in between, of every matrix
  };
  Arrays summaries() const {
    return {e.summary_size(), plan.summaries, plan.mixed_summaries, plan.between_summaries,
            plan.backward};
  }
  Arrays key_sums() const {
    return {e.feature_dim, plan.key_sums, plan.mixed_key_sums, plan.between_key_sums,
            plan.backward};
  }

  /// The list applied to the inputs of `rows`.
  void mix_rows(Index matrix, const MixingLayout& layout, const MixingRows<A>& rows) const {
    mixing.for_each_product(layout, [&](const MixingProduct& p) {
      const Into into = p.add ? Into::add : Into::overwrite;
      for_each_copy(p, rows, rows, coefficients(matrix), false,
                    [&](const auto& out, const auto& in, const auto& c) {
                      multiply_lower(device, out, c, in, triangle_of(p), into);
                    });
    });
  }
  /// Its adjoint: adds to all rows that products read, of the gradients of those they write, and to
  /// the coefficients' gradients.
  void mix_rows_gradient(Index matrix, const MixingLayout& layout, const MixingRows<A>& rows,
                         const MixingRows<A>& grad, bool coefficients_wanted) const {
    const Index size = e.mixing_size();
    const MixingCoefficients<A> parts{plan.grad_mixing.data + matrix * size, e.matrices * size};
    set_zero(device, grad.between(mixing.num_rows(layout) - grad.region[2].first));
    for_each_product_backwards(mixing, layout, [&](const MixingProduct& p) {
      if (coefficients_wanted)
        for_each_copy(p, grad, rows, parts, true,
                      [&](const auto& grad_out, const auto& in, const auto& grad_c) {
                        multiply_right_transposed(device, grad_c, grad_out, in, Into::add);
                      });
      for_each_copy(p, grad, grad, coefficients(matrix), false,
                    [&](const auto& grad_out, const auto& grad_in, const auto& c) {
                      multiply_lower_transposed(device, grad_in, c, grad_out, triangle_of(p),
                                                Into::add);
                    });
    });
  }
  MixingCoefficients<A> coefficients(Index matrix) const {
    const Index size = e.mixing_size();
    return {plan.mixing.data + matrix * size, e.mix_heads == 1 ? 0 : e.matrices * size};
  }

  /// Calls f(matrix, layout, rows_of) for every matrix of a unit and every sequence;
  /// rows_of(arrays) are the sequence's.
  template <class F>
  void for_each_list(const F& f) const {
    for (Index matrix = 0; matrix < e.matrices; ++matrix) {
      Index between = 0;
      for_each_sequence_side(variant, e, [&](const Sequence& queries, const Sequence& keys) {
        const MixingLayout layout = e.layout_of(queries);
        const Index end_of_keys = layout.key_blocks();
        const Index end = end_of_keys + layout.query_blocks();
        f(matrix, layout, [&](const Arrays& of) {
          const Index width = of.width;
          const Index row = e.matrices * width;
          const Index first = (of.kept ? matrix * e.units() * e.between : 0) + between;
          return MixingRows<A>{
              {{0, of.inputs.data + keys.first_block * width, width, e.keys.table.blocks * width},
               {end_of_keys, of.mixed.data + queries.first_block * row + matrix * width, row,
                e.queries.table.blocks * row},
               {end, of.between.data + first * width, width, e.between * width}},
              e.units(),
              width};
        });
        between += mixing.num_rows(layout) - end;
      });
    }
  }
};

}  // namespace cuda

MHLA_NAMESPACE_END
