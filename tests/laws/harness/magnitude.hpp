// SPDX-License-Identifier: MIT
// How large the terms are that each result is summed from: for every element, the sum of |terms|,
// where a term divided by a denominator counts as often as the denominator's own terms outweigh it.
// Rounding errors stay below a small multiple of unit roundoff times this, whatever cancels: signed
// features under a normalizer, rotated numerators, gradients that vanish.
#pragma once

#include "tests/laws/harness/oracle.hpp"

namespace laws {

/// The magnitudes of y, and of dq, dk, dv and dmix.
struct CallMagnitudes {
  HostTensor<double, 4> y;
  Gradients<double> gradients;
};

/// `y` is the output; without `dy` the gradients are left out.
CallMagnitudes magnitudes_of(const Variant& variant, const Setting& setting,
                             const Operands<Wide>& operands, const HostTensor<Wide, 4>& y,
                             const HostTensor<Wide, 4>* dy);

}  // namespace laws
