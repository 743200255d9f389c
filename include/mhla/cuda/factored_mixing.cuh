// SPDX-License-Identifier: MIT
// A structured mixing (policy/mixing.hpp) and its adjoint, of all units at once: a list of products
//
//   out (+)= (1 x C x 1) in
//
// on rows of a work array, S of the key blocks, then S~ of the query blocks, then rows in between.
// The adjoint runs the list backwards:
//
//   din += (1 x C^T x 1) dout          dC += dout in^T, over all neighbours that C treats alike
#pragma once

#include <algorithm>
#include <cstddef>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/gemm.cuh>
#include <mhla/policy/mixing_product.hpp>
#include <utility>

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
    const Index begin = (std::max)(Index{0}, end - some);
    Index n = 0;
    mixing.for_each_product(layout, [&](const MixingProduct& product) {
      if (n >= begin && n < end) products[n - begin] = product;
      ++n;
    });
    for (; end > begin; --end) visit(products[end - 1 - begin]);
  }
}

/// The list applied to the inputs of `rows`.
template <class M, class A>
void mix_by_products(const CudaDevice& device, const M& mixing, const MixingLayout& layout,
                     const MixingCoefficients<A>& coefficients, const MixingRows<A>& rows) {
  mixing.for_each_product(layout, [&](const MixingProduct& p) {
    const Into into = p.add ? Into::add : Into::overwrite;
    for_each_copy(p, rows, rows, coefficients, false,
                  [&](const auto& out, const auto& in, const auto& c) {
                    if (p.triangular) {
                      multiply_lower(device, out, c, in, triangle_of(p), into);
                    } else {
                      multiply(device, out, c, in, into);
                    }
                  });
  });
}

/// Its adjoint: adds to all rows that products read, of the gradients of those they write, and to
/// the coefficients' gradients, unless those are null.
template <class M, class A>
void mix_by_products_gradient(const CudaDevice& device, const M& mixing, const MixingLayout& layout,
                              const MixingCoefficients<A>& coefficients, const MixingRows<A>& rows,
                              const MixingRows<A>& grad,
                              const MixingCoefficients<A>& grad_coefficients) {
  set_zero(device, grad.between(mixing.num_rows(layout) - grad.region[2].first));
  for_each_product_backwards(mixing, layout, [&](const MixingProduct& p) {
    if (grad_coefficients.data != nullptr)
      for_each_copy(p, grad, rows, grad_coefficients, true,
                    [&](const auto& grad_out, const auto& in, const auto& grad_c) {
                      multiply_right_transposed(device, grad_c, grad_out, in, Into::add);
                    });
    for_each_copy(p, grad, grad, coefficients, false,
                  [&](const auto& out, const auto& in, const auto& c) {
                    if (p.triangular) {
                      multiply_lower_transposed(device, in, c, out, triangle_of(p), Into::add);
                    } else {
                      multiply_left_transposed(device, in, c, out, Into::add);
                    }
                  });
  });
}

}  // namespace cuda

MHLA_NAMESPACE_END
