// SPDX-License-Identifier: MIT
// Writing: the model goes on from a prompt, a character at a time through its decoders, and what
// they computed is compared with a forward pass over the whole text.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mhla/testing/random_tensor.hpp>
#include <vector>

#include "model.hpp"

namespace char_lm {

/// The model on one sequence that grows. MHLA and linear attention remember it in decoders; the
/// others have none and read it again from its beginning.
class Stream {
 public:
  Stream(const Model& model, const Values& values) : model_(model), values_(values) {
    if (model.transformer().has_decoders()) decoders_ = model.transformer().decoders(values);
  }

  bool has_decoders() const { return !decoders_.empty(); }
  /// The logits after every token so far, [tokens, vocabulary].
  const Matrix& logits() const { return logits_; }
  const std::vector<int>& tokens() const { return tokens_; }

  void append(const std::vector<int>& tokens) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    if (!has_decoders()) {
      model_.forward(values_, tokens_, 1, activations_);
      logits_ = activations_.logits;
      return;
    }
    model_.forward(values_, tokens, decoders_, activations_);
    const Index before = logits_.rows();
    logits_.conservativeResize(static_cast<Index>(tokens_.size()), model_.shape().vocabulary);
    logits_.bottomRows(logits_.rows() - before) = activations_.logits;
  }

 private:
  const Model& model_;
  const Values& values_;
  training::Decoders decoders_;
  Activations activations_;
  std::vector<int> tokens_;
  Matrix logits_;
};

/// Draws a symbol with probability p(s)^(1 / temperature), `unit` being uniform on [0, 1); 0 is the
/// unknown symbol and is never drawn.
template <class Row>
int draw_symbol(const Row& logits, double temperature, double unit) {
  Index likeliest = 0;
  const auto known = logits.tail(logits.size() - 1);
  const double largest = static_cast<double>(known.maxCoeff(&likeliest));
  if (temperature == 0) return static_cast<int>(likeliest) + 1;
  const Eigen::ArrayXd p =
      ((known.template cast<double>().array() - largest) / temperature).exp().transpose();
  double left = unit * p.sum();
  for (Index s = 0; s < p.size(); ++s)
    if (left -= p(s); left < 0) return static_cast<int>(s) + 1;
  return static_cast<int>(likeliest) + 1;  // rounding left something over
}

/// Goes on from what the stream has read.
inline void write(Stream& stream, Index characters, double temperature, std::uint64_t seed) {
  for (Index i = 0; i < characters; ++i) {
    const double unit = mhla::testing::Uniform{}(seed, static_cast<std::uint64_t>(i));
    const auto& logits = stream.logits();
    stream.append({draw_symbol(logits.row(logits.rows() - 1), temperature, unit)});
  }
}

/// RMS of the difference between the decoders' logits and the forward pass' over the same tokens,
/// relative to the RMS of the latter.
inline double disagreement(const Stream& stream, const Model& model, const Values& values) {
  Activations whole;
  model.forward(values, stream.tokens(), 1, whole);
  return static_cast<double>((stream.logits() - whole.logits).norm() / whole.logits.norm());
}

}  // namespace char_lm
