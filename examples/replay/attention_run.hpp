// SPDX-License-Identifier: MIT
// An attention case run forward and backward, or token by token: what goes in, what comes out.
#pragma once

#include <mhla/core/index.hpp>
#include <vector>

#include "../checkpoints/npy.hpp"
#include "attention_case.hpp"
#include "executor.hpp"

namespace replay {

using checkpoints::Array;
using mhla::Index;

struct AttentionInputs {
  Array q, k, v, mix, dout;
  Array projection;  ///< Favor's alone
};

struct AttentionResults {
  Array out, dq, dk, dv, dmix;
};

/// Runs the case in the scalar T. Throws UnsupportedCase where the library has no such variant,
/// mhla::ShapeError where the variant does not take such sizes.
template <class T>
AttentionResults run_attention(const AttentionCase& attention_case, const AttentionInputs& inputs,
                               const ChosenExecutor& executor);

/// `out` of a causal case, decoded from its beginning once for each of the prefill lengths: so many
/// tokens of each sequence at once, then all sequences step by step. Throws UnsupportedCase for a
/// case that is not causal, mhla::Error where the variant does not take such sizes.
template <class T>
std::vector<Array> decode_attention(const AttentionCase& attention_case,
                                    const AttentionInputs& inputs,
                                    const std::vector<Index>& prefill_lengths,
                                    const ChosenExecutor& executor);

}  // namespace replay
