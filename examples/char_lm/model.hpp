// SPDX-License-Identifier: MIT
// The model: embedded characters through layers of attention and MLP to the logits of the
// characters that follow, forward, backward, and a few tokens at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../layers/cross_entropy.hpp"
#include "../layers/embedding.hpp"
#include "../layers/linear.hpp"
#include "../layers/norms.hpp"
#include "attention_layer.hpp"
#include "mlp_layer.hpp"
#include "token_mixing.hpp"

namespace char_lm {

using layers::cross_entropy;
using layers::Embedding;
using layers::Prediction;

/// What a forward pass leaves for the backward pass.
template <class T>
struct Activations {
  std::vector<AttentionActivations<T>> attention;
  std::vector<MlpActivations<T>> mlp;
  Matrix<T> last;
  Matrix<T> normed;
  Matrix<T> logits;  ///< [tokens of all sequences, vocabulary]
};

template <class T, class FeatureMap = mhla::EluPlusOne>
class Model {
 public:
  using Layer = AttentionLayer<T, FeatureMap>;

  explicit Model(const ModelShape& shape)
      : shape_(shape),
        embedding_(list_, "embedding", shape.vocabulary, shape.width),
        attention_(make<Layer>([&](const std::string& name, double out_gain) {
          return Layer(list_, name + ".attention", shape, out_gain);
        })),
        mlp_(make<MlpLayer>([&](const std::string& name, double out_gain) {
          return MlpLayer(list_, name + ".mlp", shape.width, hidden(shape.width), out_gain);
        })),
        norm_(list_, "norm", shape.width),
        head_(list_, "head", shape.width, shape.vocabulary, layers::Bias::none, 0.1) {}

  const ModelShape& shape() const { return shape_; }
  const ParameterList& parameters() const { return list_; }
  const Layer& attention(std::size_t layer) const { return attention_[layer]; }

  Values<T> initial_values(std::uint64_t seed) const {
    Values<T> values = list_.initial_values<T>(seed);
    for (const Layer& layer : attention_) layer.mixing().initialize(values);
    return values;
  }
  /// Keeps the mixing matrices where they may be, after an update.
  void project(Values<T>& values) const {
    for (const Layer& layer : attention_) layer.mixing().project(values);
  }

  /// The logits after each token, in a.logits, of sequences of equal length one after another.
  void forward(const Values<T>& values, const std::vector<int>& tokens, Index sequences,
               Activations<T>& a) const {
    forward(values, tokens, a, [&](std::size_t layer, Matrix<T>& x) {
      attention_[layer].forward(values, sequences, x, a.attention[layer]);
    });
  }

  /// The same for the next tokens of one sequence, with a decoder for each layer.
  void forward(const Values<T>& values, const std::vector<int>& tokens,
               std::vector<typename Layer::Decoder>& decoders, Activations<T>& a) const {
    forward(values, tokens, a, [&](std::size_t layer, Matrix<T>& x) {
      attention_[layer].forward(values, decoders[layer], x, a.attention[layer]);
    });
  }

  /// Overwrites `gradient` with that of all parameters, d_logits being the logits'.
  void backward(const Values<T>& values, const std::vector<int>& tokens, Index sequences,
                const Activations<T>& a, const Matrix<T>& d_logits, Values<T>& gradient) const {
    gradient.resize(list_.size());
    Matrix<T> d_normed, dx;
    head_.backward(values, a.normed, d_logits, d_normed, gradient);
    norm_.backward(values, a.last, d_normed, dx, gradient);
    for (std::size_t layer = attention_.size(); layer-- > 0;) {
      mlp_[layer].backward(values, a.mlp[layer], dx, gradient);
      attention_[layer].backward(values, sequences, a.attention[layer], dx, gradient);
    }
    embedding_.table().in(gradient).setZero();
    embedding_.add_backward(tokens, dx, gradient);
  }

 private:
  // As many parameters as an MLP of 4 width without a gate; a multiple of 16.
  static Index hidden(Index width) { return mhla::ceil_div(8 * width / 3, Index{16}) * 16; }

  // Each layer adds to the same sum, the more of them the less at first.
  template <class L, class Make>
  std::vector<L> make(const Make& make_layer) const {
    std::vector<L> layers;
    for (Index i = 0; i < shape_.layers; ++i)
      layers.push_back(make_layer("layer " + std::to_string(i),
                                  1 / std::sqrt(2.0 * static_cast<double>(shape_.layers))));
    return layers;
  }

  template <class Attend>
  void forward(const Values<T>& values, const std::vector<int>& tokens, Activations<T>& a,
               const Attend& attend) const {
    a.attention.resize(attention_.size());
    a.mlp.resize(mlp_.size());
    Matrix<T>& x = a.last;
    embedding_.forward(values, tokens, x);
    for (std::size_t layer = 0; layer < attention_.size(); ++layer) {
      attend(layer, x);
      mlp_[layer].forward(values, x, a.mlp[layer]);
    }
    norm_.forward(values, x, a.normed);
    head_.forward(values, a.normed, a.logits);
  }

  ModelShape shape_;
  ParameterList list_;
  Embedding embedding_;
  std::vector<Layer> attention_;
  std::vector<MlpLayer> mlp_;
  RmsNorm norm_;
  Linear head_;
};

}  // namespace char_lm
