// SPDX-License-Identifier: MIT
// An attention case run forward and backward, or token by token: what goes in, what comes out. A
// variant is a type, so there are many to compile; each feature map's are compiled in one of the
// variants_*.cpp, which include variant_run.hpp.
#pragma once

#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <vector>

#include "../checkpoints/npy.hpp"
#include "attention_case.hpp"
#include "executor.hpp"
#include "variant.hpp"

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

/// Runs the case in the scalar T with its feature map. Throws UnsupportedCase where the library has
/// no such variant, mhla::ShapeError where the variant does not take such sizes.
template <class T, class FeatureMap>
AttentionResults run_variant(const AttentionCase& attention_case, FeatureMap map,
                             const AttentionInputs& inputs, const ChosenExecutor& executor);

/// `out` of a causal case, decoded from its beginning once for each of the prefill lengths: so many
/// tokens of each sequence at once, then all sequences step by step. Throws UnsupportedCase for a
/// case that is not causal, mhla::Error where the variant does not take such sizes.
template <class T, class FeatureMap>
std::vector<Array> decode_variant(const AttentionCase& attention_case, FeatureMap map,
                                  const AttentionInputs& inputs,
                                  const std::vector<Index>& prefill_lengths,
                                  const ChosenExecutor& executor);

/// Calls f with the feature map the case names, in the scalar T.
template <class T, class F>
void with_case_map(const AttentionCase& attention_case, const AttentionInputs& inputs, F&& f) {
  const std::vector<T> projection(inputs.projection.values.begin(), inputs.projection.values.end());
  mhla::TensorView<const T, 2> projection_view;
  if (inputs.projection.shape.size() == 2)
    projection_view =
        mhla::make_view(projection.data(), inputs.projection.shape[0], inputs.projection.shape[1]);
  with_feature_map<T>(attention_case, projection_view, f);
}

/// run_variant with the feature map the case names.
template <class T>
AttentionResults run_attention(const AttentionCase& attention_case, const AttentionInputs& inputs,
                               const ChosenExecutor& executor) {
  AttentionResults results;
  with_case_map<T>(attention_case, inputs, [&](auto map) {
    results = run_variant<T>(attention_case, map, inputs, executor);
  });
  return results;
}

/// decode_variant with the feature map the case names.
template <class T>
std::vector<Array> decode_attention(const AttentionCase& attention_case,
                                    const AttentionInputs& inputs,
                                    const std::vector<Index>& prefill_lengths,
                                    const ChosenExecutor& executor) {
  std::vector<Array> outputs;
  with_case_map<T>(attention_case, inputs, [&](auto map) {
    outputs = decode_variant<T>(attention_case, map, inputs, prefill_lengths, executor);
  });
  return outputs;
}

}  // namespace replay
