// SPDX-License-Identifier: MIT
// The released image classifier (MHLA_ViT): patches, blocks of attention and MLP, the mean over all
// tokens, a linear head.
#pragma once

#include <string>
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

template <class T>
class Deit {
 public:
  static constexpr const char* output = "logits";

  Deit(const Config& config, const Checkpoint& file, const RunContext& run)
      : windows_(windows_of(config, file)),
        width_(config.size("embed_dim")),
        patch_(config.size("patch_size")),
        image_(image_of(config)),
        padded_{image_.channels, windows_.rows * patch_, windows_.columns * patch_},
        classes_(config.size("num_classes")),
        embed_(list_, "patch_embed.proj", padded_, patch_, width_),
        position_(list_, "pos_embed", windows_.tokens(), width_),
        norm_(list_, "fc_norm", width_, config.number("norm_eps", 1e-6)),
        head_(list_, "head", width_, classes_, layers::Bias::one) {
    if (padded_.height < image_.height || padded_.width < image_.width)
      config.fail("image_size is larger than grid * patch_size");
    require_supported(config);
    for (Index l = 0; l < config.size("depth"); ++l)
      blocks_.emplace_back(list_, "blocks." + std::to_string(l), config, file, width_, windows_,
                           run);
  }

  const layers::ParameterList& parameters() const { return list_; }
  const layers::ImageShape& image() const { return image_; }

  /// The logits [batch, classes] of `image` [batch, channels, height, width].
  Matrix<T> forward(const Values<T>& values, const Safetensors& inputs, const Record& record) {
    const auto& image = inputs.tensor("image");
    if (image.shape.size() != 4 ||
        image.shape !=
            std::vector<Index>{image.shape[0], image_.channels, image_.height, image_.width})
      throw UnreadableFile(inputs.path(), "image has the shape " + text_of(image.shape));
    return forward(values, matrix_of<T>(image, image.shape[0]), record);
  }
  /// Of images, one a row.
  Matrix<T> forward(const Values<T>& values, const Matrix<T>& images, const Record& record) {
    const Index batch = images.rows();
    Matrix<T> x;
    embed_.forward(values, padded(images), x, patches_);
    record("patch_embed", {batch, windows_.tokens(), width_}, x);
    position_.add_forward(values, x);
    record_tokens("tokens", x, record);
    for (std::size_t l = 0; l < blocks_.size(); ++l) {
      const std::string name = "blocks." + std::to_string(l);
      Block& block = blocks_[l];
      block.norm1_input = x;
      block.norm1.forward(values, x, block.normed);
      block.attention.forward(values, block.normed, block.added, block.attention_activations, name,
                              record);
      record_tokens(name + ".attn_out", block.added, record);
      x += block.added;
      block.norm2_input = x;
      block.norm2.forward(values, x, block.normed);
      block.mlp.forward(values, block.normed, block.added, block.mlp_activations);
      record_tokens(name + ".mlp_out", block.added, record);
      x += block.added;
      record_tokens(name + ".out", x, record);
    }
    mean_.resize(batch, width_);
    for (Index b = 0; b < batch; ++b)
      mean_.row(b) = layers::rows_of(x, b, batch).colwise().mean().matrix();
    norm_.forward(values, mean_, normed_mean_);
    Matrix<T> logits;
    head_.forward(values, normed_mean_, logits);
    record(output, {batch, classes_}, logits);
    return logits;
  }

  void backward(const Values<T>& values, const Matrix<T>& d_logits, Values<T>& gradient,
                const Record& record) {
    const Index batch = d_logits.rows();
    Matrix<T> d_normed, d_mean, d_added;
    head_.backward(values, normed_mean_, d_logits, d_normed, gradient);
    norm_.backward(values, mean_, d_normed, d_mean, gradient);
    Matrix<T> dx(batch * windows_.tokens(), width_);
    for (Index b = 0; b < batch; ++b)
      layers::rows_of(dx, b, batch).rowwise() =
          d_mean.row(b).array() / static_cast<T>(windows_.tokens());
    for (std::size_t l = blocks_.size(); l-- > 0;) {
      const Block& block = blocks_[l];
      block.mlp.backward(values, block.mlp_activations, dx, d_normed, gradient);
      block.norm2.backward(values, block.norm2_input, d_normed, d_added, gradient);
      dx += d_added;
      block.attention.backward(values, block.attention_activations, dx, d_normed, gradient);
      block.norm1.backward(values, block.norm1_input, d_normed, d_added, gradient);
      dx += d_added;
    }
    position_.backward(dx, gradient);
    Matrix<T> d_padded;
    embed_.backward(values, patches_, dx, d_padded, gradient);
    record("grad.image", {batch, image_.channels, image_.height, image_.width}, unpadded(d_padded));
  }

 private:
  struct Block {
    Block(layers::ParameterList& list, const std::string& name, const Config& config,
          const Checkpoint& file, Index width, const Windows& windows, const RunContext& run)
        : norm1(list, name + ".norm1", width, config.number("norm_eps", 1e-6)),
          attention(list, name + ".attn", config, file, width, windows, run),
          norm2(list, name + ".norm2", width, config.number("norm_eps", 1e-6)),
          mlp(list, {name + ".mlp.fc1", name + ".mlp.fc2"}, width,
              config.scaled(width, "mlp_ratio", 4.0), width) {}

    layers::LayerNorm norm1;
    WindowAttention attention;
    layers::LayerNorm norm2;
    layers::Mlp<layers::Gelu> mlp;
    Matrix<T> norm1_input, norm2_input, normed, added;
    WindowAttentionActivations<T> attention_activations;
    layers::MlpActivations<T> mlp_activations;
  };

  static Windows windows_of(const Config& config, const Checkpoint& file) {
    const auto grid = config.sizes("grid", 2);
    const Windows windows = {grid[0], grid[1], config.size("piece_size")};
    if (windows.rows % windows.side != 0 || windows.columns % windows.side != 0)
      config.fail("piece_size is " + std::to_string(windows.side) +
                  "; it must divide both extents of grid");
    const Index width = config.size("embed_dim"), patch = config.size("patch_size");
    file.require("pos_embed", {1, windows.tokens(), width});
    file.require("patch_embed.proj.weight", {width, config.size("in_chans"), patch, patch});
    file.require_layers("blocks.", "depth", config.size("depth"));
    return windows;
  }
  /// Arguments of MHLA_ViT and timm's VisionTransformer.
  void require_supported(const Config& config) const {
    config.require_class({"MHLA_ViT", "deit"});
    config.require("global_pool", {"avg"});
    config.require("padding", {true});
    config.require("fc_norm", {true});
    config.require("proj_bias", {true});
    config.require("pos_embed", {"learn"});
    config.require("norm_layer", {"layernorm", "LayerNorm"});
    config.require("act_layer", {"gelu", "GELU"});
    config.require_off({"init_values", "class_token", "reg_tokens", "pre_norm", "distilled",
                        "is_conv", "scale_attn_norm", "scale_mlp_norm", "embed_norm_layer"});
    config.require_same("num_features", width_, "the value of embed_dim");
    if (padded_.height == padded_.width)
      config.require_same("img_size", padded_.height, "grid * patch_size");
    config.ignore({"drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate",
                   "attn_drop_rate", "drop_path_rate", "weight_init", "fix_init", "flatten",
                   "no_embed_class", "grad_checkpointing", "pretrained", "pretrained_cfg",
                   "pretrained_cfg_overlay", "architecture", "architectures"});
  }
  static layers::ImageShape image_of(const Config& config) {
    const auto size = config.sizes("image_size", 2);
    return {config.size("in_chans"), size[0], size[1]};
  }
  void record_tokens(const std::string& name, const Matrix<T>& x, const Record& record) const {
    if (record.wants())
      record(name,
             {x.rows() / windows_.tokens(), windows_.count(), windows_.window_tokens(), width_},
             windows_.by_window(x));
  }
  /// f(image row or column element, padded one)
  template <class F>
  void for_each_pixel(const F& f) const {
    const Index above = (padded_.height - image_.height) / 2;
    const Index left = (padded_.width - image_.width) / 2;
    for (Index c = 0; c < image_.channels; ++c)
      for (Index y = 0; y < image_.height; ++y)
        for (Index x = 0; x < image_.width; ++x)
          f((c * image_.height + y) * image_.width + x,
            (c * padded_.height + above + y) * padded_.width + left + x);
  }
  /// Zeros around it, half of them on each side.
  Matrix<T> padded(const Matrix<T>& images) const {
    Matrix<T> larger = Matrix<T>::Zero(images.rows(), padded_.size());
    for_each_pixel([&](Index small, Index large) { larger.col(large) = images.col(small); });
    return larger;
  }
  Matrix<T> unpadded(const Matrix<T>& larger) const {
    Matrix<T> images(larger.rows(), image_.size());
    for_each_pixel([&](Index small, Index large) { images.col(small) = larger.col(large); });
    return images;
  }

  Windows windows_;
  Index width_;
  Index patch_;
  layers::ImageShape image_;
  layers::ImageShape padded_;
  Index classes_;
  layers::ParameterList list_;
  layers::PatchEmbedding embed_;
  layers::PositionEmbedding position_;
  std::vector<Block> blocks_;
  layers::LayerNorm norm_;
  layers::Linear head_;
  Matrix<T> patches_, mean_, normed_mean_;
};

}  // namespace released
