// SPDX-License-Identifier: MIT
#include "classifier.hpp"

#include <cstddef>
#include <utility>

namespace train_vit {

Classifier::Classifier(const ModelShape& shape, const Images& images)
    : Classifier(shape, images,
                 shape.rank == 0
                     ? attention<mhla::Relu>(shape, images, mhla::DenseMixing{})
                     : attention<mhla::Relu>(shape, images, mhla::SeparableMixing{shape.rank})) {}

Classifier::Classifier(const ModelShape& shape, const Images& images,
                       std::shared_ptr<const training::AnyAttention> attention)
    : images_(images),
      tokens_(images.shape().height / shape.patch * (images.shape().width / shape.patch)),
      patches_(list_, "patches", images.shape(), shape.patch, shape.width),
      positions_(list_, "positions", tokens_, shape.width),
      transformer_(list_, {.mixing = shape.mixing,
                           .attention = std::move(attention),
                           .tokens = tokens_,
                           .layers = shape.layers,
                           .width = shape.width,
                           .heads = shape.heads,
                           .gate = shape.gate,
                           .positional_convolution = shape.positional_convolution}),
      head_(list_, "head", shape.width, images.classes(), layers::Bias::one, 0.1) {}

Values Classifier::initial_values(std::uint64_t seed) const {
  Values values = list_.initial_values<Scalar>(seed);
  transformer_.initialize(values);
  return values;
}

Score Classifier::score(const Values& values, Part part, Index first, Index last,
                        Task::Scratch& scratch, Scalar weight, Values* gradient) const {
  auto& s = static_cast<Scratch&>(scratch);
  load(part, first, last, s);
  patches_.forward(values, s.images, s.tokens, s.windows);
  positions_.add_forward(values, s.tokens);
  transformer_.forward(values, last - first, s.tokens, s.transformer);
  s.pooled.resize(last - first, s.tokens.cols());
  for (Index i = 0; i < last - first; ++i)
    s.pooled.row(i) = s.transformer.normed.middleRows(i * tokens_, tokens_).colwise().mean();
  head_.forward(values, s.pooled, s.logits);
  Matrix d_logits;
  const Score score{.loss = cross_entropy(s.logits, s.predictions, weight,
                                          gradient != nullptr ? &d_logits : nullptr),
                    .predictions = last - first,
                    .right = right_predictions(s.logits, s.predictions)};
  if (gradient != nullptr) backward(values, last - first, s, d_logits, *gradient);
  return score;
}

void Classifier::load(Part part, Index first, Index last, Scratch& s) const {
  s.images.resize(last - first, images_.shape().size());
  s.predictions.clear();
  std::vector<float> pixels(static_cast<std::size_t>(images_.shape().size()));
  for (Index i = 0; i < last - first; ++i) {
    s.predictions.push_back({i, images_.image(part, first + i, pixels.data())});
    for (Index p = 0; p < s.images.cols(); ++p)
      s.images(i, p) = static_cast<Scalar>(pixels[static_cast<std::size_t>(p)]);
  }
}

void Classifier::backward(const Values& values, Index count, const Scratch& s,
                          const Matrix& d_logits, Values& gradient) const {
  gradient.resize(list_.size());
  Matrix d_pooled, dx, d_images;
  head_.backward(values, s.pooled, d_logits, d_pooled, gradient);
  Matrix d_normed(count * tokens_, d_pooled.cols());
  for (Index i = 0; i < count; ++i)
    d_normed.middleRows(i * tokens_, tokens_).rowwise() =
        d_pooled.row(i) / static_cast<Scalar>(tokens_);
  transformer_.backward(values, count, s.transformer, d_normed, dx, gradient);
  positions_.backward(dx, gradient);
  patches_.backward(values, s.windows, dx, d_images, gradient);
}

}  // namespace train_vit
