// SPDX-License-Identifier: MIT
#include "transformer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace training {

namespace {

layers::DepthwiseConvolution convolution(ParameterList& list, const std::string& name,
                                         const TransformerShape& shape) {
  if (shape.attention->is_causal())
    return layers::DepthwiseConvolution::causal(list, name, shape.width, 4);
  const auto rank = static_cast<std::size_t>(shape.attention->rank());
  return {list, name, shape.width, std::vector<Index>(rank, 3), layers::Bias::one};
}

}  // namespace

PositionalConvolution::PositionalConvolution(ParameterList& list, const std::string& name,
                                             const TransformerShape& shape)
    : convolution_(convolution(list, name, shape)) {
  const mhla::Grid grid = shape.attention->grid_of(shape.tokens);
  grid_ = {{grid.extent[0], grid.extent[1], grid.extent[2]}};
}

void PositionalConvolution::forward(const Values& values, Matrix& x, Matrix& input) const {
  Matrix added;
  input = x;
  convolution_.forward(values, grid_, x, added);
  x += added;
}

void PositionalConvolution::backward(const Values& values, const Matrix& input, Matrix& dx,
                                     Values& gradient) const {
  Matrix d_input;
  convolution_.backward(values, grid_, input, dx, d_input, gradient);
  dx += d_input;
}

Transformer::Transformer(ParameterList& list, const TransformerShape& shape)
    : shape_(shape), norm_(add_layers(list), "norm", shape.width) {}

ParameterList& Transformer::add_layers(ParameterList& list) {
  // Each layer adds to the same sum, the more of them the less at first.
  const double out_gain = 1 / std::sqrt(2.0 * static_cast<double>(shape_.layers));
  // As many parameters as an MLP of 4 width without a gate; a multiple of 16.
  const Index hidden = mhla::ceil_div(8 * shape_.width / 3, Index{16}) * 16;
  for (Index i = 0; i < shape_.layers; ++i) {
    const std::string name = "layer " + std::to_string(i);
    if (shape_.positional_convolution) positions_.emplace_back(list, name + ".position", shape_);
    attention_.emplace_back(list, name + ".attention", shape_.mixing_of(i), shape_, out_gain);
    mlp_.emplace_back(list, name + ".mlp", shape_.width, hidden, out_gain);
  }
  return list;
}

void Transformer::initialize(Values& values) const {
  for (const AttentionLayer& layer : attention_) layer.mixing().initialize(values);
}
void Transformer::project(Values& values) const {
  for (const AttentionLayer& layer : attention_) layer.mixing().project(values);
}

void Transformer::forward(const Values& values, Index sequences, Matrix x,
                          TransformerActivations& a) const {
  forward(values, std::move(x), a, [&](std::size_t i, Matrix& sum) {
    attention_[i].forward(values, sequences, sum, a.layers[i].attention);
  });
}

bool Transformer::has_decoders() const {
  return !shape_.positional_convolution &&
         std::all_of(attention_.begin(), attention_.end(),
                     [](const AttentionLayer& layer) { return layer.mixing().has_decoder(); });
}
Decoders Transformer::decoders(const Values& values) const {
  Decoders all;
  for (const AttentionLayer& layer : attention_) all.push_back(layer.mixing().decoder(values));
  return all;
}
void Transformer::forward(const Values& values, const Decoders& decoders, Matrix x,
                          TransformerActivations& a) const {
  forward(values, std::move(x), a, [&](std::size_t i, Matrix& sum) {
    attention_[i].forward(values, *decoders[i], sum, a.layers[i].attention);
  });
}

void Transformer::forward(const Values& values, Matrix x, TransformerActivations& a,
                          const Attend& attend) const {
  a.layers.resize(attention_.size());
  for (std::size_t i = 0; i < attention_.size(); ++i) {
    if (!positions_.empty()) positions_[i].forward(values, x, a.layers[i].without_position);
    attend(i, x);
    mlp_[i].forward(values, x, a.layers[i].mlp);
  }
  a.last = std::move(x);
  norm_.forward(values, a.last, a.normed);
}

void Transformer::backward(const Values& values, Index sequences, const TransformerActivations& a,
                           const Matrix& d_normed, Matrix& dx, Values& gradient) const {
  norm_.backward(values, a.last, d_normed, dx, gradient);
  for (std::size_t i = attention_.size(); i-- > 0;) {
    mlp_[i].backward(values, a.layers[i].mlp, dx, gradient);
    attention_[i].backward(values, sequences, a.layers[i].attention, dx, gradient);
    if (!positions_.empty())
      positions_[i].backward(values, a.layers[i].without_position, dx, gradient);
  }
}

}  // namespace training
