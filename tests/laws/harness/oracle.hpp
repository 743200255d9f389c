// SPDX-License-Identifier: MIT
// What a variant should give: the quadratic oracles of mhla::reference in long double, whose own
// rounding does not count beside double's. phi is applied here, and the oracles run with Identity
// on the features, so that they are compiled once for all feature maps.
#pragma once

#include <mhla/core/tensor_view.hpp>
#include <mhla/testing/host_tensor.hpp>

#include "tests/laws/harness/variant.hpp"

namespace laws {

/// dq, dk, dv and dmix with memory of their own.
template <class T>
struct Gradients {
  HostTensor<T, 4> q;
  HostTensor<T, 4> k;
  HostTensor<T, 4> v;
  HostTensor<T, 3> mix;

  GradientViews<T> views() { return {q.view(), k.view(), v.view(), mix.view()}; }
};

/// Zeros of type T shaped as the operands.
template <class T, class U>
Gradients<T> zero_gradients(const Operands<U>& operands) {
  return {HostTensor<T, 4>::like(operands.q), HostTensor<T, 4>::like(operands.k),
          HostTensor<T, 4>::like(operands.v), HostTensor<T, 3>::like(operands.mix)};
}

/// What an oracle computes.
enum class Formula {
  mhla,           ///< mhla::reference::mhla_forward and mhla_backward
  with_key_sums,  ///< the same with MixedKeySum in place of MixedProduct
  linear          ///< mhla::reference::linear_attention_..., likewise; reads no mix
};

using Wide = long double;

HostTensor<Wide, 4> expected_output(Formula formula, const Variant& variant, const Setting& setting,
                                    const Operands<Wide>& operands);

/// Of linear attention dmix is zero.
Gradients<Wide> expected_gradients(Formula formula, const Variant& variant, const Setting& setting,
                                   const Operands<Wide>& operands,
                                   const TensorView<const Wide, 4>& dy);

/// Turns the features of a token in place, as the policies say.
void rotate(const Policies& policies, const Setting& setting, const Grid& grid, Index token,
            Span<Wide> features);

}  // namespace laws
