// SPDX-License-Identifier: MIT
// The released image classifiers: patches, blocks of attention and MLP, the mean over all tokens, a
// linear head. With attention over windows (MHLA_ViT), or linear attention in timm's
// VisionTransformer (deit_*_linear), whose other arguments both share.
#pragma once

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

template <class T>
class Deit {
 public:
  static constexpr const char* output = "logits";
  static constexpr std::string_view classes[] = {"MHLA_ViT", "VisionTransformer", "deit"};

  Deit(const Config& config, const Checkpoint& file, const RunContext& run)
      : has_windows_(WindowAttention::has_windows(file, "blocks.0.attn")),
        width_(config.size("embed_dim")),
        patch_(config.size("patch_size")),
        image_(image_of(config)),
        windows_(windows_of(config, file)),
        padded_{image_.channels, windows_.rows * patch_, windows_.columns * patch_},
        classes_(config.size("num_classes")),
        embed_(list_, "patch_embed.proj", padded_, patch_, width_,
               config.flag("pre_norm", false) ? layers::Bias::none : layers::Bias::one),
        position_(list_, "pos_embed", windows_.tokens(), width_),
        head_(list_, "head", width_, classes_, layers::Bias::one) {
    if (config.flag("pre_norm", false)) norm_pre_ = norm_of(config, "norm_pre");
    if (config.flag("final_norm", true)) {
      // After the mean over tokens unless fc_norm is false.
      if (config.flag("fc_norm", true))
        fc_norm_ = norm_of(config, "fc_norm");
      else
        norm_ = norm_of(config, "norm");
    }
    require_supported(config);
    for (Index l = 0; l < config.size("depth"); ++l)
      blocks_.emplace_back(*this, "blocks." + std::to_string(l), config, file, run);
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
    embedded_ = x;
    norm_pre_.forward(values, embedded_, x);
    for (std::size_t l = 0; l < blocks_.size(); ++l) {
      const std::string name = "blocks." + std::to_string(l);
      Block& block = blocks_[l];
      block.norm1_input = x;
      block.norm1.forward(values, x, block.normed);
      block.attention.forward(values, block.normed, block.attended, block.attention_activations,
                              name, record);
      record_tokens(name + ".attn_out", block.attended, record);
      block.add(values, block.scale1, block.attended, x);
      block.norm2_input = x;
      block.norm2.forward(values, x, block.normed);
      block.mlp.forward(values, block.normed, block.expanded, block.mlp_activations);
      record_tokens(name + ".mlp_out", block.expanded, record);
      block.add(values, block.scale2, block.expanded, x);
      record_tokens(name + ".out", x, record);
    }
    last_ = x;
    norm_.forward(values, last_, x);
    mean_.resize(batch, width_);
    for (Index b = 0; b < batch; ++b)
      mean_.row(b) = layers::rows_of(x, b, batch).colwise().mean().matrix();
    fc_norm_.forward(values, mean_, normed_mean_);
    Matrix<T> logits;
    head_.forward(values, normed_mean_, logits);
    record(output, {batch, classes_}, logits);
    return logits;
  }

  void backward(const Values<T>& values, const Matrix<T>& d_logits, Values<T>& gradient,
                const Record& record) {
    const Index batch = d_logits.rows();
    Matrix<T> d_normed, d_mean, d_added, dx;
    head_.backward(values, normed_mean_, d_logits, d_normed, gradient);
    fc_norm_.backward(values, mean_, d_normed, d_mean, gradient);
    d_normed.resize(batch * windows_.tokens(), width_);
    for (Index b = 0; b < batch; ++b)
      layers::rows_of(d_normed, b, batch).rowwise() =
          d_mean.row(b).array() / static_cast<T>(windows_.tokens());
    norm_.backward(values, last_, d_normed, dx, gradient);
    for (std::size_t l = blocks_.size(); l-- > 0;) {
      const Block& block = blocks_[l];
      block.add_backward(values, block.scale2, block.expanded, dx, d_added, gradient);
      block.mlp.backward(values, block.mlp_activations, d_added, d_normed, gradient);
      block.norm2.backward(values, block.norm2_input, d_normed, d_added, gradient);
      dx += d_added;
      block.add_backward(values, block.scale1, block.attended, dx, d_added, gradient);
      block.attention.backward(values, block.attention_activations, d_added, d_normed, gradient);
      block.norm1.backward(values, block.norm1_input, d_normed, d_added, gradient);
      dx += d_added;
    }
    norm_pre_.backward(values, embedded_, Matrix<T>(dx), dx, gradient);
    position_.backward(dx, gradient);
    Matrix<T> d_padded;
    embed_.backward(values, patches_, dx, d_padded, gradient);
    record("grad.image", {batch, image_.channels, image_.height, image_.width}, unpadded(d_padded));
  }

 private:
  /// x += scale1 o attn(norm1(x)); x += scale2 o mlp(norm2(x)); the scales are timm's LayerScale.
  struct Block {
    Block(Deit& model, const std::string& name, const Config& config, const Checkpoint& file,
          const RunContext& run)
        : norm1(model.norm_of(config, name + ".norm1")),
          attention(model.list_, name + ".attn", config, file, model.width_, model.windows_, run),
          norm2(model.norm_of(config, name + ".norm2")),
          mlp(model.list_, {name + ".mlp.fc1", name + ".mlp.fc2"}, model.width_,
              config.scaled(model.width_, "mlp_ratio", 4.0), model.width_) {
      if (config.number("init_values", 0) == 0) return;
      scale1 = model.list_.add(name + ".ls1.gamma", {model.width_}, 0, 0);
      scale2 = model.list_.add(name + ".ls2.gamma", {model.width_}, 0, 0);
    }

    using Scale = std::optional<layers::Parameter>;
    static void add(const Values<T>& values, const Scale& scale, const Matrix<T>& added,
                    Matrix<T>& x) {
      if (scale)
        layers::add_gated(added, scale->row(values), x);
      else
        x += added;
    }
    static void add_backward(const Values<T>& values, const Scale& scale, const Matrix<T>& added,
                             const Matrix<T>& dx, Matrix<T>& d_added, Values<T>& gradient) {
      if (scale)
        layers::add_gated_backward(added, scale->row(values), dx, d_added, scale->row(gradient));
      else
        d_added = dx;
    }

    layers::Norm norm1;
    WindowAttention attention;
    Scale scale1;
    layers::Norm norm2;
    layers::Mlp<layers::Gelu> mlp;
    Scale scale2;
    Matrix<T> norm1_input, norm2_input, normed, attended, expanded;
    WindowAttentionActivations<T> attention_activations;
    layers::MlpActivations<T> mlp_activations;
  };

  layers::Norm norm_of(const Config& config, const std::string& name) {
    config.require("norm_layer", {"layernorm", "LayerNorm", "rmsnorm", "RmsNorm"});
    const double epsilon = config.number("norm_eps", 1e-6);
    const std::string kind = config.has("norm_layer") ? config.word("norm_layer")
                             : has_windows_           ? ""
                                                      : "rmsnorm";
    if (kind == "rmsnorm" || kind == "RmsNorm")
      return layers::RmsNorm(list_, name, width_, epsilon);
    return layers::LayerNorm(list_, name, width_, epsilon);
  }
  Windows windows_of(const Config& config, const Checkpoint& file) const {
    // Linear attention has one window.
    std::vector<Index> grid = {image_.height / patch_, image_.width / patch_};
    if (has_windows_ || config.has("grid")) grid = config.sizes("grid", 2);
    Windows windows = {grid[0], grid[1], grid[0], grid[1]};
    if (has_windows_) {
      const Index side = config.size("piece_size");
      windows.height = windows.width = side;
      if (windows.rows % side != 0 || windows.columns % side != 0)
        config.fail("piece_size is " + std::to_string(side) +
                    "; it must divide both extents of grid");
    } else if (grid[0] * patch_ != image_.height || grid[1] * patch_ != image_.width) {
      config.fail("grid * patch_size must be image_size: deit_*_linear do not pad images");
    }
    file.require("pos_embed", {1, windows.tokens(), width_});
    file.require("patch_embed.proj.weight", {width_, image_.channels, patch_, patch_});
    file.require_layers("blocks.", "depth", config.size("depth"));
    return windows;
  }
  /// Arguments of MHLA_ViT and timm's VisionTransformer.
  void require_supported(const Config& config) const {
    if (padded_.height < image_.height || padded_.width < image_.width)
      config.fail("image_size is larger than grid * patch_size");
    config.require_class(classes);
    config.require("global_pool", {"avg"});
    config.require("padding", {has_windows_});
    config.require("proj_bias", {true});
    config.require("pos_embed", {"learn"});
    config.require("act_layer", {"gelu", "GELU"});
    config.require_off({"class_token", "reg_tokens", "distilled", "is_conv", "scale_attn_norm",
                        "scale_mlp_norm", "embed_norm_layer"});
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
    if (!record.wants()) return;
    std::vector<Index> shape = {x.rows() / windows_.tokens(), windows_.tokens(), width_};
    if (has_windows_) shape = {shape[0], windows_.count(), windows_.window_tokens(), width_};
    record(name, shape, windows_.by_window(x));
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

  bool has_windows_;
  Index width_;
  Index patch_;
  layers::ImageShape image_;
  Windows windows_;
  layers::ImageShape padded_;
  Index classes_;
  layers::ParameterList list_;
  layers::PatchEmbedding embed_;
  layers::PositionEmbedding position_;
  layers::Norm norm_pre_;
  std::vector<Block> blocks_;
  layers::Norm norm_, fc_norm_;
  layers::Linear head_;
  Matrix<T> patches_, embedded_, last_, mean_, normed_mean_;
};

}  // namespace released
