// SPDX-License-Identifier: MIT
// The definition of run_variant, for the files that instantiate it.
#pragma once

#include <algorithm>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <type_traits>

#include "attention_run.hpp"

namespace replay {

template <class T>
mhla::testing::HostTensor<T, 4> tensor_of(const Array& array) {
  mhla::testing::HostTensor<T, 4> tensor(array.shape[0], array.shape[1], array.shape[2],
                                         array.shape[3]);
  tensor.elements().assign(array.values.begin(), array.values.end());
  return tensor;
}

template <class T>
mhla::testing::HostTensor<T, 3> matrices_of(const Array& array) {
  mhla::testing::HostTensor<T, 3> tensor(array.shape[0], array.shape[1], array.shape[2]);
  tensor.elements().assign(array.values.begin(), array.values.end());
  return tensor;
}

template <class T, int Rank>
Array array_of(const mhla::testing::HostTensor<T, Rank>& tensor) {
  Array array;
  for (int axis = 0; axis < Rank; ++axis) array.shape.push_back(tensor.extent(axis));
  array.values.assign(tensor.elements().begin(), tensor.elements().end());
  return array;
}

template <class T, class FeatureMap>
AttentionResults run_variant(const AttentionCase& attention_case, FeatureMap map,
                             const AttentionInputs& inputs, const ChosenExecutor& executor) {
  const auto q = tensor_of<T>(inputs.q);
  const auto k = tensor_of<T>(inputs.k);
  const auto v = tensor_of<T>(inputs.v);
  const auto mix = matrices_of<T>(inputs.mix);
  const auto dout = tensor_of<T>(inputs.dout);
  auto out = tensor_of<T>(inputs.dout);
  auto dq = q;
  auto dk = k;
  auto dv = v;
  auto dmix = mix;
  with_variant(attention_case, map, [&](const auto& attention) {
    using Causality = typename std::remove_cvref_t<decltype(attention)>::CausalityType;
    if constexpr (std::is_same_v<Causality, mhla::Bidirectional>) {
      const mhla::Shape shape = mhla::shape_of(q.view(), k.view(), v.view(), mix.view());
      const mhla::Workspace workspace(
          std::max(mhla::forward_workspace_size<T>(attention, shape, executor),
                   mhla::backward_workspace_size<T>(attention, shape, executor)));
      mhla::forward_into(attention, executor, q, k, v, mix, out.view(), workspace);
      mhla::backward_into(attention, executor, q.view(), k, v, mix, dout,
                          {dq.view(), dk.view(), dv.view(), dmix.view()}, mhla::Update::overwrite,
                          workspace);
    } else {
      throw UnsupportedCase(attention_case.causality == CausalityName::causal
                                ? "causal 1: causal attention is not in the library yet"
                                : "causal 2: block-causal attention is not in the library yet");
    }
  });
  return {array_of(out), array_of(dq), array_of(dk), array_of(dv), array_of(dmix)};
}

/// Compiles a feature map's variants, in both scalars.
#define REPLAY_INSTANTIATE(Map32, Map64)                                                       \
  template AttentionResults run_variant<float>(const AttentionCase&, Map32,                    \
                                               const AttentionInputs&, const ChosenExecutor&); \
  template AttentionResults run_variant<double>(const AttentionCase&, Map64,                   \
                                                const AttentionInputs&, const ChosenExecutor&)

}  // namespace replay
