// SPDX-License-Identifier: MIT
#include "model.hpp"

#include <utility>

namespace char_lm {

Model::Model(const ModelShape& shape)
    : Model(shape, shape.states == 0 ? training::any_attention(attention<mhla::EluPlusOne>(shape))
                                     : training::any_attention(attention<mhla::EluPlusOne>(
                                           shape, mhla::RecurrentMixing{shape.states}))) {}

Model::Model(const ModelShape& shape, std::shared_ptr<const training::AnyAttention> attention)
    : shape_(shape),
      embedding_(list_, "embedding", shape.vocabulary, shape.width),
      transformer_(list_, {.mixing = shape.mixing,
                           .attention = std::move(attention),
                           .tokens = shape.context,
                           .layers = shape.layers,
                           .width = shape.width,
                           .heads = shape.heads,
                           .softmax_layers = shape.softmax_layers}),
      head_(list_, "head", shape.width, shape.vocabulary, layers::Bias::none, 0.1) {}

Values Model::initial_values(std::uint64_t seed) const {
  Values values = list_.initial_values<Scalar>(seed);
  transformer_.initialize(values);
  return values;
}

void Model::forward(const Values& values, const std::vector<int>& tokens, Index sequences,
                    Activations& a) const {
  transformer_.forward(values, sequences, embedded(values, tokens), a.transformer);
  head_.forward(values, a.transformer.normed, a.logits);
}

void Model::forward(const Values& values, const std::vector<int>& tokens,
                    const training::Decoders& decoders, Activations& a) const {
  transformer_.forward(values, decoders, embedded(values, tokens), a.transformer);
  head_.forward(values, a.transformer.normed, a.logits);
}

void Model::backward(const Values& values, const std::vector<int>& tokens, Index sequences,
                     const Activations& a, const Matrix& d_logits, Values& gradient) const {
  gradient.resize(list_.size());
  Matrix d_normed, dx;
  head_.backward(values, a.transformer.normed, d_logits, d_normed, gradient);
  transformer_.backward(values, sequences, a.transformer, d_normed, dx, gradient);
  embedding_.table().in(gradient).setZero();
  embedding_.add_backward(tokens, dx, gradient);
}

Matrix Model::embedded(const Values& values, const std::vector<int>& tokens) const {
  Matrix x;
  embedding_.forward(values, tokens, x);
  return x;
}

}  // namespace char_lm
