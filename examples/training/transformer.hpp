// SPDX-License-Identifier: MIT
// A stack of attention and MLP layers over tokens, and a norm, forward, backward, and a few tokens
// at a time.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "../layers/convolution.hpp"
#include "../layers/norms.hpp"
#include "attention_layer.hpp"
#include "mlp_layer.hpp"

namespace training {

template <class T>
struct LayerActivations {
  Matrix<T> without_position;
  AttentionActivations<T> attention;
  MlpActivations<T> mlp;
};

/// What a forward pass leaves for the backward pass.
template <class T>
struct TransformerActivations {
  std::vector<LayerActivations<T>> layers;
  Matrix<T> last;
  Matrix<T> normed;  ///< the result, [tokens of all sequences, width]
};

/// x + convolution(x): tells a token where it stands by its neighbours; a causal variant's look
/// back.
class PositionalConvolution {
 public:
  template <class Attention>
  PositionalConvolution(ParameterList& list, const std::string& name,
                        const TransformerShape<Attention>& shape)
      : convolution_(make(list, name, shape)) {
    const mhla::Grid grid = shape.attention.blocks.grid_of(shape.tokens);
    grid_ = {{grid.extent[0], grid.extent[1], grid.extent[2]}};
  }

  template <class T>
  void forward(const Values<T>& values, Matrix<T>& x, Matrix<T>& input) const {
    Matrix<T> added;
    input = x;
    convolution_.forward(values, grid_, x, added);
    x += added;
  }
  template <class T>
  void backward(const Values<T>& values, const Matrix<T>& input, Matrix<T>& dx,
                Values<T>& gradient) const {
    Matrix<T> d_input;
    convolution_.backward(values, grid_, input, dx, d_input, gradient);
    dx += d_input;
  }

 private:
  template <class Attention>
  static layers::DepthwiseConvolution make(ParameterList& list, const std::string& name,
                                           const TransformerShape<Attention>& shape) {
    if constexpr (!std::is_same_v<typename Attention::CausalityType, mhla::Bidirectional>)
      return layers::DepthwiseConvolution::causal(list, name, shape.width, 4);
    else
      return {list, name, shape.width,
              std::vector<Index>(static_cast<std::size_t>(Attention::GeometryType::rank), 3),
              layers::Bias::one};
  }

  layers::DepthwiseConvolution convolution_;
  layers::Grid grid_;
};

template <class T, class Attention>
class Transformer {
 public:
  using Shape = TransformerShape<Attention>;
  using Decoder = typename AttentionLayer<T, Attention>::Decoder;
  using Activations = TransformerActivations<T>;

  Transformer(ParameterList& list, const Shape& shape)
      : shape_(shape), norm_(add_layers(list), "norm", shape.width) {}

  const Shape& shape() const { return shape_; }

  /// A mixing matrix is not drawn.
  void initialize(Values<T>& values) const {
    for (const auto& layer : attention_) layer.mixing().initialize(values);
  }
  /// Keeps the mixing matrices where they may be, after an update.
  void project(Values<T>& values) const {
    for (const auto& layer : attention_) layer.mixing().project(values);
  }

  /// From x [tokens of all sequences, width], sequences of equal length one after another.
  void forward(const Values<T>& values, Index sequences, Matrix<T> x, Activations& a) const {
    forward(values, std::move(x), a, [&](std::size_t i, Matrix<T>& sum) {
      attention_[i].forward(values, sequences, sum, a.layers[i].attention);
    });
  }

  /// Whether a sequence can come a few tokens at a time.
  bool has_decoders() const {
    bool all = !shape_.positional_convolution;
    for (const auto& layer : attention_) all = all && layer.mixing().has_decoder();
    return all;
  }
  std::vector<Decoder> decoders(const Values<T>& values) const {
    std::vector<Decoder> all;
    for (const auto& layer : attention_) all.push_back(layer.mixing().decoder(values));
    return all;
  }
  /// The next tokens of one sequence.
  void forward(const Values<T>& values, std::vector<Decoder>& decoders, Matrix<T> x,
               Activations& a) const {
    forward(values, std::move(x), a, [&](std::size_t i, Matrix<T>& sum) {
      attention_[i].forward(values, decoders[i], sum, a.layers[i].attention);
    });
  }

  /// From the gradient of the result, that of x.
  void backward(const Values<T>& values, Index sequences, const Activations& a,
                const Matrix<T>& d_normed, Matrix<T>& dx, Values<T>& gradient) const {
    norm_.backward(values, a.last, d_normed, dx, gradient);
    for (std::size_t i = attention_.size(); i-- > 0;) {
      mlp_[i].backward(values, a.layers[i].mlp, dx, gradient);
      attention_[i].backward(values, sequences, a.layers[i].attention, dx, gradient);
      if (!positions_.empty())
        positions_[i].backward(values, a.layers[i].without_position, dx, gradient);
    }
  }

 private:
  template <class Attend>
  void forward(const Values<T>& values, Matrix<T> x, Activations& a, const Attend& attend) const {
    a.layers.resize(attention_.size());
    for (std::size_t i = 0; i < attention_.size(); ++i) {
      if (!positions_.empty()) positions_[i].forward(values, x, a.layers[i].without_position);
      attend(i, x);
      mlp_[i].forward(values, x, a.layers[i].mlp);
    }
    a.last = std::move(x);
    norm_.forward(values, a.last, a.normed);
  }

  ParameterList& add_layers(ParameterList& list) {
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

  Shape shape_;
  std::vector<PositionalConvolution> positions_;
  std::vector<AttentionLayer<T, Attention>> attention_;
  std::vector<MlpLayer> mlp_;
  RmsNorm norm_;
};

}  // namespace training
