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
// whole list, so that what one product leaves is in cache for the next. Of a unit's query heads one
// matrix is taken after the other.
#pragma once

#include <mhla/cpu/plan.hpp>

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

/// The list applied to the inputs of `rows`: the products whose sums are rows from `first` on.
template <class A>
void mix_by_products(Span<const MixingProduct> products, const A* coefficients,
                     const MixingRows<A>& rows, Index first) {
  for (const MixingProduct& product : products) {
    if (product.out < first) continue;
    for_each_copy(product, rows, rows, [&](const Panel<A>& out, const Panel<A>& in) {
      mix_rows<A>(out, coefficients_of(product, coefficients), false, in,
                  product.add ? Into::add : Into::overwrite,
                  product.triangular ? Terms::past : Terms::all);
    });
  }
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

/// Key blocks of the unit's work array: those of a whole grid count, also after a padded
/// sequence's last token.
template <class L, class T>
Index structured_key_blocks(const Unit<L, T>& unit) {
  return unit.plan.structure.layout_of(unit.keys.blocks).key_blocks();
}

/// The work array of one width.
template <class L, class T, class A>
MixingRows<A> work_array(const Unit<L, T>& unit, const Panel<A>& inputs, const Panel<A>& others) {
  return {{inputs.data, structured_key_blocks(unit), inputs.cols, inputs.stride}, others};
}

/// Rows [first, rows) of `memory` for summaries and key sums.
template <class L, class T, class A>
SummaryRows<A> structured_rows(const Unit<L, T>& unit, Span<A> memory, Index rows, Index first) {
  const Extents& e = unit.extents();
  return SummaryRows<A>(memory.data + first * e.summary_stride(),
                        memory.data + rows * e.summary_stride() + first * e.feature_dim, e,
                        unit.orientation(), 0, rows - first, normalizes<L>);
}

/// S~ and z~ of all query blocks, and what follows them.
template <class L, class T, class A = Accumulator<T>>
SummaryRows<A> structured_mixtures(const Unit<L, T>& unit) {
  return structured_rows(unit, unit.memory.mixed,
                         unit.plan.structure.num_rows() - unit.extents().key_blocks, 0);
}

/// The states before a stage's blocks, of matrix `matrix`, in the work array after S~: as the unit
/// has sums, from where they were left, not transposed.
template <class L, class T, class A>
void take_up_states(const Unit<L, T>& unit, Index matrix, const SummaryRows<A>& mixed) {
  const Index states = unit.states.summaries.rows;
  SummaryRows<A> from = unit.states;
  const Index next = matrix * (from.summaries.cols + from.key_sums.cols);
  from.summaries.data += next;
  from.key_sums.data += next;
  const SummaryRows<A> to = mixed.row_range(structured_key_blocks(unit), states);
  for (Index r = 0; r < states; ++r) {
    if (unit.orientation() == Orientation::transposed)
      transpose<A>(to.summary(r), from.summary(r));
    else
      copy_row(to.summaries.row(r), from.summaries.row(r), from.summaries.cols);
    copy_row(to.key_sums.row(r), from.key_sums.row(r), from.key_sums.cols);
  }
}

/// S~ and z~ by matrix `matrix`, in the memory of the unit, and what follows them; or rows of the
/// work array from `first_row` on alone.
template <class L, class T, class A = Accumulator<T>>
SummaryRows<A> mix_unit(const Unit<L, T>& unit, Index matrix, const ExecutorRef& loop,
                        bool summaries_wanted, Index first_row = 0) {
  const SummaryRows<A> mixed = structured_mixtures(unit);
  take_up_states(unit, matrix, mixed);
  const auto mix = [&](const Panel<A>& from, const Panel<A>& to) {
    for_each_column_range(to.cols, loop, [&](Index first, Index count) {
      const MixingRows<A> rows = work_array(unit, from, to).col_range(first, count);
      set_zero(rows.inputs.row_range(unit.keys.blocks, rows.inputs.rows - unit.keys.blocks));
      mix_by_products(unit.products, unit.matrix(matrix), rows, first_row);
    });
  };
  if (summaries_wanted) mix(unit.summaries.summaries, mixed.summaries);
  if constexpr (mixes_key_sums<L>) mix(unit.summaries.key_sums, mixed.key_sums);
  return mixed;
}

/// The gradients of the work array.
template <class A>
struct StructuredGradients {
  SummaryRows<A> keys;   // dS and dz
  SummaryRows<A> mixed;  // dS~ and dz~ of one matrix, and what follows them
};

template <class L, class T, class A = Accumulator<T>>
StructuredGradients<A> structured_gradients(const Unit<L, T>& unit) {
  const Index rows = unit.plan.structure.num_rows();
  const auto from = [&](Index first) {
    return structured_rows(unit, unit.memory.grad_mixed, rows, first);
  };
  return {from(0), from(structured_key_blocks(unit))};
}

/// The adjoint of mix_unit: adds to dS and dz, which the first matrix clears, and to the
/// coefficients' gradient, [matrices, coefficients], if that is wanted.
template <class L, class T>
void mix_unit_gradient(const Unit<L, T>& unit, Index matrix, bool mixing_wanted,
                       const ExecutorRef& loop) {
  using A = Accumulator<T>;
  const StructuredGradients<A> grad = structured_gradients(unit);
  const SummaryRows<A> mixed = structured_mixtures(unit);
  const Index others = num_rows(unit.products) - structured_key_blocks(unit);
  const Index left = unit.queries.blocks;
  const Index after = unit.states_after ? unit.plan.structure.num_states() : 0;
  const auto pull_back = [&](Panel<A> SummaryRows<A>::*width) {
    const MixingRows<A> grads =
        work_array(unit, grad.keys.*width, (grad.mixed.*width).row_range(0, others));
    for_each_column_range(grads.width(), loop, [&](Index first, Index count) {
      const MixingRows<A> part = grads.col_range(first, count);
      if (matrix == 0) set_zero(part.inputs);
      // But dS~, which the readout has left, of blocks with tokens, and that of states after them.
      set_zero(part.others.row_range(left, others - left - after));
      mix_by_products_gradient(unit.products, unit.matrix(matrix), part);
    });
    if (!mixing_wanted) return;
    const MixingRows<A> values = work_array(unit, unit.summaries.*width, mixed.*width);
    loop.parallel_for(unit.products.size, [&](Index product, Index) {
      mixing_coefficient_gradient(unit.products[product], grads, values,
                                  unit.memory.grad_mixing.row(matrix));
    });
  };
  pull_back(&SummaryRows<A>::summaries);
  if constexpr (mixes_key_sums<L>) pull_back(&SummaryRows<A>::key_sums);
}

}  // namespace cpu

MHLA_NAMESPACE_END
