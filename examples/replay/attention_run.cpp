// SPDX-License-Identifier: MIT
// Every variant that a case may name, in both scalars.
#include "attention_run.hpp"

#include <algorithm>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/decoding.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "variant.hpp"

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

/// The feature map of a case; Favor's borrows its projection.
template <class T>
ChosenMap<T> map_of(const AttentionCase& c, const std::vector<Index>& shape,
                    const std::vector<T>& projection) {
  ChosenMap<T> map{c.feature_map, c.feature_epsilon, c.nu, {}};
  if (shape.size() == 2)
    map.favor_projection = mhla::make_view(projection.data(), shape[0], shape[1]);
  return map;
}

template <class T>
std::vector<T> elements_of(const Array& array) {
  return {array.values.begin(), array.values.end()};
}

template <class T>
AttentionResults run_attention(const AttentionCase& attention_case, const AttentionInputs& inputs,
                               const ChosenExecutor& executor) {
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
  const std::vector<T> projection = elements_of<T>(inputs.projection);
  const auto map = map_of(attention_case, inputs.projection.shape, projection);
  with_variant(attention_case, map, [&](const auto& attention) {
    const mhla::Shape shape = mhla::shape_of(q.view(), k.view(), v.view(), mix.view());
    const mhla::Workspace workspace(
        std::max(mhla::forward_workspace_size<T>(attention, shape, executor),
                 mhla::backward_workspace_size<T>(attention, shape, executor)));
    mhla::forward_into(attention, executor, q, k, v, mix, out.view(), workspace);
    mhla::backward_into(attention, executor, q.view(), k, v, mix, dout,
                        {dq.view(), dk.view(), dv.view(), dmix.view()}, mhla::Update::overwrite,
                        workspace);
  });
  return {array_of(out), array_of(dq), array_of(dk), array_of(dv), array_of(dmix)};
}

/// Which sequences of a batch, and which of their tokens.
struct Slice {
  Index sequence;
  Index sequences;
  Index token;
  Index tokens;

  template <class T>
  mhla::TensorView<T, 4> of(mhla::TensorView<T, 4> view) const {
    view.data += sequence * view.stride[0] + token * view.stride[2];
    view.extent[0] = sequences;
    view.extent[2] = tokens;
    return view;
  }
};

template <class T>
std::vector<Array> decode_attention(const AttentionCase& attention_case,
                                    const AttentionInputs& inputs,
                                    const std::vector<Index>& prefill_lengths,
                                    const ChosenExecutor& executor) {
  const AttentionCase& c = attention_case;
  const auto q = tensor_of<T>(inputs.q);
  const auto k = tensor_of<T>(inputs.k);
  const auto v = tensor_of<T>(inputs.v);
  const auto mix = matrices_of<T>(inputs.mix);
  std::vector<Array> outputs;
  const std::vector<T> projection = elements_of<T>(inputs.projection);
  const auto map = map_of(c, inputs.projection.shape, projection);
  with_causal_variant(c, map, [&](const auto& attention) {
    if (c.key_tokens != c.tokens)
      throw UnsupportedCase("key_tokens " + std::to_string(c.key_tokens) +
                            ": keys are decoded along with their queries, one to each");
    using Attention = std::remove_cvref_t<decltype(attention)>;
    const mhla::DecoderShape shape{.batch = c.batch,
                                   .heads = c.heads,
                                   .kv_heads = c.kv_heads,
                                   .key_dim = c.key_dim,
                                   .value_dim = c.value_dim,
                                   .num_slots = executor.num_slots()};
    for (const Index prefill : prefill_lengths) {
      mhla::Decoder<Attention, T> decoder(attention, mix, shape);  // which remembers no other run
      mhla::testing::HostTensor<T, 4> out(c.batch, c.heads, c.tokens, c.value_dim);
      const bool empty = out.size() == 0;  // however many tokens that are
      for (Index sequence = 0; !empty && sequence < c.batch; ++sequence) {
        const Slice tokens{sequence, 1, 0, prefill};
        decoder.prefill(executor, sequence, tokens.of(q.view()), tokens.of(k.view()),
                        tokens.of(v.view()), tokens.of(out.view()));
      }
      for (Index t = prefill; !empty && t < c.tokens; ++t) {
        const Slice token{0, c.batch, t, 1};
        decoder.step(executor, token.of(q.view()), token.of(k.view()), token.of(v.view()),
                     token.of(out.view()));
      }
      outputs.push_back(array_of(out));
    }
  });
  return outputs;
}

template AttentionResults run_attention<float>(const AttentionCase&, const AttentionInputs&,
                                               const ChosenExecutor&);
template AttentionResults run_attention<double>(const AttentionCase&, const AttentionInputs&,
                                                const ChosenExecutor&);
template std::vector<Array> decode_attention<float>(const AttentionCase&, const AttentionInputs&,
                                                    const std::vector<Index>&,
                                                    const ChosenExecutor&);
template std::vector<Array> decode_attention<double>(const AttentionCase&, const AttentionInputs&,
                                                     const std::vector<Index>&,
                                                     const ChosenExecutor&);

}  // namespace replay
