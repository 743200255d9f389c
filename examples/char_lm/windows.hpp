// SPDX-License-Identifier: MIT
// What the model learns: to predict each next character of windows of a text.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "../layers/cross_entropy.hpp"
#include "../training/trainer.hpp"
#include "model.hpp"

namespace char_lm {

using layers::cross_entropy;
using layers::Prediction;
using training::Part;
using training::Score;

/// Characters, in sequences of equal length, and what followed them.
struct Batch {
  std::vector<int> tokens;
  Index sequences = 0;
  std::vector<Prediction> predictions;
};

/// The windows of `length` characters that begin at `starts`. A model without mixing predicts the
/// same after the same character wherever it stands: for it, each symbol is evaluated once, and
/// counts as often as it occurs.
Batch batch_of(const ModelShape& shape, const std::vector<int>& text,
               const std::vector<Index>& starts, Index length);

/// Windows of the context's length. Those of training begin anywhere; those of validation lie one
/// after another, so that every character but the first is predicted once, from the beginning of
/// its window, the last of which may be shorter.
class Windows : public training::Task {
 public:
  Windows(Model model, const std::vector<int>& training, const std::vector<int>& validation,
          std::uint64_t seed)
      : model_(std::move(model)), training_(training), validation_(validation), seed_(seed) {}

  const Model& model() const { return model_; }
  const ParameterList& parameters() const override { return model_.parameters(); }
  Values initial_values(std::uint64_t seed) const override { return model_.initial_values(seed); }
  void project(Values& values) const override { model_.project(values); }
  Index predictions_per_example() const override { return length(); }
  Index validation_examples() const override {
    return mhla::ceil_div(static_cast<Index>(validation_.size()) - 1, length());
  }

  std::unique_ptr<Task::Scratch> scratch() const override { return std::make_unique<Scratch>(); }

  Score score(const Values& values, Part part, Index first, Index last, Task::Scratch& scratch,
              Scalar weight, Values* gradient) const override;

 private:
  struct Scratch : Task::Scratch {
    Activations activations;
    Matrix d_logits;
  };

  Index length() const { return model_.shape().context; }

  std::vector<Index> drawn(Index first, Index last) const;
  Score score(const Values& values, const std::vector<int>& text, const std::vector<Index>& starts,
              Index length, Scratch& scratch, Scalar weight, Values* gradient) const;

  Model model_;
  const std::vector<int>& training_;
  const std::vector<int>& validation_;
  std::uint64_t seed_;
};

}  // namespace char_lm
