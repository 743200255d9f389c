// SPDX-License-Identifier: MIT
// Softmax attention with rotary positions (arXiv 1706.03762, 2104.09864), forward and backward, in
// the plainest way: a tokens x tokens matrix for each head. For comparison only.
#pragma once

#include "any_attention.hpp"

namespace training {

/// In the place of `attention`: with its causality, its grid and its rotation.
void softmax_forward(const AnyAttention& attention, const ConstView& q, const ConstView& k,
                     const ConstView& v, const View& y);
void softmax_backward(const AnyAttention& attention, const ConstView& q, const ConstView& k,
                      const ConstView& v, const ConstView& dy, const View& dq, const View& dk,
                      const View& dv);

}  // namespace training
