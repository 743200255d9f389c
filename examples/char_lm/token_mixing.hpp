// SPDX-License-Identifier: MIT
// What passes information from token to token: MHLA and, to compare it with, linear attention,
// softmax attention, and nothing at all. q, k, v and y are views [sequences, heads, tokens, dim].
#pragma once

#include <algorithm>
#include <cmath>
#include <mhla/decoding.hpp>
#include <mhla/mhla.hpp>
#include <mhla/testing/elements.hpp>
#include <string>

#include "../layers/parameters.hpp"
#include "../layers/softmax_attention.hpp"
#include "options.hpp"

namespace char_lm {

using layers::Matrix;
using layers::Parameter;
using layers::ParameterList;
using layers::SoftmaxAttention;
using layers::Values;

/// The sizes of a model.
struct ModelShape {
  Mixing mixing = Mixing::mhla;
  Index vocabulary = 0;
  Index context = 0;  ///< tokens of a sequence, at most
  Index block = 0;    ///< tokens of an MHLA block
  Index layers = 0;
  Index width = 0;
  Index heads = 0;

  Index head_dim() const { return width / heads; }
};

template <class T, class FeatureMap>
class TokenMixing {
 public:
  using View = mhla::TensorView<T, 4>;
  using ConstView = mhla::TensorView<const T, 4>;
  /// Without a normalizer, because an RMSNorm follows (as in the released language model).
  using Attention = mhla::Attention<FeatureMap, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
                                    mhla::HalfSplitRotary>;
  using Decoder = mhla::Decoder<Attention, T>;
  using Saved = mhla::ForwardState<T>;

  TokenMixing(ParameterList& list, const std::string& name, const ModelShape& shape)
      : shape_(shape),
        attention_{
            .blocks = {.block = shape.mixing == Mixing::linear ? shape.context : shape.block},
            .rotation = rotation(),
            .scale = 1 / std::sqrt(static_cast<double>(shape.head_dim()))},
        softmax_(rotation()),
        mix_(list.add(name, {shape.heads, blocks() * blocks()}, 0, 0)) {}

  bool has_decoder() const { return has_mix(); }
  Decoder decoder(const Values<T>& values) const {
    return Decoder(attention_, mix_view(values),
                   {.batch = 1,
                    .heads = shape_.heads,
                    .kv_heads = shape_.heads,
                    .key_dim = shape_.head_dim(),
                    .value_dim = shape_.head_dim()});
  }

  /// The mean over the past: linear attention, where the context is one block.
  void initialize(Values<T>& values) const {
    if (has_mix()) mhla::initialize(mix_map(values), attention_);
  }
  /// Back to where a mixing matrix may be, after an update.
  void project(Values<T>& values) const {
    if (has_mix()) mhla::project(mix_map(values), mhla::causal_projection);
  }

  void forward(const Values<T>& values, const ConstView& q, const ConstView& k, const ConstView& v,
               Matrix<T>& y, Saved& saved) const {
    auto y_map = tensor(y, q.extent[0]);
    if (has_mix())
      mhla::tokens_first(y_map).device(device_) = attention_(q, k, v, mix_view(values)).save(saved);
    else if (shape_.mixing == Mixing::softmax)
      softmax_.forward(q, k, v, mhla::tokens_first(mhla::eigen::target_view(y_map)));
    else
      copy(v, mhla::tokens_first(mhla::eigen::target_view(y_map)));
  }

  void backward(const Values<T>& values, const ConstView& q, const ConstView& k, const ConstView& v,
                const ConstView& dy, const Saved& saved, const View& dq, const View& dk,
                const View& dv, Values<T>& gradient) const {
    if (shape_.mixing == Mixing::mhla) {
      auto dmix = mix_map(gradient);
      mhla::gradients(dq, dk, dv, dmix) =
          attention_.backward(q, k, v, mix_view(values), dy).saved(saved);
    } else if (shape_.mixing == Mixing::linear) {  // its one entry stays 1
      mix_map(gradient).setZero();
      mhla::gradients(dq, dk, dv, mhla::skip) =
          attention_.backward(q, k, v, mix_view(values), dy).saved(saved);
    } else if (shape_.mixing == Mixing::softmax) {
      softmax_.backward(q, k, v, dy, dq, dk, dv);
    } else {
      fill_zero(dq);
      fill_zero(dk);
      copy(dy, dv);
    }
  }

 private:
  // High frequencies only, of periods up to some fifty characters: they tell neighbours apart. What
  // lies farther off is told apart by the mixing matrix, block by block.
  static mhla::HalfSplitRotary rotation() { return {.theta = 10}; }

  bool has_mix() const { return shape_.mixing == Mixing::mhla || shape_.mixing == Mixing::linear; }
  Index blocks() const {
    return has_mix() ? mhla::ceil_div(shape_.context, attention_.blocks.block) : 0;
  }

  // mix [heads, blocks, blocks] among the parameters.
  auto mix_map(Values<T>& values) const {
    return Eigen::TensorMap<Eigen::Tensor<T, 3, Eigen::RowMajor>>(values.data() + mix_.begin,
                                                                  shape_.heads, blocks(), blocks());
  }
  mhla::TensorView<const T, 3> mix_view(const Values<T>& values) const {
    return mhla::make_view(values.data() + mix_.begin, shape_.heads, blocks(), blocks());
  }

  // [tokens of all sequences, width] as [sequences, tokens, heads, dim].
  auto tensor(Matrix<T>& y, Index sequences) const {
    return Eigen::TensorMap<Eigen::Tensor<T, 4, Eigen::RowMajor>>(
        y.data(), sequences, y.rows() / sequences, shape_.heads, shape_.head_dim());
  }

  static void copy(const ConstView& from, const View& to) {
    mhla::testing::for_each_element([](const T& source, T& target) { target = source; }, from, to);
  }
  static void fill_zero(const View& view) {
    mhla::testing::for_each_element([](T& element) { element = T(0); }, view);
  }

  ModelShape shape_;
  Attention attention_;
  SoftmaxAttention<T> softmax_;
  Parameter mix_;
  Eigen::DefaultDevice device_{};
};

}  // namespace char_lm
