// SPDX-License-Identifier: MIT
// The attention of the released image models, DeiT and DiT:
//
//   u' = LN(u)   [q | k | v] = u' Wqkv^T + b   y = (MHLA(q, k, v) + lepe(v)) Wout^T + b
//
// over windows of the image, normalized by MixedProduct; q and k pass an RMS norm if the checkpoint
// has one; lepe is a depthwise convolution.
#pragma once

#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/causality.hpp>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/normalizer.hpp>
#include <optional>
#include <string>

#include "../layers/convolution.hpp"
#include "../layers/linear.hpp"
#include "../layers/mhla_attention.hpp"
#include "../layers/norms.hpp"
#include "checkpoint.hpp"
#include "config.hpp"
#include "record.hpp"
#include "run_context.hpp"

namespace released {

template <class T>
struct WindowAttentionActivations {
  Matrix<T> input;
  Matrix<T> normed;
  Matrix<T> qkv;  // [batch * tokens, 3 channels]
  Matrix<T> q;    // as attention takes them
  Matrix<T> k;
  Matrix<T> summed;  // attention + lepe
};

class WindowAttention {
 public:
  using Variant = mhla::Attention<mhla::Relu, mhla::Blocks2D, mhla::Bidirectional,
                                  mhla::MixedProduct, mhla::NoRotation>;

  WindowAttention(layers::ParameterList& list, const std::string& name, const Config& config,
                  const Checkpoint& file, Index channels, const Windows& windows,
                  const RunContext& run)
      : channels_(channels),
        heads_(config.size("num_heads")),
        windows_(windows),
        norm_(list, name + ".norm", channels, config.number("attn_norm_eps", 1e-5)),
        to_qkv_(list, name + ".to_qkv", channels, 3 * channels, bias_of(file, name + ".to_qkv")),
        lepe_(list, name + ".lepe", channels, kernel_of(file, name + ".lepe", channels),
              layers::Bias::one),
        mix_(list.add(name + ".piece_attn.conv.weight", {windows.count(), windows.count(), 1, 1}, 0,
                      0)),
        to_out_(list, name + ".to_out.0", channels, channels, layers::Bias::one),
        attention_(Variant{.feature_map = {.epsilon = config.number(
                                               config.either("feature_eps", "eps"), 1e-6)},
                           .blocks = {.grid = {windows.rows, windows.columns},
                                      .block = {windows.side, windows.side}},
                           .normalizer = {.epsilon = config.number(
                                              config.either("normalizer_eps", "eps"), 1e-6)}},
                   run.team, run.storage),
        run_(run) {
    if (channels % heads_ != 0)
      config.fail("num_heads is " + std::to_string(heads_) + "; it must divide the " +
                  std::to_string(channels) + " channels");
    const double qk_epsilon = config.number("qk_norm_eps", 0x1p-23);
    if (config.flag("qk_norm", false)) {
      q_norm_.emplace(list, name + ".q_norm", channels, qk_epsilon);
      k_norm_.emplace(list, name + ".k_norm", channels, qk_epsilon);
    }
    const bool has_bias = bias_of(file, name + ".to_qkv") == layers::Bias::one;
    config.require_same(
        "qkv_bias", has_bias,
        "the checkpoint " + std::string(has_bias ? "has " : "lacks ") + name + ".to_qkv.bias");
    config.require_same("dim_head", channels / heads_, "channels / num_heads");
    config.require_same("embed_len", windows.tokens(), "the number of tokens");
    config.require_same("window_size", windows.window_tokens(), "the tokens of a window");
    // Only the initial value of mix: the checkpoint holds the trained one.
    config.require("transform", {"linear", "cos", "exp", "gaussian", "local"});
    config.ignore({"exp_sigma", "local_thres", "fixed_weight_value", "dropout"});
  }

  template <class T>
  void forward(const Values<T>& values, const Matrix<T>& x, Matrix<T>& y,
               WindowAttentionActivations<T>& a, const std::string& recorded_as,
               const Record& record) const {
    const Index batch = x.rows() / windows_.tokens();
    a.input = x;
    norm_.forward(values, x, a.normed);
    to_qkv_.forward(values, a.normed, a.qkv);
    a.q = a.qkv.leftCols(channels_);
    a.k = a.qkv.middleCols(channels_, channels_);
    if (q_norm_) {
      q_norm_->forward(values, Matrix<T>(a.q), a.q);
      k_norm_->forward(values, Matrix<T>(a.k), a.k);
    }
    run_.at_kink(recorded_as, a.q, a.k);
    const Matrix<T> v = a.qkv.rightCols(channels_);
    Matrix<T> lepe;
    lepe_.forward(values, windows_.grid(), v, lepe);
    attention_.forward(heads(batch), a.q, a.k, v, mix_.in(values), a.summed);
    const Index count = windows_.count();
    const Index tokens = windows_.window_tokens();
    if (record.wants()) {
      record(recorded_as + ".qkv", {batch, count, tokens, 3 * channels_},
             windows_.by_window(a.qkv));
      record(recorded_as + ".lepe", {batch, channels_, windows_.rows, windows_.columns},
             channels_first(lepe, batch));
      record(recorded_as + ".attention", {batch, count, tokens, channels_},
             windows_.by_window(a.summed));
    }
    a.summed += lepe;
    to_out_.forward(values, a.summed, y);
  }

  template <class T>
  void backward(const Values<T>& values, const WindowAttentionActivations<T>& a,
                const Matrix<T>& dy, Matrix<T>& dx, Values<T>& gradient) const {
    const Index batch = dy.rows() / windows_.tokens();
    const Matrix<T> v = a.qkv.rightCols(channels_);
    Matrix<T> d_summed, d_v_of_lepe, d_normed;
    Matrix<T> dq(a.q.rows(), channels_), dk(a.k.rows(), channels_), dv(v.rows(), channels_);
    Matrix<T> d_qkv(a.qkv.rows(), a.qkv.cols());
    to_out_.backward(values, a.summed, dy, d_summed, gradient);
    lepe_.backward(values, windows_.grid(), v, d_summed, d_v_of_lepe, gradient);
    attention_.backward(heads(batch), a.q, a.k, v, mix_.in(values), d_summed, dq, dk, dv,
                        mix_.in(gradient));
    if (q_norm_) {
      q_norm_->backward(values, Matrix<T>(a.qkv.leftCols(channels_)), Matrix<T>(dq), dq, gradient);
      k_norm_->backward(values, Matrix<T>(a.qkv.middleCols(channels_, channels_)), Matrix<T>(dk),
                        dk, gradient);
    }
    d_qkv << dq, dk, dv + d_v_of_lepe;
    to_qkv_.backward(values, a.normed, d_qkv, d_normed, gradient);
    norm_.backward(values, a.input, d_normed, dx, gradient);
  }

 private:
  static layers::Bias bias_of(const Checkpoint& file, const std::string& name) {
    return file.has(name + ".bias") ? layers::Bias::one : layers::Bias::none;
  }
  /// [channels, 1, 2 n + 1, 2 n + 1]: the released code pads by n, so that grids keep their size.
  static std::vector<Index> kernel_of(const Checkpoint& file, const std::string& name,
                                      Index channels) {
    const Index side = file.shape(name + ".weight", 4)[2] | 1;
    file.require(name + ".weight", {channels, 1, side, side});
    return {side, side};
  }
  layers::Heads heads(Index batch) const { return {heads_, heads_, batch}; }

  Index channels_;
  Index heads_;
  Windows windows_;
  layers::LayerNorm norm_;
  layers::Linear to_qkv_;
  std::optional<layers::RmsNorm> q_norm_;
  std::optional<layers::RmsNorm> k_norm_;
  layers::DepthwiseConvolution lepe_;
  layers::Parameter mix_;
  layers::Linear to_out_;
  layers::MhlaAttention<Variant> attention_;
  RunContext run_;
};

}  // namespace released
