// SPDX-License-Identifier: MIT
// A small vision transformer: patches, a transformer over their grid, the mean of
// its tokens, and a linear head.
#pragma once

#include <cstdint>
#include <memory>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/mixing.hpp>
#include <mhla/policy/variant.hpp>
#include <vector>

#include "../layers/convolution.hpp"
#include "../layers/cross_entropy.hpp"
#include "../layers/embedding.hpp"
#include "../layers/linear.hpp"
#include "../training/attention_of.hpp"
#include "../training/trainer.hpp"
#include "../training/transformer.hpp"
#include "images.hpp"

namespace train_vit {

using layers::ParameterList;
using training::Matrix;
using training::Mixing;
using training::Scalar;
using training::Score;
using training::Values;

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
  Index rank = 0;  ///< of MHLA's separable mixing; 0: dense
};

class Classifier : public training::Task {
 public:
  Classifier(const ModelShape& shape, const Images& images);
  /// Of another feature map, with dense mixing.
  template <class FeatureMap>
  Classifier(const ModelShape& shape, const Images& images, FeatureMap /*map*/)
      : Classifier(shape, images, attention<FeatureMap>(shape, images, mhla::DenseMixing{})) {}

  Index tokens() const { return tokens_; }
  const ParameterList& parameters() const override { return list_; }
  Values initial_values(std::uint64_t seed) const override;
  void project(Values& values) const override { transformer_.project(values); }
  Index predictions_per_example() const override { return 1; }
  Index validation_examples() const override { return images_.validation(); }
  std::unique_ptr<Task::Scratch> scratch() const override { return std::make_unique<Scratch>(); }
  Score score(const Values& values, Part part, Index first, Index last, Task::Scratch& scratch,
              Scalar weight, Values* gradient) const override;

 private:
  struct Scratch : Task::Scratch {
    Matrix images;
    std::vector<layers::Prediction> predictions;
    Matrix windows;
    Matrix tokens;
    training::TransformerActivations transformer;
    Matrix pooled;
    Matrix logits;
  };

  template <class FeatureMap, class BlockMixing>
  static std::shared_ptr<const training::AnyAttention> attention(const ModelShape& shape,
                                                                 const Images& images,
                                                                 BlockMixing mixing) {
    return training::any_attention(
        mhla::Attention<FeatureMap, mhla::Blocks2D, mhla::Bidirectional, mhla::MixedKeySum,
                        mhla::NoRotation, BlockMixing>{
            .blocks = {.grid = {images.shape().height / shape.patch,
                                images.shape().width / shape.patch},
                       .block = {shape.block[0], shape.block[1]}},
            .mixing = mixing});
  }
  Classifier(const ModelShape& shape, const Images& images,
             std::shared_ptr<const training::AnyAttention> attention);
  void load(Part part, Index first, Index last, Scratch& s) const;
  void backward(const Values& values, Index count, const Scratch& s, const Matrix& d_logits,
                Values& gradient) const;

  const Images& images_;
  ParameterList list_;
  Index tokens_;
  layers::PatchEmbedding patches_;
  layers::PositionEmbedding positions_;
  training::Transformer transformer_;
  layers::Linear head_;
};

}  // namespace train_vit
