// SPDX-License-Identifier: MIT
// An attention case run forward and backward: what goes in, what comes out. A variant is a type, so
// there are many to compile; each feature map's are compiled in one of the variants_*.cpp, which
// include variant_run.hpp.
#pragma once

#include <mhla/core/tensor_view.hpp>

#include "attention_case.hpp"
#include "executor.hpp"
#include "npy.hpp"
#include "variant.hpp"

namespace replay {

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

/// The same, with the feature map the case names.
template <class T>
AttentionResults run_attention(const AttentionCase& attention_case, const AttentionInputs& inputs,
                               const ChosenExecutor& executor) {
  const std::vector<T> projection(inputs.projection.values.begin(), inputs.projection.values.end());
  mhla::TensorView<const T, 2> projection_view;
  if (inputs.projection.shape.size() == 2)
    projection_view =
        mhla::make_view(projection.data(), inputs.projection.shape[0], inputs.projection.shape[1]);
  AttentionResults results;
  with_feature_map<T>(attention_case, projection_view, [&](auto map) {
    results = run_variant<T>(attention_case, map, inputs, executor);
  });
  return results;
}

}  // namespace replay
