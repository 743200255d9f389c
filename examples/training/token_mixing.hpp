// SPDX-License-Identifier: MIT
// What passes information from token to token: MHLA and, to compare it with, linear attention,
// softmax attention, and nothing at all. q, k, v and y are views [sequences, heads, tokens, dim].
#pragma once

#include <mhla/decoding.hpp>
#include <mhla/mhla.hpp>
#include <mhla/testing/elements.hpp>
#include <string>
#include <type_traits>

#include "../layers/parameters.hpp"
#include "../layers/softmax_attention.hpp"
#include "mixing.hpp"

namespace training {

using layers::Index;
using layers::Matrix;
using layers::Parameter;
using layers::ParameterList;
using layers::Values;

/// One block of all tokens: MHLA with it, and with its one weight 1, is linear attention.
inline mhla::Blocks1D one_block(const mhla::Blocks1D& /*blocks*/, Index tokens) {
  return {.block = tokens};
}
template <class Geometry>
Geometry one_block(Geometry blocks, Index /*tokens*/) {
  for (int axis = 0; axis < Geometry::rank; ++axis) blocks.block[axis] = blocks.grid[axis];
  return blocks;
}

template <class T, class Attention>
class TokenMixing {
 public:
  using View = mhla::TensorView<T, 4>;
  using ConstView = mhla::TensorView<const T, 4>;
  using Decoder = mhla::Decoder<Attention, T>;
  using Saved = mhla::ForwardState<T>;

  TokenMixing(ParameterList& list, const std::string& name, Mixing mixing,
              const Attention& attention, Index tokens, Index heads, Index head_dim)
      : mixing_(mixing),
        heads_(heads),
        head_dim_(head_dim),
        attention_(attention),
        softmax_(attention) {
    if (mixing == Mixing::linear) attention_.blocks = one_block(attention.blocks, tokens);
    if (has_mix()) blocks_ = attention_.blocks.grid_of(tokens).num_blocks();
    mix_ = list.add(name, {heads, blocks_ * blocks_}, 0, 0);
  }

  bool has_decoder() const { return has_mix(); }
  Decoder decoder(const Values<T>& values) const {
    return Decoder(attention_, mix_view(values),
                   {.batch = 1,
                    .heads = heads_,
                    .kv_heads = heads_,
                    .key_dim = head_dim_,
                    .value_dim = head_dim_});
  }

  void initialize(Values<T>& values) const {
    if (has_mix()) mhla::initialize(mix_map(values), attention_);
  }
  /// Back to where a mixing matrix may be, after an update.
  void project(Values<T>& values) const {
    if (!has_mix()) return;
    if constexpr (std::is_same_v<typename Attention::CausalityType, mhla::Causal>)
      mhla::project(mix_map(values), mhla::causal_projection);
    else
      mhla::project(mix_map(values));
  }

  void forward(const Values<T>& values, const ConstView& q, const ConstView& k, const ConstView& v,
               Matrix<T>& y, Saved& saved) const {
    auto y_map = tensor(y, q.extent[0]);
    if (has_mix())
      mhla::tokens_first(y_map).device(device_) = attention_(q, k, v, mix_view(values)).save(saved);
    else if (mixing_ == Mixing::softmax)
      softmax_.forward(q, k, v, mhla::tokens_first(mhla::eigen::target_view(y_map)));
    else
      copy(v, mhla::tokens_first(mhla::eigen::target_view(y_map)));
  }

  void backward(const Values<T>& values, const ConstView& q, const ConstView& k, const ConstView& v,
                const ConstView& dy, const Saved& saved, const View& dq, const View& dk,
                const View& dv, Values<T>& gradient) const {
    if (mixing_ == Mixing::mhla) {
      auto dmix = mix_map(gradient);
      mhla::gradients(dq, dk, dv, dmix) =
          attention_.backward(q, k, v, mix_view(values), dy).saved(saved);
    } else if (mixing_ == Mixing::linear) {  // its one entry stays 1
      mix_map(gradient).setZero();
      mhla::gradients(dq, dk, dv, mhla::skip) =
          attention_.backward(q, k, v, mix_view(values), dy).saved(saved);
    } else if (mixing_ == Mixing::softmax) {
      softmax_.backward(q, k, v, dy, dq, dk, dv);
    } else {
      fill_zero(dq);
      fill_zero(dk);
      copy(dy, dv);
    }
  }

 private:
  bool has_mix() const { return mixing_ == Mixing::mhla || mixing_ == Mixing::linear; }

  // mix [heads, blocks, blocks] among the parameters.
  auto mix_map(Values<T>& values) const {
    return Eigen::TensorMap<Eigen::Tensor<T, 3, Eigen::RowMajor>>(values.data() + mix_.begin,
                                                                  heads_, blocks_, blocks_);
  }
  mhla::TensorView<const T, 3> mix_view(const Values<T>& values) const {
    return mhla::make_view(values.data() + mix_.begin, heads_, blocks_, blocks_);
  }

  // [tokens of all sequences, width] as [sequences, tokens, heads, dim].
  auto tensor(Matrix<T>& y, Index sequences) const {
    return Eigen::TensorMap<Eigen::Tensor<T, 4, Eigen::RowMajor>>(
        y.data(), sequences, y.rows() / sequences, heads_, head_dim_);
  }

  static void copy(const ConstView& from, const View& to) {
    mhla::testing::for_each_element([](const T& source, T& target) { target = source; }, from, to);
  }
  static void fill_zero(const View& view) {
    mhla::testing::for_each_element([](T& element) { element = T(0); }, view);
  }

  Mixing mixing_;
  Index heads_;
  Index head_dim_;
  Index blocks_ = 0;
  Attention attention_;
  layers::SoftmaxAttention<T, Attention> softmax_;
  Parameter mix_;
  Eigen::DefaultDevice device_{};
};

}  // namespace training
