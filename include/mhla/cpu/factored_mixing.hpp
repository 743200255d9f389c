// SPDX-License-Identifier: MIT
// A structured mixing (policy/mixing.hpp) and its adjoint: a list of products
//
//   out (+)= (1 x C x 1) in
//
// on rows of a work array: S of the key blocks, then S~ of the query blocks, then rows in between.
// The adjoint runs the list backwards:
//
//   din += (1 x C^T x 1) dout          dC += dout in^T, over all neighbours that C treats alike
//
// Rows are as wide as a summary, or as a key sum. A task takes some columns of all rows through the
// whole list, so that what one product leaves is in cache for the next.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/policy/mixing.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// The work array of a unit.
template <class A>
struct MixingRows {
  Panel<A> inputs;  // [key blocks, width]: S, or z
  Panel<A> others;  // [the rest, width]: S~ and what is in between

  Index width() const { return others.cols; }
  MixingRows col_range(Index first, Index count) const {
    return {inputs.col_range(first, count), others.col_range(first, count)};
  }
  /// `count` rows, `step` apart.
  Panel<A> at(Index first, Index count, Index step) const {
    const bool input = first < inputs.rows;
    const Panel<A>& panel = input ? inputs : others;
    return {panel.row(input ? first : first - inputs.rows), count, panel.cols, panel.stride * step};
  }
};

/// Calls run(out, in) with the rows of each copy of a product's C.
template <class A, class Run>
void for_each_copy(const MixingProduct& product, const MixingRows<A>& outputs,
                   const MixingRows<A>& inputs, const Run& run) {
  const auto& p = product;
  for (Index o = 0; o < p.outer; ++o)
    for (Index i = 0; i < p.inner; ++i)
      run(outputs.at(p.out + o * p.rows * p.inner + i, p.rows, p.inner),
          inputs.at(p.in + o * p.columns * p.inner + i, p.columns, p.inner));
}

/// Rows of the work array that a list uses.
inline Index num_rows(Span<const MixingProduct> products) {
  Index rows = 0;
  for (const MixingProduct& p : products)
    rows = (std::max)(
        {rows, p.out + p.outer * p.rows * p.inner, p.in + p.outer * p.columns * p.inner});
  return rows;
}

template <class A>
Panel<A> coefficients_of(const MixingProduct& product, A* coefficients) {
  return {coefficients + product.coefficient, product.rows, product.columns, product.stride};
}

/// The list applied to the inputs of `rows`.
template <class A>
void mix_by_products(Span<const MixingProduct> products, const A* coefficients,
                     const MixingRows<A>& rows) {
  for (const MixingProduct& product : products)
    for_each_copy(product, rows, rows, [&](const Panel<A>& out, const Panel<A>& in) {
      mix_rows<A>(out, coefficients_of(product, coefficients), false, in,
                  product.add ? Into::add : Into::overwrite,
                  product.triangular ? Terms::past : Terms::all);
    });
}

/// Its adjoint: adds to all rows that products read, of the gradients of those they write.
template <class A>
void mix_by_products_gradient(Span<const MixingProduct> products, const A* coefficients,
                              const MixingRows<A>& grad) {
  for (Index p = products.size - 1; p >= 0; --p) {
    const MixingProduct& product = products[p];
    const Panel<const A> all = coefficients_of(product, coefficients);
    // Of a triangle, row `skipped` is the first with the first column.
    const Index skipped = product.triangular ? product.rows - product.columns : 0;
    const Panel<const A> seen = all.row_range(skipped, product.rows - skipped);
    for_each_copy(product, grad, grad, [&](const Panel<A>& out, const Panel<A>& in) {
      mix_rows<A>(in, seen, true, out.row_range(skipped, seen.rows), Into::add,
                  product.triangular ? Terms::future : Terms::all);
    });
  }
}

/// The adjoint in one product's coefficients: dC += dout in^T. Of a triangle, entries that do not
/// count get any value.
template <class A>
void mixing_coefficient_gradient(const MixingProduct& product, const MixingRows<A>& grad,
                                 const MixingRows<A>& rows, A* grad_coefficients) {
  for_each_copy(product, grad, rows, [&](const Panel<A>& grad_out, const Panel<A>& in) {
    multiply_right_transposed<A>(coefficients_of(product, grad_coefficients), grad_out, in,
                                 Into::add);
  });
}

/// Calls run(columns) for some columns of a work array at a time: always the same ones, whole
/// vectors, so that the bits do not depend on threads. Kernels sum half a vector in another order:
/// a half of it is taken apart, so that an element has the same bits wherever it is, in S and S^T.
template <class Run>
void for_each_column_range(Index width, const ExecutorRef& loop, const Run& run) {
  constexpr Index columns = 512;
  constexpr Index half = 8;
  const Index apart = width % (2 * half) == half ? half / 2 : 0;
  const Index tasks = ceil_div(width - apart, columns);
  loop.parallel_for(tasks + (apart > 0 ? 1 : 0), [&](Index task, Index) {
    const Index first = (std::min)(task * columns, width - apart);
    run(first, task < tasks ? (std::min)(columns, width - apart - first) : apart);
  });
}

}  // namespace cpu

MHLA_NAMESPACE_END
