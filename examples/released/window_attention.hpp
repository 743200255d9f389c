// SPDX-License-Identifier: MIT
// The attention of the released image models, DeiT and DiT:
//
//   u' = LN(u)   [q | k | v] = u' Wqkv^T + b   y = (MHLA(q, k, v) + lepe(v)) Wout^T + b
//
// over windows of the image, normalized by MixedProduct; q and k pass an RMS norm if the checkpoint
// has one; lepe is a depthwise convolution. The released linear attention has neither LN nor lepe,
// and one window with a mix of 1.
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

  /// Whether the checkpoint's attention called `name` is over windows; otherwise it is linear.
  static bool has_windows(const Checkpoint& file, const std::string& name) {
    return file.has(mix_name(name));
  }

  WindowAttention(layers::ParameterList& list, const std::string& name, const Config& config,
                  const Checkpoint& file, Index channels, const Windows& windows,
                  const RunContext& run)
      : channels_(channels),
        heads_(config.size("num_heads")),
        windows_(windows),
        to_qkv_(list, name + ".to_qkv", channels, 3 * channels, bias_of(file, name + ".to_qkv")),
        attention_(variant_of(config, windows, has_windows(file, name) ? 1e-6 : 0), run.team,
                   run.storage),
        run_(run) {
    const double qk_epsilon =
        config.number("qk_norm_eps", has_windows(file, name) ? 0x1p-23 : 1e-6);
    if (has_windows(file, name)) {
      norm_ =
          layers::LayerNorm(list, name + ".norm", channels, config.number("attn_norm_eps", 1e-5));
      lepe_.emplace(list, name + ".lepe", channels, kernel_of(file, name + ".lepe", channels),
                    layers::Bias::one);
      mix_ = list.add(mix_name(name), {windows.count(), windows.count(), 1, 1}, 0, 0);
      if (config.flag("qk_norm", false)) add_qk_norm(list, name, qk_epsilon);
      config.require_same("embed_len", windows.tokens(), "the number of tokens");
      config.require_same("window_size", windows.window_tokens(), "the tokens of a window");
    } else {
      add_qk_norm(list, name, qk_epsilon);
      config.ignore({"qk_norm"});  // the released layer has these norms in any case
    }
    // The released linear attention projects its result only if there are heads to be joined.
    if (mix_ || heads_ > 1)
      to_out_.emplace(list, name + ".to_out.0", channels, channels, layers::Bias::one);
    require_supported(name, config, file);
  }

  template <class T>
  void forward(const Values<T>& values, const Matrix<T>& x, Matrix<T>& y,
               WindowAttentionActivations<T>& a, const std::string& recorded_as,
               const Record& record) const {
    const Index batch = x.rows() / windows_.tokens();
    a.input = x;
    norm_.forward(values, x, a.normed);
    to_qkv_.forward(values, a.normed, a.qkv);
    q_norm_.forward(values, Matrix<T>(a.qkv.leftCols(channels_)), a.q);
    k_norm_.forward(values, Matrix<T>(a.qkv.middleCols(channels_, channels_)), a.k);
    run_.at_kink(recorded_as, a.q, a.k);
    const Matrix<T> v = a.qkv.rightCols(channels_);
    attention_.forward(heads(batch), a.q, a.k, v, mix(values), a.summed);
    const Index count = windows_.count();
    const Index tokens = windows_.window_tokens();
    if (record.wants()) {
      record(recorded_as + ".qkv", {batch, count, tokens, 3 * channels_},
             windows_.by_window(a.qkv));
      record(recorded_as + ".attention", {batch, count, tokens, channels_},
             windows_.by_window(a.summed));
    }
    if (lepe_) {
      Matrix<T> lepe;
      lepe_->forward(values, windows_.grid(), v, lepe);
      record(recorded_as + ".lepe", {batch, channels_, windows_.rows, windows_.columns},
             channels_first(lepe, batch));
      a.summed += lepe;
    }
    y = a.summed;
    if (to_out_) to_out_->forward(values, a.summed, y);
  }

  template <class T>
  void backward(const Values<T>& values, const WindowAttentionActivations<T>& a,
                const Matrix<T>& dy, Matrix<T>& dx, Values<T>& gradient) const {
    const Index batch = dy.rows() / windows_.tokens();
    const Matrix<T> v = a.qkv.rightCols(channels_);
    Matrix<T> d_summed = dy, d_normed, d_mix(windows_.count(), windows_.count());
    Matrix<T> dq(a.q.rows(), channels_), dk(a.k.rows(), channels_), dv(v.rows(), channels_);
    Matrix<T> d_qkv(a.qkv.rows(), a.qkv.cols());
    if (to_out_) to_out_->backward(values, a.summed, dy, d_summed, gradient);
    attention_.backward(heads(batch), a.q, a.k, v, mix(values), d_summed, dq, dk, dv, d_mix);
    if (mix_) mix_->in(gradient) = d_mix;
    if (lepe_) {
      Matrix<T> d_v_of_lepe;
      lepe_->backward(values, windows_.grid(), v, d_summed, d_v_of_lepe, gradient);
      dv += d_v_of_lepe;
    }
    q_norm_.backward(values, Matrix<T>(a.qkv.leftCols(channels_)), Matrix<T>(dq), dq, gradient);
    k_norm_.backward(values, Matrix<T>(a.qkv.middleCols(channels_, channels_)), Matrix<T>(dk), dk,
                     gradient);
    d_qkv << dq, dk, dv;
    to_qkv_.backward(values, a.normed, d_qkv, d_normed, gradient);
    norm_.backward(values, a.input, d_normed, dx, gradient);
  }

 private:
  static std::string mix_name(const std::string& name) { return name + ".piece_attn.conv.weight"; }
  static Variant variant_of(const Config& config, const Windows& windows, double feature_epsilon) {
    return {.feature_map = {.epsilon = config.number(config.either("feature_eps", "eps"),
                                                     feature_epsilon)},
            .blocks = {.grid = {windows.rows, windows.columns},
                       .block = {windows.height, windows.width}},
            .normalizer = {.epsilon = config.number(config.either("normalizer_eps", "eps"), 1e-6)}};
  }
  void add_qk_norm(layers::ParameterList& list, const std::string& name, double epsilon) {
    q_norm_ = layers::RmsNorm(list, name + ".q_norm", channels_, epsilon);
    k_norm_ = layers::RmsNorm(list, name + ".k_norm", channels_, epsilon);
  }
  void require_supported(const std::string& name, const Config& config,
                         const Checkpoint& file) const {
    if (channels_ % heads_ != 0)
      config.fail("num_heads is " + std::to_string(heads_) + "; it must divide the " +
                  std::to_string(channels_) + " channels");
    const bool has_bias = bias_of(file, name + ".to_qkv") == layers::Bias::one;
    config.require_same(
        "qkv_bias", has_bias,
        "the checkpoint " + std::string(has_bias ? "has " : "lacks ") + name + ".to_qkv.bias");
    config.require_same("dim_head", channels_ / heads_, "channels / num_heads");
    // Only the initial value of mix: the checkpoint holds the trained one.
    config.require("transform", {"linear", "cos", "exp", "gaussian", "local"});
    config.ignore({"exp_sigma", "local_thres", "fixed_weight_value", "dropout"});
  }
  template <class T>
  Matrix<T> mix(const Values<T>& values) const {
    return mix_ ? Matrix<T>(mix_->in(values)) : Matrix<T>::Ones(1, 1);
  }
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
  layers::Norm norm_;
  layers::Linear to_qkv_;
  layers::Norm q_norm_, k_norm_;
  std::optional<layers::DepthwiseConvolution> lepe_;
  std::optional<layers::Parameter> mix_;
  std::optional<layers::Linear> to_out_;
  layers::MhlaAttention<Variant> attention_;
  RunContext run_;
};

}  // namespace released
