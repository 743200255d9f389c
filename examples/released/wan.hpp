// SPDX-License-Identifier: MIT
// The self-attention of the released video models, in its six classes:
//
//   q, k, v, g linear in x
//   r = norm(MHLA(RMS(q), RMS(k), v))
//   y = (r o silu(g) + lepe(v)) Wo^T + b
//
// over boxes of the video, rotated along its three axes. The classes differ in which of norm, gate
// and lepe they have, and in whether y passes a norm of its own.
#pragma once

#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/causality.hpp>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/normalizer.hpp>
#include <mhla/policy/rotation.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "../layers/activations.hpp"
#include "../layers/convolution.hpp"
#include "../layers/linear.hpp"
#include "../layers/mhla_attention.hpp"
#include "../layers/norms.hpp"
#include "checkpoint.hpp"
#include "config.hpp"
#include "record.hpp"
#include "run_context.hpp"

namespace released {

/// What a class has between attention and its result.
struct WanClass {
  enum class Norm { none, of_heads, of_tokens };

  std::string_view name;
  std::string_view type;  ///< its name in configurations of whole models
  bool is_gated;
  bool is_lepe;
  Norm norm;
  bool may_norm_result;
};

template <class T>
class Wan {
 public:
  static constexpr const char* output = "output";
  /// Of a layer, or of the whole model that it is from.
  static constexpr std::string_view classes[] = {"MHLA_Video", "Gated_MHLA_Video", "Wan"};

  Wan(const Config& config, const Checkpoint& file, const RunContext& run)
      : run_(run),
        width_(config.size("dim")),
        heads_(config.size("num_heads")),
        grid_{{config.sizes("grid", 3)[0], config.sizes("grid", 3)[1], config.sizes("grid", 3)[2]}},
        norm_epsilon_(config.number(config.either("norm_eps", "eps"), 1e-6)),
        class_(class_of(config)),
        attention_(attention_of(config, file, run)),
        q_(list_, "q", width_, width_, layers::Bias::one),
        k_(list_, "k", width_, width_, layers::Bias::one),
        v_(list_, "v", width_, width_, layers::Bias::one),
        o_(list_, "o", width_, width_, layers::Bias::one),
        mix_(list_.add("block_attn.conv.weight", {blocks_, blocks_, 1, 1}, 0, 0)) {
    if (width_ % heads_ != 0) config.fail("num_heads does not divide dim");
    if (config.flag("qk_norm", true)) {
      norm_q_ = layers::RmsNorm(list_, "norm_q", width_, norm_epsilon_);
      norm_k_ = layers::RmsNorm(list_, "norm_k", width_, norm_epsilon_);
    }
    if (class_.norm != WanClass::Norm::none)
      norm_ = layers::RmsNorm(list_, "g_norm",
                              class_.norm == WanClass::Norm::of_heads ? width_ / heads_ : width_,
                              norm_epsilon_);
    if (class_.is_gated) g_.emplace(list_, "g", width_, width_, layers::Bias::one);
    if (class_.is_lepe)
      lepe_.emplace(list_, "lepe", width_, std::vector<Index>{3, 3, 3}, layers::Bias::one);
    if (config.flag(config.either("out_rmsnorm", "rms_output"), false) && class_.may_norm_result)
      result_norm_ = layers::RmsNorm(list_, "out_rmsnorm", width_, norm_epsilon_);
    require_supported(config);
  }

  const layers::ParameterList& parameters() const { return list_; }
  Index tokens() const { return grid_.tokens(); }
  Index width() const { return width_; }

  /// Of x [batch, tokens, width].
  Matrix<T> forward(const Values<T>& values, const Safetensors& inputs, const Record& record) {
    const auto& x = inputs.tensor("x");
    const Index batch = x.shape.empty() ? 0 : x.shape[0];
    return forward(values, matrix_of<T>(inputs.tensor("x", {batch, grid_.tokens(), width_})),
                   record);
  }
  Matrix<T> forward(const Values<T>& values, const Matrix<T>& x, const Record& record) {
    const Index batch = x.rows() / grid_.tokens();
    const std::vector<Index> shape = {batch, grid_.tokens(), width_};
    const std::vector<Index> by_head = {batch, grid_.tokens(), heads_, width_ / heads_};
    x_ = x;
    q_.forward(values, x, projected_q_);
    k_.forward(values, x, projected_k_);
    v_.forward(values, x, projected_v_);
    record("q", shape, projected_q_);
    record("k", shape, projected_k_);
    record("v", shape, projected_v_);
    norm_q_.forward(values, projected_q_, normed_q_);
    norm_k_.forward(values, projected_k_, normed_k_);
    record("norm_q", shape, normed_q_);
    record("norm_k", shape, normed_k_);
    run_.at_kink("", normed_q_, normed_k_);
    std::visit(
        [&](const auto& attention) {
          attention.forward(heads(batch), normed_q_, normed_k_, projected_v_, mix_.in(values),
                            attended_);
        },
        attention_);
    record("attention", by_head, attended_);
    norm_.forward(values, attended_, normed_);
    record("g_norm", class_.norm == WanClass::Norm::of_tokens ? shape : by_head, normed_);
    last_ = normed_;
    if (g_) {
      g_->forward(values, x, projected_g_);
      record("g", shape, projected_g_);
      layers::gate(projected_g_, normed_, last_);
    }
    if (lepe_) {
      Matrix<T> lepe;
      lepe_->forward(values, grid_, projected_v_, lepe);
      record("lepe", {batch, width_, grid_.extent[0], grid_.extent[1], grid_.extent[2]},
             channels_first(lepe, batch));
      last_ += lepe;
    }
    record("o_in", shape, last_);
    o_.forward(values, last_, result_);
    Matrix<T> y;
    result_norm_.forward(values, result_, y);
    record(output, shape, y);
    return y;
  }

  void backward(const Values<T>& values, const Matrix<T>& dy, Values<T>& gradient,
                const Record& record) {
    const Index batch = dy.rows() / grid_.tokens();
    Matrix<T> d_result, d_last, d_attended, dx, d_part;
    Matrix<T> dq(x_.rows(), width_), dk(x_.rows(), width_), dv(x_.rows(), width_);
    result_norm_.backward(values, result_, dy, d_result, gradient);
    o_.backward(values, last_, d_result, d_last, gradient);
    Matrix<T> d_normed = d_last;
    Matrix<T> d_gate;
    if (g_) layers::gate_backward(projected_g_, normed_, d_last, d_gate, d_normed);
    norm_.backward(values, attended_, d_normed, d_attended, gradient);
    std::visit(
        [&](const auto& attention) {
          attention.backward(heads(batch), normed_q_, normed_k_, projected_v_, mix_.in(values),
                             d_attended, dq, dk, dv, mix_.in(gradient));
        },
        attention_);
    norm_q_.backward(values, projected_q_, Matrix<T>(dq), dq, gradient);
    norm_k_.backward(values, projected_k_, Matrix<T>(dk), dk, gradient);
    if (lepe_) {
      lepe_->backward(values, grid_, projected_v_, d_last, d_part, gradient);
      dv += d_part;
    }
    q_.backward(values, x_, dq, dx, gradient);
    k_.backward(values, x_, dk, d_part, gradient);
    dx += d_part;
    v_.backward(values, x_, dv, d_part, gradient);
    dx += d_part;
    if (g_) {
      g_->backward(values, x_, d_gate, d_part, gradient);
      dx += d_part;
    }
    record("grad.x", {batch, grid_.tokens(), width_}, dx);
  }

 private:
  template <class Normalizer>
  using Attention =
      layers::MhlaAttention<mhla::Attention<mhla::Relu, mhla::Blocks3D, mhla::Bidirectional,
                                            Normalizer, mhla::AxialRotary>>;
  using AnyAttention = std::variant<Attention<mhla::Unnormalized>, Attention<mhla::MixedProduct>>;

  /// By its name, or by its type in the configuration of a whole model.
  static WanClass class_of(const Config& config) {
    using enum WanClass::Norm;
    const WanClass all[] = {
        {"MHLA_Video_Uni", "mhla_uni", config.flag("is_gated", false),
         config.flag("is_lepe", false), of_heads, false},
        {"Gated_MHLA_Video_LePE", "gated_mhla_lepe", true, true, of_heads, false},
        {"Gated_MHLA_Video", "gated_mhla", true, false, of_tokens, false},
        {"MHLA_Video_LePE", "mhla_lepe", false, true, none, true},
        {"MHLA_Video_Nope", "mhla_nope", false, false, none, true},  // rotates, despite its name
        {"MHLA_Video", "mhla", false, false, none, true}};
    config.require_class(classes);
    const std::string name = config.has("model") ? config.word("model") : "Wan";
    const std::string key = config.either("self_attn_type", "attn_type");
    config.require(key,
                   {"mhla_uni", "gated_mhla_lepe", "gated_mhla", "mhla_lepe", "mhla_nope", "mhla"});
    const std::string type = config.has(key) ? config.word(key) : "mhla_uni";
    for (const WanClass& one : all) {
      if (name.rfind("Wan", 0) == 0 ? type != one.type : name != one.name) continue;
      config.require_same(key, std::string(one.type), "the type of " + name);
      return one;
    }
    config.fail("model is " + name + ", which is not a class of attention");
  }
  /// Arguments of the classes, and keys that configure them in released models.
  void require_supported(const Config& config) const {
    config.require_same("head_dim", width_ / heads_, "dim / num_heads");
    // Only the initial value of mix: the checkpoint holds the trained one.
    config.require("transform", {"linear", "cos", "exp", "gaussian", "local"});
    // The released layer takes these but does not use them.
    config.ignore({"dim_head", "dropout", "fixed_weight_value", "window_size", "qkv_bias",
                   "rope_after", "without_rope", "power", "mhla_adjust"});
    // Keys of the rest of the model, or of its inputs.
    config.ignore({"batch",
                   "ffn_dim",
                   "freq_dim",
                   "in_dim",
                   "out_dim",
                   "num_layers",
                   "text_len",
                   "text_dim",
                   "model_type",
                   "cross_attn_norm",
                   "patch_size",
                   "linear_attn_idx",
                   "class_dropout_prob",
                   "from_pretrained",
                   "load_model_ckpt",
                   "video_width",
                   "video_height",
                   "num_frames",
                   "aspect_ratio_type",
                   "mixed_precision",
                   "fp32_attention",
                   "multi_scale",
                   "_class_name",
                   "_diffusers_version"});
  }
  AnyAttention attention_of(const Config& config, const Checkpoint& file, const RunContext& run) {
    const auto layout = config.sizes("block_layout", 3);  // how many blocks an axis has
    mhla::Blocks3D blocks;
    blocks_ = 1;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      if (grid_.extent[axis] % layout[axis] != 0)
        config.fail("block_layout is " + checkpoints::text_of(layout) +
                    "; every number of blocks must divide the extent of grid");
      blocks.grid[axis] = grid_.extent[axis];
      blocks.block[axis] = grid_.extent[axis] / layout[axis];
      blocks_ *= layout[axis];
      if (blocks_ > most_tokens)
        config.fail("block_layout has more than " + std::to_string(most_tokens) + " blocks");
    }
    file.require("block_attn.conv.weight", {blocks_, blocks_, 1, 1});
    // A count in double cannot overflow.
    double tokens = 1;
    for (const Index extent : grid_.extent) tokens *= static_cast<double>(extent);
    if (tokens > static_cast<double>(most_tokens))
      config.fail("grid has more than " + std::to_string(most_tokens) + " tokens");
    const mhla::Relu feature_map{.epsilon =
                                     config.number(config.either("feature_eps", "eps"), 1e-6)};
    const mhla::AxialRotary rotation{
        .theta = run.frequency_base(config.positive("rope_theta", 10000.0))};
    const double epsilon = config.number(config.either("normalizer_eps", "eps"), 1e-6);
    if (!config.flag(config.either("normalize_out", "norm_output"), true))
      return Attention<mhla::Unnormalized>(
          {.feature_map = feature_map, .blocks = blocks, .rotation = rotation}, run.team,
          run.storage);
    return Attention<mhla::MixedProduct>({.feature_map = feature_map,
                                          .blocks = blocks,
                                          .normalizer = {.epsilon = epsilon},
                                          .rotation = rotation},
                                         run.team, run.storage);
  }
  layers::Heads heads(Index batch) const { return {heads_, heads_, batch}; }
  static constexpr Index most_tokens = Index{1} << 30;

  RunContext run_;
  Index width_;
  Index heads_;
  layers::Grid grid_;
  Index blocks_ = 0;
  double norm_epsilon_;
  WanClass class_;
  AnyAttention attention_;
  layers::ParameterList list_;
  layers::Linear q_, k_, v_, o_;
  layers::Parameter mix_;
  layers::Norm norm_q_, norm_k_, norm_, result_norm_;
  std::optional<layers::Linear> g_;
  std::optional<layers::DepthwiseConvolution> lepe_;

  Matrix<T> x_, projected_q_, projected_k_, projected_v_, projected_g_;
  Matrix<T> normed_q_, normed_k_, attended_, normed_, last_, result_;
};

}  // namespace released
