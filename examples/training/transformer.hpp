// SPDX-License-Identifier: MIT
// A stack of attention and MLP layers over tokens, and a norm, forward, backward, and a few tokens
// at a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../layers/convolution.hpp"
#include "../layers/norms.hpp"
#include "attention_layer.hpp"
#include "mlp_layer.hpp"

namespace training {

struct LayerActivations {
  Matrix without_position;
  AttentionActivations attention;
  MlpActivations mlp;
};

/// What a forward pass leaves for the backward pass.
struct TransformerActivations {
  std::vector<LayerActivations> layers;
  Matrix last;
  Matrix normed;  ///< the result, [tokens of all sequences, width]
};

/// x + convolution(x): tells a token where it stands by its neighbours; a causal variant's look
/// back.
class PositionalConvolution {
 public:
  PositionalConvolution(ParameterList& list, const std::string& name,
                        const TransformerShape& shape);

  void forward(const Values& values, Matrix& x, Matrix& input) const;
  void backward(const Values& values, const Matrix& input, Matrix& dx, Values& gradient) const;

 private:
  layers::DepthwiseConvolution convolution_;
  layers::Grid grid_;
};

/// One for each layer, of one sequence.
using Decoders = std::vector<std::unique_ptr<AnyDecoder>>;

class Transformer {
 public:
  Transformer(ParameterList& list, const TransformerShape& shape);

  /// A mixing matrix is not drawn.
  void initialize(Values& values) const;
  /// Keeps the mixing matrices where they may be, after an update.
  void project(Values& values) const;

  /// From x [tokens of all sequences, width], sequences of equal length one after another.
  void forward(const Values& values, Index sequences, Matrix x, TransformerActivations& a) const;
  /// From the gradient of the result, that of x.
  void backward(const Values& values, Index sequences, const TransformerActivations& a,
                const Matrix& d_normed, Matrix& dx, Values& gradient) const;

  /// Whether a sequence can come a few tokens at a time.
  bool has_decoders() const;
  Decoders decoders(const Values& values) const;
  /// The next tokens of one sequence.
  void forward(const Values& values, const Decoders& decoders, Matrix x,
               TransformerActivations& a) const;

 private:
  using Attend = std::function<void(std::size_t layer, Matrix& sum)>;

  void forward(const Values& values, Matrix x, TransformerActivations& a,
               const Attend& attend) const;
  ParameterList& add_layers(ParameterList& list);

  TransformerShape shape_;
  std::vector<PositionalConvolution> positions_;
  std::vector<AttentionLayer> attention_;
  std::vector<MlpLayer> mlp_;
  layers::RmsNorm norm_;
};

}  // namespace training
