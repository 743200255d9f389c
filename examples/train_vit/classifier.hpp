// SPDX-License-Identifier: MIT
// A small vision transformer as a TrainingTask: patches, a transformer over their grid, the mean of
// its tokens, and a linear head.
#pragma once

#include <cstdint>
#include <vector>

#include "../layers/convolution.hpp"
#include "../layers/cross_entropy.hpp"
#include "../layers/embedding.hpp"
#include "../layers/linear.hpp"
#include "../training/trainer.hpp"
#include "../training/transformer.hpp"
#include "images.hpp"

namespace train_vit {

using layers::Matrix;
using layers::ParameterList;
using layers::Values;
using training::Mixing;
using training::Score;

/// The sizes of a model.
struct ModelShape {
  Mixing mixing = Mixing::mhla;
  Index patch = 4;
  Index block[2] = {2, 2};  ///< tokens of an MHLA block: rows, columns
  Index layers = 2;
  Index width = 48;
  Index heads = 3;
  bool positional_convolution = false;
  bool gate = false;
};

template <class T, class FeatureMap = mhla::Relu>
class Classifier {
 public:
  using Scalar = T;
  using Attention = mhla::Attention<FeatureMap, mhla::Blocks2D>;
  struct Scratch {
    Matrix<T> images;
    std::vector<layers::Prediction> predictions;
    Matrix<T> windows;
    Matrix<T> tokens;
    training::TransformerActivations<T> transformer;
    Matrix<T> pooled;
    Matrix<T> logits;
  };

  Classifier(const ModelShape& shape, const Images& images)
      : images_(images),
        rows_(images.shape().height / shape.patch),
        columns_(images.shape().width / shape.patch),
        patches_(list_, "patches", images.shape(), shape.patch, shape.width),
        positions_(list_, "positions", rows_ * columns_, shape.width),
        transformer_(list_, {.mixing = shape.mixing,
                             .attention = {.blocks = {.grid = {rows_, columns_},
                                                      .block = {shape.block[0], shape.block[1]}}},
                             .tokens = rows_ * columns_,
                             .layers = shape.layers,
                             .width = shape.width,
                             .heads = shape.heads,
                             .gate = shape.gate,
                             .positional_convolution = shape.positional_convolution}),
        head_(list_, "head", shape.width, images.classes(), layers::Bias::one, 0.1) {}

  Index tokens() const { return rows_ * columns_; }
  const ParameterList& parameters() const { return list_; }
  Values<T> initial_values(std::uint64_t seed) const {
    Values<T> values = list_.initial_values<T>(seed);
    transformer_.initialize(values);
    return values;
  }
  void project(Values<T>& values) const { transformer_.project(values); }
  Index predictions_per_example() const { return 1; }
  Index validation_examples() const { return images_.validation(); }

  Score score(const Values<T>& values, Part part, Index first, Index last, Scratch& s, T weight,
              Values<T>* gradient) const {
    load(part, first, last, s);
    patches_.forward(values, s.images, s.tokens, s.windows);
    positions_.add_forward(values, s.tokens);
    transformer_.forward(values, last - first, s.tokens, s.transformer);
    s.pooled.resize(last - first, s.tokens.cols());
    for (Index i = 0; i < last - first; ++i)
      s.pooled.row(i) = s.transformer.normed.middleRows(i * tokens(), tokens()).colwise().mean();
    head_.forward(values, s.pooled, s.logits);
    Matrix<T> d_logits;
    const Score score{.loss = cross_entropy(s.logits, s.predictions, weight,
                                            gradient != nullptr ? &d_logits : nullptr),
                      .predictions = last - first,
                      .right = right_predictions(s.logits, s.predictions)};
    if (gradient != nullptr) backward(values, last - first, s, d_logits, *gradient);
    return score;
  }

 private:
  void load(Part part, Index first, Index last, Scratch& s) const {
    s.images.resize(last - first, images_.shape().size());
    s.predictions.clear();
    std::vector<float> pixels(static_cast<std::size_t>(images_.shape().size()));
    for (Index i = 0; i < last - first; ++i) {
      s.predictions.push_back({i, images_.image(part, first + i, pixels.data())});
      for (Index p = 0; p < s.images.cols(); ++p)
        s.images(i, p) = static_cast<T>(pixels[static_cast<std::size_t>(p)]);
    }
  }

  void backward(const Values<T>& values, Index count, const Scratch& s, const Matrix<T>& d_logits,
                Values<T>& gradient) const {
    gradient.resize(list_.size());
    Matrix<T> d_pooled, dx, d_images;
    head_.backward(values, s.pooled, d_logits, d_pooled, gradient);
    Matrix<T> d_normed(count * tokens(), d_pooled.cols());
    for (Index i = 0; i < count; ++i)
      d_normed.middleRows(i * tokens(), tokens()).rowwise() =
          d_pooled.row(i) / static_cast<T>(tokens());
    transformer_.backward(values, count, s.transformer, d_normed, dx, gradient);
    positions_.backward(dx, gradient);
    patches_.backward(values, s.windows, dx, d_images, gradient);
  }

  const Images& images_;
  ParameterList list_;
  Index rows_;
  Index columns_;
  layers::PatchEmbedding patches_;
  layers::PositionEmbedding positions_;
  training::Transformer<T, Attention> transformer_;
  layers::Linear head_;
};

}  // namespace train_vit
