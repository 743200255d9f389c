// SPDX-License-Identifier: MIT
// The released diffusion transformer (DiT_MHLA): patches of a noisy latent image, blocks steered by
// its time step and label, and what is to be taken away from it.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../layers/activations.hpp"
#include "../layers/convolution.hpp"
#include "../layers/embedding.hpp"
#include "../layers/linear.hpp"
#include "../layers/mlp.hpp"
#include "../layers/modulation.hpp"
#include "../layers/norms.hpp"
#include "checkpoint.hpp"
#include "config.hpp"
#include "record.hpp"
#include "run_context.hpp"
#include "window_attention.hpp"

namespace released {

/// x += g1 attn(LN(x)(1 + a1) + h1); x += g2 mlp(LN(x)(1 + a2) + h2) with [h1, a1, g1, h2, a2, g2]
/// = silu(c) W^T + b. With `dwconv`, a depthwise convolution of x follows. As released, it takes
/// the tokens in the order of windows for an image in raster order.
template <class T>
class DitBlock {
 public:
  DitBlock(layers::ParameterList& list, const std::string& name, const Config& config,
           const Checkpoint& file, Index width, const Windows& windows, const RunContext& run)
      : name_(name),
        width_(width),
        windows_(windows),
        modulation_(list, name + ".adaLN_modulation.1", width, 6 * width, layers::Bias::one),
        norm_(list, "", width, config.number("norm_eps", 1e-6), layers::Affine::no),
        attention_(list, name + ".attn", config, file, width, windows, run),
        mlp_(list, {name + ".mlp.fc1", name + ".mlp.fc2"}, width,
             config.scaled(width, "mlp_ratio", 4.0), width) {
    if (config.flag("dwconv", false))
      convolution_.emplace(list, name + ".dw_conv", width, std::vector<Index>{3, 3},
                           layers::Bias::one);
  }

  /// x [batch * tokens, width], steered by silu(c) [batch, width].
  void forward(const Values<T>& values, const Matrix<T>& steering, Matrix<T>& x,
               const Record& record) {
    const Index batch = steering.rows();
    steering_ = steering;
    modulation_.forward(values, steering, parts_);
    record(name_ + ".modulation", {batch, 6 * width_}, parts_);
    for (Half* half : {&first_, &second_}) {
      const Index at = half == &first_ ? 0 : 3;
      half->input = x;
      norm_.forward(values, x, half->normed);
      Matrix<T> modulated;
      layers::modulate(half->normed, part(at), part(at + 1), modulated);
      if (half == &first_) {
        record_tokens(".attn_in", modulated, record);
        attention_.forward(values, modulated, half->added, attention_activations_, name_, record);
        record_tokens(".attn_out", half->added, record);
      } else {
        mlp_.forward(values, modulated, half->added, mlp_activations_);
        record_tokens(".mlp_out", half->added, record);
      }
      layers::add_gated(half->added, part(at + 2), x);
    }
    if (convolution_) {
      convolved_ = windows_.by_window(x);
      convolution_->forward(values, windows_.grid(), convolved_, x);
      x = windows_.by_row(x);
    }
    record_tokens(".out", x, record);
  }

  /// dx as in the layers; the gradient of silu(c) is added to d_steering.
  void backward(const Values<T>& values, Matrix<T>& dx, Matrix<T>& d_steering,
                Values<T>& gradient) {
    if (convolution_) {
      convolution_->backward(values, windows_.grid(), convolved_, windows_.by_window(dx), dx,
                             gradient);
      dx = windows_.by_row(dx);
    }
    Matrix<T> d_parts(parts_.rows(), parts_.cols());
    const auto d_part = [&](Index at) { return d_parts.middleCols(at * width_, width_); };
    for (Half* half : {&second_, &first_}) {
      const Index at = half == &first_ ? 0 : 3;
      Matrix<T> d_added, d_modulated, d_normed, d_input;
      layers::add_gated_backward(half->added, part(at + 2), dx, d_added, d_part(at + 2));
      if (half == &first_)
        attention_.backward(values, attention_activations_, d_added, d_modulated, gradient);
      else
        mlp_.backward(values, mlp_activations_, d_added, d_modulated, gradient);
      layers::modulate_backward(half->normed, part(at + 1), d_modulated, d_normed, d_part(at),
                                d_part(at + 1));
      norm_.backward(values, half->input, d_normed, d_input, gradient);
      dx += d_input;
    }
    Matrix<T> d_of_block;
    modulation_.backward(values, steering_, d_parts, d_of_block, gradient);
    d_steering += d_of_block;
  }

 private:
  struct Half {
    Matrix<T> input, normed, added;
  };

  auto part(Index at) const { return parts_.middleCols(at * width_, width_); }
  void record_tokens(const std::string& name, const Matrix<T>& x, const Record& record) const {
    if (!record.wants()) return;
    const Index batch = x.rows() / windows_.tokens();
    record(name_ + name, {batch, windows_.tokens(), width_}, windows_.by_window(x));
  }

  std::string name_;
  Index width_;
  Windows windows_;
  layers::Linear modulation_;
  layers::LayerNorm norm_;
  WindowAttention attention_;
  layers::Mlp<layers::GeluTanh> mlp_;
  std::optional<layers::DepthwiseConvolution> convolution_;
  Matrix<T> steering_, parts_, convolved_;
  Half first_, second_;
  WindowAttentionActivations<T> attention_activations_;
  layers::MlpActivations<T> mlp_activations_;
};

template <class T>
class Dit {
 public:
  static constexpr const char* output = "output";
  static constexpr std::string_view classes[] = {"DiT"};

  Dit(const Config& config, const Checkpoint& file, const RunContext& run)
      : windows_(windows_of(config, file)),
        width_(config.size("hidden_size")),
        patch_(config.size("patch_size")),
        latent_{config.size("in_channels"), config.size("input_size"), config.size("input_size")},
        result_{latent_.channels * (config.flag("learn_sigma", true) ? 2 : 1), latent_.height,
                latent_.width},
        base_(run.frequency_base(10000.0)),
        frequencies_(config.size("frequency_embedding_size", 256) / 2),
        embed_(list_, "x_embedder.proj", latent_, patch_, width_),
        position_(list_, "pos_embed", windows_.tokens(), width_),
        time_(list_, {"t_embedder.mlp.0", "t_embedder.mlp.2"}, 2 * frequencies_, width_, width_),
        label_(list_, "y_embedder.embedding_table.weight",
               file.shape("y_embedder.embedding_table.weight", 2)[0], width_),
        norm_(list_, "", width_, config.number("norm_eps", 1e-6), layers::Affine::no),
        modulation_(list_, "final_layer.adaLN_modulation.1", width_, 2 * width_, layers::Bias::one),
        last_(list_, "final_layer.linear", width_, patch_ * patch_ * result_.channels,
              layers::Bias::one) {
    require_supported(config);
    for (Index l = 0; l < config.size("depth"); ++l)
      blocks_.emplace_back(list_, "blocks." + std::to_string(l), config, file, width_, windows_,
                           run);
  }

  const layers::ParameterList& parameters() const { return list_; }
  const layers::ImageShape& latent() const { return latent_; }
  const layers::ImageShape& result() const { return result_; }

  /// Of `latent` [batch, channels, height, width], `timestep` [batch] and `label` [batch].
  Matrix<T> forward(const Values<T>& values, const Safetensors& inputs, const Record& record) {
    const auto& latent = inputs.tensor("latent");
    const Index batch = latent.shape.empty() ? 0 : latent.shape[0];
    const std::vector<Index> expected = {batch, latent_.channels, latent_.height, latent_.width};
    if (latent.shape != expected)
      throw UnreadableFile(inputs.path(), "latent has the shape " + text_of(latent.shape));
    return forward(values, matrix_of<T>(latent, batch),
                   inputs.tensor("timestep", {batch}).template elements<double>(),
                   inputs.tensor("label", {batch}).template elements<Index>(), record);
  }
  Matrix<T> forward(const Values<T>& values, const Matrix<T>& latents,
                    const std::vector<double>& timesteps, const std::vector<Index>& labels,
                    const Record& record) {
    const Index batch = latents.rows();
    for (const Index label : labels)
      if (label < 0 || label >= label_.table().rows())
        throw mhla::ShapeError({"label ", label, " is not one of ", label_.table().rows()});
    labels_ = labels;
    Matrix<T> x;
    embed_.forward(values, latents, x, patches_);
    record("patch_embed", {batch, windows_.tokens(), width_}, x);
    position_.add_forward(values, x);
    if (record.wants()) record("tokens", {batch, windows_.tokens(), width_}, windows_.by_window(x));

    Matrix<T> label_embedding;
    time_.forward(values, waves(timesteps), condition_, time_activations_);
    record("t_embedding", {batch, width_}, condition_);
    label_.forward(values, labels, label_embedding);
    condition_ += label_embedding;
    record("c", {batch, width_}, condition_);
    layers::activate<layers::Silu>(condition_, steering_);
    for (DitBlock<T>& block : blocks_) block.forward(values, steering_, x, record);

    last_input_ = x;
    norm_.forward(values, x, last_normed_);
    modulation_.forward(values, steering_, last_parts_);
    Matrix<T> windows;
    layers::modulate(last_normed_, last_parts_.leftCols(width_), last_parts_.rightCols(width_),
                     last_modulated_);
    last_.forward(values, last_modulated_, windows);
    if (record.wants())
      record("final_layer_out", {batch, windows_.tokens(), windows.cols()},
             windows_.by_window(windows));
    Matrix<T> result;
    layers::join_patches(channels_first_in_patches(windows), result_, patch_, result);
    record(output, {batch, result_.channels, result_.height, result_.width}, result);
    return result;
  }

  void backward(const Values<T>& values, const Matrix<T>& d_result, Values<T>& gradient,
                const Record& record) {
    const Index batch = d_result.rows();
    Matrix<T> d_windows, d_modulated, d_normed, dx, d_steering;
    Matrix<T> d_parts(batch, 2 * width_);
    layers::cut_patches(d_result, result_, patch_, d_windows);
    last_.backward(values, last_modulated_, channels_last_in_patches(d_windows), d_modulated,
                   gradient);
    layers::modulate_backward(last_normed_, last_parts_.rightCols(width_), d_modulated, d_normed,
                              d_parts.leftCols(width_), d_parts.rightCols(width_));
    modulation_.backward(values, steering_, d_parts, d_steering, gradient);
    norm_.backward(values, last_input_, d_normed, dx, gradient);
    for (std::size_t l = blocks_.size(); l-- > 0;)
      blocks_[l].backward(values, dx, d_steering, gradient);
    Matrix<T> d_condition, d_waves, d_latents;
    layers::activate_backward<layers::Silu>(condition_, d_steering, d_condition);
    label_.table().in(gradient).setZero();
    label_.add_backward(labels_, d_condition, gradient);
    time_.backward(values, time_activations_, d_condition, d_waves, gradient);
    position_.backward(dx, gradient);
    embed_.backward(values, patches_, dx, d_latents, gradient);
    record("grad.latent", {batch, latent_.channels, latent_.height, latent_.width}, d_latents);
  }

  /// The first block alone, on `tokens` and `c`, and its gradients for that of its result.
  void run_block(const Values<T>& values, const Safetensors& inputs, const Matrix<T>& d_out,
                 Values<T>& gradient, const Record& record, const Record& gradients) {
    const Index batch = inputs.tensor("c").shape.at(0);
    Matrix<T> x = windows_.by_row(matrix_of<T>(inputs.tensor("tokens")));
    const Matrix<T> c = matrix_of<T>(inputs.tensor("c"));
    Matrix<T> steering, d_c;
    layers::activate<layers::Silu>(c, steering);
    blocks_.front().forward(values, steering, x, record);
    Matrix<T> dx = windows_.by_row(d_out);
    Matrix<T> d_steering = Matrix<T>::Zero(steering.rows(), steering.cols());
    blocks_.front().backward(values, dx, d_steering, gradient);
    layers::activate_backward<layers::Silu>(c, d_steering, d_c);
    gradients("grad.tokens", {batch, windows_.tokens(), width_}, windows_.by_window(dx));
    gradients("grad.c", {batch, width_}, d_c);
  }

 private:
  static Windows windows_of(const Config& config, const Checkpoint& file) {
    const Index patch = config.size("patch_size"), width = config.size("hidden_size");
    const Index grid = config.size("input_size") / patch;
    if (config.size("input_size") % patch != 0)
      config.fail("patch_size is " + std::to_string(patch) + "; it must divide input_size");
    const Index tokens = config.size("block_size");
    Index side = 1;
    while (side * side < tokens) ++side;
    if (side * side != tokens || grid % side != 0)
      config.fail("block_size is " + std::to_string(tokens) +
                  "; it must be the square of a number that divides input_size / patch_size");
    file.require("pos_embed", {1, grid * grid, width});
    file.require("x_embedder.proj.weight", {width, config.size("in_channels"), patch, patch});
    file.require_layers("blocks.", "depth", config.size("depth"));
    const char* const table = "y_embedder.embedding_table.weight";
    file.require(table, {file.shape(table, 2)[0], width});
    file.require("blocks.0.attn.piece_attn.conv.weight",
                 {grid * grid / tokens, grid * grid / tokens, 1, 1});
    return {grid, grid, side, side};
  }
  /// Arguments of DiT_MHLA.
  void require_supported(const Config& config) const {
    config.require_class(classes);
    // Training with dropped labels adds a row for "no class".
    const Index rows = label_.table().rows();
    if (config.has("num_classes") && config.size("num_classes") != rows)
      config.require_same("num_classes", rows - 1, "or one more, for the checkpoint's label table");
    config.ignore({"class_dropout_prob"});
  }
  /// [cos(t f_0) .., sin(t f_0) ..], f_j = 10000^(-j / frequencies); angles in double, as float has
  /// too few digits for a thousand time steps.
  Matrix<T> waves(const std::vector<double>& timesteps) const {
    Matrix<T> waves(static_cast<Index>(timesteps.size()), 2 * frequencies_);
    for (Index b = 0; b < waves.rows(); ++b)
      for (Index j = 0; j < frequencies_; ++j) {
        const double angle =
            timesteps[static_cast<std::size_t>(b)] *
            std::pow(base_, -static_cast<double>(j) / static_cast<double>(frequencies_));
        waves(b, j) = static_cast<T>(std::cos(angle));
        waves(b, frequencies_ + j) = static_cast<T>(std::sin(angle));
      }
    return waves;
  }
  /// The model's results have the channels of a pixel side by side.
  Matrix<T> channels_first_in_patches(const Matrix<T>& windows) const {
    Matrix<T> moved(windows.rows(), windows.cols());
    for_each_channel([&](Index first, Index last) { moved.col(first) = windows.col(last); });
    return moved;
  }
  Matrix<T> channels_last_in_patches(const Matrix<T>& windows) const {
    Matrix<T> moved(windows.rows(), windows.cols());
    for_each_channel([&](Index first, Index last) { moved.col(last) = windows.col(first); });
    return moved;
  }
  template <class F>
  void for_each_channel(const F& f) const {
    const Index pixels = patch_ * patch_;
    for (Index c = 0; c < result_.channels; ++c)
      for (Index p = 0; p < pixels; ++p) f(c * pixels + p, p * result_.channels + c);
  }

  Windows windows_;
  Index width_;
  Index patch_;
  layers::ImageShape latent_;
  layers::ImageShape result_;
  double base_;
  Index frequencies_;
  layers::ParameterList list_;
  layers::PatchEmbedding embed_;
  layers::PositionEmbedding position_;
  layers::Mlp<layers::Silu> time_;
  layers::Embedding label_;
  std::vector<DitBlock<T>> blocks_;
  layers::LayerNorm norm_;
  layers::Linear modulation_;
  layers::Linear last_;

  std::vector<Index> labels_;
  layers::MlpActivations<T> time_activations_;
  Matrix<T> patches_, condition_, steering_;
  Matrix<T> last_input_, last_normed_, last_parts_, last_modulated_;
};

}  // namespace released
