// SPDX-License-Identifier: MIT
// SeparableMixing: sums of Kronecker products, one axis after the other.
#pragma once

#include <mhla/core/shape.hpp>
#include <mhla/policy/mixing_product.hpp>

MHLA_NAMESPACE_BEGIN

/// A sum of `rank` Kronecker products with a factor for each axis of the geometry, for
/// Bidirectional. Factor F_ra is [query blocks along axis a, key blocks along it]:
///
///     m = sum_r F_r0 x F_r1 x F_r2          (of Blocks2D F_r0 x F_r1, of Blocks1D F_r0)
///
/// mix [.., rank, sum over axes of query blocks * key blocks along the axis]: row r holds the
/// factors F_ra one after the other, each row-major.
/// \ingroup mixings
struct SeparableMixing {
  Index rank = 1;  ///< K

  static constexpr bool causal = false;  ///< maps between whole grids

  /// Columns of mix.
  Index columns(const MixingLayout& layout) const {
    Index sum = 0;
    for (int axis = 3 - layout.rank; axis < 3; ++axis)
      sum = checked_add(sum, checked_mul(layout.queries[axis], layout.keys[axis]));
    return sum;
  }

  /// \cond INTERNAL
  void require_parameters(const MixingLayout& layout, Index rows, Index parameter_columns) const {
    require_at_least("mixing.rank", rank, 1);
    require_extent("mix", "rows", rows, rank,
                   "SeparableMixing's mix has a row for each of `rank` Kronecker products");
    require_extent("mix", "columns", parameter_columns, columns(layout),
                   "a row of SeparableMixing's mix holds, for every axis of the blocks, a factor "
                   "of a row per query block and a column per key block along it");
  }

  Index num_coefficients(const MixingLayout& layout) const {
    return checked_mul(rank, columns(layout));
  }
  Index num_rows(const MixingLayout& layout) const {
    Index rows = 0;
    for (int axis = 3 - layout.rank + 1; axis < 3; ++axis)
      rows = checked_add(rows, rows_after(layout, axis));
    return checked_add(checked_add(layout.query_blocks(), layout.key_blocks()),
                       checked_mul(rank, rows));
  }

  // From the last axis to the first: outer axes still have key blocks, inner ones query blocks.
  template <class Visit>
  void for_each_product(const MixingLayout& layout, Visit&& visit) const {
    const Index output = layout.key_blocks();
    const int first = 3 - layout.rank;
    Index free = output + layout.query_blocks();
    for (Index r = 0; r < rank; ++r) {
      Index end = (r + 1) * columns(layout);
      Index in = 0;
      for (int axis = 2; axis >= first; --axis) {
        const Index queries = layout.queries[axis];
        const Index keys = layout.keys[axis];
        Index outer = 1;
        Index inner = 1;
        for (int a = first; a < axis; ++a) outer *= layout.keys[a];
        for (int a = axis + 1; a < 3; ++a) inner *= layout.queries[a];
        end -= queries * keys;
        const Index out = axis == first ? output : free;
        visit(MixingProduct{end, keys, out, in, queries, keys, axis == first && r > 0, false, outer,
                            inner});
        if (axis > first) free += rows_after(layout, axis);
        in = out;
      }
    }
  }

  template <class A>
  void coefficients(const MixingLayout& layout, const TensorView<const A, 2>& mix,
                    const Span<A>& to) const {
    for (Index part = 0; part < num_parts(layout); ++part) coefficients(layout, mix, to, part);
  }
  template <class A>
  void vjp(const MixingLayout& layout, const TensorView<const A, 2>& mix, const Span<const A>& grad,
           const TensorView<A, 2>& grad_mix) const {
    for (Index part = 0; part < num_parts(layout); ++part) vjp(layout, mix, grad, grad_mix, part);
  }

  // Of both what can be done side by side: entries.
  Index num_parts(const MixingLayout& layout) const { return num_coefficients(layout); }
  Index num_gradient_parts(const MixingLayout& layout, Index) const { return num_parts(layout); }
  template <class A>
  MHLA_HOST_DEVICE void coefficients(const MixingLayout&, const TensorView<const A, 2>& mix,
                                     const Span<A>& to, Index part) const {
    to[part] = mix.element(part);
  }
  template <class A>
  MHLA_HOST_DEVICE void vjp(const MixingLayout&, const TensorView<const A, 2>&,
                            const Span<const A>& grad, const TensorView<A, 2>& grad_mix,
                            Index part) const {
    grad_mix.element(part) += grad[part];
  }

 private:
  // Rows of the work array once `axis` has query blocks.
  static Index rows_after(const MixingLayout& layout, int axis) {
    Index rows = 1;
    for (int a = 0; a < 3; ++a)
      rows = checked_mul(rows, a < axis ? layout.keys[a] : layout.queries[a]);
    return rows;
  }
  /// \endcond
};

MHLA_NAMESPACE_END
