// SPDX-License-Identifier: MIT
// The released language model: a causal stack of gated MHLA and SwiGLU layers.
//
//   x += (RMS(MHLA(q, k, v)) o silu(g)) Wo^T    x += swiglu(RMS(x))    logits = RMS(x) Whead^T
//
// with q, k, v and g linear in RMS(x); q, k and v pass short causal convolutions where the
// configuration has them, and there may be no gate. Tokens come all at once, to be differentiated,
// or a few at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <mhla/decoding.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/causality.hpp>
#include <mhla/policy/feature_map.hpp>
#include <mhla/policy/normalizer.hpp>
#include <mhla/policy/rotation.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "../layers/activations.hpp"
#include "../layers/convolution.hpp"
#include "../layers/embedding.hpp"
#include "../layers/linear.hpp"
#include "../layers/mhla_attention.hpp"
#include "../layers/mlp.hpp"
#include "../layers/norms.hpp"
#include "checkpoint.hpp"
#include "config.hpp"
#include "feature_maps.hpp"
#include "record.hpp"
#include "run_context.hpp"

namespace released {

/// The sizes that its layers share.
struct LanguageModelShape {
  Index width, heads, kv_heads, key_dim, value_dim, hidden, block, mix_blocks;
  Index taps;  // of the short convolutions; 0: there are none
  FeatureMap feature_map;
  bool is_gated;
  double theta, epsilon;

  Index key_width() const { return kv_heads * key_dim; }
  Index value_width() const { return kv_heads * value_dim; }
  Index out_width() const { return heads * value_dim; }
  Index features() const { return feature_count(feature_map, key_dim); }
};

/// A linear map and, where there is one, its short convolution: silu(conv(x W^T)).
template <class T>
class ConvolvedLinear {
 public:
  ConvolvedLinear(layers::ParameterList& list, const std::string& name, const std::string& kind,
                  Index in, Index out, Index taps)
      : kind_(kind), linear_(list, name + "." + kind + "_proj", in, out) {
    if (taps > 0)
      convolution_.emplace(
          layers::DepthwiseConvolution::causal(list, name + "." + kind + "_conv1d", out, taps));
    history_rows_ = std::max<Index>(taps - 1, 0);
  }

  void forward(const Values<T>& values, const Matrix<T>& x, Index batch, const std::string& name,
               const Record& record) {
    linear_.forward(values, x, projected_);
    record(name + "." + kind_ + "_proj", {batch, x.rows() / batch, projected_.cols()}, projected_);
    if (!convolution_) return;
    convolution_->forward(values, sequence(x.rows() / batch), projected_, convolved_);
    layers::activate<layers::Silu>(convolved_, activated_);
    record(name + "." + kind_ + "_conv1d", {batch, x.rows() / batch, activated_.cols()},
           activated_);
  }
  /// For the next tokens of one sequence: `history` keeps what the convolution still needs.
  void forward(const Values<T>& values, const Matrix<T>& x, Matrix<T>& history) {
    linear_.forward(values, x, projected_);
    if (!convolution_) return;
    Matrix<T> all(history.rows() + projected_.rows(), projected_.cols());
    all << history, projected_;
    convolution_->forward(values, sequence(all.rows()), all, convolved_);
    layers::activate<layers::Silu>(Matrix<T>(convolved_.bottomRows(x.rows())), activated_);
    history = all.bottomRows(std::min(all.rows(), history_rows_));
  }
  const Matrix<T>& result() const { return convolution_ ? activated_ : projected_; }

  /// dx += what the gradient `d` of the result makes of it.
  void add_backward(const Values<T>& values, const Matrix<T>& x, Index batch, Matrix<T> d,
                    Matrix<T>& dx, Values<T>& gradient) const {
    Matrix<T> part;
    if (convolution_) {
      layers::activate_backward<layers::Silu>(convolved_, d, part);
      convolution_->backward(values, sequence(x.rows() / batch), projected_, part, d, gradient);
    }
    linear_.backward(values, x, d, part, gradient);
    dx += part;
  }

 private:
  static layers::Grid sequence(Index tokens) { return {{1, 1, tokens}}; }

  std::string kind_;
  layers::Linear linear_;
  std::optional<layers::DepthwiseConvolution> convolution_;
  Index history_rows_ = 0;
  Matrix<T> projected_, convolved_, activated_;
};

template <class T>
class LanguageModelLayer {
 public:
  /// Maps features and rotates them; or takes those of FeatureLayer.
  using ReluAttention = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal,
                                        mhla::Unnormalized, mhla::HalfSplitRotary>;
  using FeatureAttention = mhla::Attention<mhla::Identity, mhla::Blocks1D, mhla::Causal,
                                           mhla::Unnormalized, mhla::NoRotation>;
  using Decoder = std::variant<mhla::Decoder<ReluAttention, T>, mhla::Decoder<FeatureAttention, T>>;
  /// What a sequence that grows leaves for its next tokens.
  struct Past {
    Decoder decoder;
    Matrix<T> q, k, v;  // for the convolutions
  };

  LanguageModelLayer(layers::ParameterList& list, const std::string& name,
                     const LanguageModelShape& shape, const RunContext& run)
      : shape_(shape),
        attn_norm_(list, name + ".attn_norm", shape.width, shape.epsilon),
        q_(list, name + ".attn", "q", shape.width, shape.heads * shape.key_dim, shape.taps),
        k_(list, name + ".attn", "k", shape.width, shape.key_width(), shape.taps),
        v_(list, name + ".attn", "v", shape.width, shape.value_width(), shape.taps),
        features_q_(list, name + ".attn.feature_map_q", shape.feature_map, shape.heads,
                    shape.key_dim, run.frequency_base(shape.theta)),
        features_k_(list, name + ".attn.feature_map_k", shape.feature_map, shape.kv_heads,
                    shape.key_dim, run.frequency_base(shape.theta)),
        mixing_(list.add(name + ".attn.mixing_matrix",
                         {shape.mix_blocks, shape.mix_blocks, 1, 1, 1, 1}, 0, 0)),
        head_norm_(list, name + (shape.is_gated ? ".attn.g_norm_swish_gate" : ".attn.g_norm"),
                   shape.value_dim, shape.epsilon),
        o_(list, name + ".attn.o_proj", shape.out_width(), shape.width),
        mlp_norm_(list, name + ".mlp_norm", shape.width, shape.epsilon),
        mlp_(list, name + ".mlp", shape.width, shape.hidden),
        attention_(attention_of(shape, run)),
        run_(run) {
    if (shape.is_gated) g_.emplace(list, name + ".attn", "g", shape.width, shape.out_width(), 0);
  }

  void forward(const Values<T>& values, Index batch, Matrix<T>& x, const std::string& name,
               const Record& record) {
    const Index tokens = x.rows() / batch;
    input_ = x;
    attn_norm_.forward(values, x, normed_);
    record(name + ".attn_norm", {batch, tokens, shape_.width}, normed_);
    q_.forward(values, normed_, batch, name, record);
    k_.forward(values, normed_, batch, name, record);
    v_.forward(values, normed_, batch, name, record);
    if (g_) g_->forward(values, normed_, batch, name, record);
    mapped_ = {.tokens = tokens};
    make_features(values, mapped_, name);
    mix_ = cut_mixing(values, mhla::ceil_div(tokens, shape_.block));
    std::visit(
        [&](const auto& attention) {
          attention.forward(heads(batch), mapped_q_, mapped_k_, v_.result(), mix_, attended_);
        },
        attention_);
    record(name + ".attention", {batch, tokens, shape_.heads, shape_.value_dim}, attended_);
    after_attention(values, x);
    record(name + ".gated", {batch, tokens, shape_.heads, shape_.value_dim}, gated_);
    record(name + ".attn_out", {batch, tokens, shape_.width}, attn_out_);
    record(name + ".out", {batch, tokens, shape_.width}, x);
  }

  /// Nothing has come yet. Results do not depend on how many tokens come at a time.
  Past no_past(const Values<T>& values) {
    mix_ = cut_mixing(values, shape_.mix_blocks);
    const auto decoder = [&](const auto& attention) -> Decoder {
      using Variant = std::decay_t<decltype(attention.variant())>;
      return mhla::Decoder<Variant, T>(attention.variant(), mhla::mix_view(mix_),
                                       {.batch = 1,
                                        .heads = shape_.heads,
                                        .kv_heads = shape_.kv_heads,
                                        .key_dim = shape_.features(),
                                        .value_dim = shape_.value_dim});
    };
    return {std::visit(decoder, attention_), Matrix<T>(0, shape_.heads * shape_.key_dim),
            Matrix<T>(0, shape_.key_width()), Matrix<T>(0, shape_.value_width())};
  }
  void forward(const Values<T>& values, Past& past, Matrix<T>& x) {
    const Record unrecorded;
    attn_norm_.forward(values, x, normed_);
    q_.forward(values, normed_, past.q);
    k_.forward(values, normed_, past.k);
    v_.forward(values, normed_, past.v);
    if (g_) g_->forward(values, normed_, 1, "", unrecorded);
    attended_.resize(x.rows(), shape_.out_width());
    const auto step = [&](auto& decoder) {
      make_features(values, {.tokens = x.rows(), .first = decoder.position(0)}, "");
      decoder.step(mhla::heads_view(mapped_q_, shape_.heads),
                   mhla::heads_view(mapped_k_, shape_.kv_heads),
                   mhla::heads_view(v_.result(), shape_.kv_heads),
                   mhla::heads_view(attended_, shape_.heads));
    };
    std::visit(step, past.decoder);
    after_attention(values, x);
  }

  /// dx is the gradient of the layer's result on entry, of its input afterwards.
  void backward(const Values<T>& values, Index batch, Matrix<T>& dx, Values<T>& gradient) const {
    Matrix<T> d_normed, d_part, d_gated, d_gate, d_attended;
    mlp_.backward(values, mlp_activations_, dx, d_normed, gradient);
    mlp_norm_.backward(values, middle_, d_normed, d_part, gradient);
    dx += d_part;

    o_.backward(values, gated_, dx, d_gated, gradient);
    d_part = d_gated;
    if (g_) layers::gate_backward(g_->result(), head_normed_, d_gated, d_gate, d_part);
    head_norm_.backward(values, attended_, d_part, d_attended, gradient);
    const Matrix<T>&q = mapped_q_, &k = mapped_k_, &v = v_.result();
    Matrix<T> dq(q.rows(), q.cols()), dk(k.rows(), k.cols()), dv(v.rows(), v.cols());
    Matrix<T> d_mix(mix_.rows(), mix_.cols());
    std::visit(
        [&](const auto& attention) {
          attention.backward(heads(batch), q, k, v, mix_, d_attended, dq, dk, dv, d_mix);
        },
        attention_);
    features_q_.backward(values, Matrix<T>(dq), mapped_, dq, gradient);
    features_k_.backward(values, Matrix<T>(dk), mapped_, dk, gradient);
    // By the matrix as it was cut: an entry that was clamped has the gradient of its bound.
    auto d_mixing = mixing_.in(gradient);
    d_mixing.setZero();
    d_mixing.topLeftCorner(mix_.rows(), mix_.cols()) =
        d_mix.template triangularView<Eigen::Lower>();
    d_normed.setZero(normed_.rows(), normed_.cols());
    q_.add_backward(values, normed_, batch, dq, d_normed, gradient);
    k_.add_backward(values, normed_, batch, dk, d_normed, gradient);
    v_.add_backward(values, normed_, batch, dv, d_normed, gradient);
    if (g_) g_->add_backward(values, normed_, batch, d_gate, d_normed, gradient);
    attn_norm_.backward(values, input_, d_normed, d_part, gradient);
    dx += d_part;
  }

 private:
  /// As the released code cuts it in every forward pass: lower triangle of clamp(m, 1e-5, 1).
  Matrix<T> cut_mixing(const Values<T>& values, Index blocks) const {
    if (blocks > shape_.mix_blocks)
      throw mhla::ShapeError(
          {"the mixing matrix reaches ", shape_.mix_blocks * shape_.block, " tokens"});
    Matrix<T> mix = mixing_.in(values).topLeftCorner(blocks, blocks);
    mix = mix.cwiseMax(T(1e-5)).cwiseMin(T(1));
    mix.template triangularView<Eigen::StrictlyUpper>().setZero();
    return mix;
  }
  layers::Heads heads(Index batch) const { return {shape_.heads, shape_.kv_heads, batch}; }

  using AnyAttention =
      std::variant<layers::MhlaAttention<ReluAttention>, layers::MhlaAttention<FeatureAttention>>;
  static AnyAttention attention_of(const LanguageModelShape& shape, const RunContext& run) {
    const mhla::Blocks1D blocks{.block = shape.block};
    const double scale = 1 / std::sqrt(static_cast<double>(shape.features()));
    if (!is_relu_in_attention(shape.feature_map))
      return layers::MhlaAttention<FeatureAttention>({.blocks = blocks, .scale = scale}, run.team,
                                                     run.storage);
    return layers::MhlaAttention<ReluAttention>(
        {.feature_map = {.epsilon = 0},
         .blocks = blocks,
         .rotation = {.theta = run.frequency_base(shape.theta)},
         .scale = scale},
        run.team, run.storage);
  }
  void make_features(const Values<T>& values, const Positions& at, const std::string& name) {
    features_q_.forward(
        values, q_.result(), at, [&](Matrix<T>& x) { run_.at_kink(name + ".q", x); }, mapped_q_);
    features_k_.forward(
        values, k_.result(), at, [&](Matrix<T>& x) { run_.at_kink(name + ".k", x); }, mapped_k_);
  }
  void after_attention(const Values<T>& values, Matrix<T>& x) {
    head_norm_.forward(values, attended_, head_normed_);
    gated_ = head_normed_;
    if (g_) layers::gate(g_->result(), head_normed_, gated_);
    o_.forward(values, gated_, attn_out_);
    x += attn_out_;
    middle_ = x;
    Matrix<T> normed, added;
    mlp_norm_.forward(values, x, normed);
    mlp_.forward(values, normed, added, mlp_activations_);
    x += added;
  }

  LanguageModelShape shape_;
  layers::RmsNorm attn_norm_;
  ConvolvedLinear<T> q_, k_, v_;
  std::optional<ConvolvedLinear<T>> g_;
  FeatureLayer<T> features_q_, features_k_;
  layers::Parameter mixing_;
  layers::RmsNorm head_norm_;
  layers::Linear o_;
  layers::RmsNorm mlp_norm_;
  layers::GatedMlp mlp_;
  AnyAttention attention_;
  RunContext run_;

  Positions mapped_{};
  Matrix<T> input_, normed_, mapped_q_, mapped_k_, mix_, attended_, head_normed_, gated_, attn_out_,
      middle_;
  layers::GatedMlpActivations<T> mlp_activations_;
};

template <class T>
class LanguageModel {
 public:
  static constexpr const char* output = "logits";
  static constexpr std::string_view classes[] = {"GLAForCausalLM"};
  using Layer = LanguageModelLayer<T>;
  using Past = std::vector<typename Layer::Past>;

  LanguageModel(const Config& config, const Checkpoint& file, const RunContext& run)
      : shape_(shape_of(config, file)),
        vocabulary_(config.size("vocab_size")),
        embedding_(list_, "model.embeddings.weight", vocabulary_, shape_.width),
        norm_(list_, "model.norm", shape_.width, shape_.epsilon) {
    for (Index l = 0; l < config.size("num_hidden_layers"); ++l)
      layers_.emplace_back(list_, "model.layers." + std::to_string(l), shape_, run);
    if (!config.flag("tie_word_embeddings", !file.has("lm_head.weight")))
      head_.emplace(list_, "lm_head", shape_.width, vocabulary_);
    else
      file.require_repeats("lm_head.weight", "model.embeddings.weight",
                           "tie_word_embeddings is true");
    require_supported(config);
  }

  const layers::ParameterList& parameters() const { return list_; }
  Index vocabulary() const { return vocabulary_; }

  /// The logits [batch, tokens, vocabulary] of `input_ids` [batch, tokens].
  Matrix<T> forward(const Values<T>& values, const Safetensors& inputs, const Record& record) {
    const auto& ids = inputs.tensor("input_ids");
    if (ids.shape.size() != 2)
      throw UnreadableFile(inputs.path(), "input_ids has the shape " + text_of(ids.shape));
    return forward(values, ids.template elements<Index>(), ids.shape[0], record);
  }
  Matrix<T> forward(const Values<T>& values, const std::vector<Index>& ids, Index batch,
                    const Record& record) {
    embed(values, ids, last_);
    batch_ = batch;
    for (std::size_t l = 0; l < layers_.size(); ++l)
      layers_[l].forward(values, batch, last_, "layers." + std::to_string(l), record);
    const Matrix<T> logits = head(values);
    record(output, {batch, last_.rows() / batch, vocabulary_}, logits);
    return logits;
  }

  Past no_past(const Values<T>& values) {
    Past past;
    for (Layer& layer : layers_) past.push_back(layer.no_past(values));
    return past;
  }
  /// The logits after each of the next tokens of one sequence.
  Matrix<T> forward(const Values<T>& values, const std::vector<Index>& ids, Past& past) {
    embed(values, ids, last_);
    for (std::size_t l = 0; l < layers_.size(); ++l) layers_[l].forward(values, past[l], last_);
    return head(values);
  }

  void backward(const Values<T>& values, const Matrix<T>& d_logits, Values<T>& gradient,
                const Record& record) {
    Matrix<T> d_normed, dx;
    auto table = embedding_.table().in(gradient);
    if (head_) {
      head_->backward(values, normed_, d_logits, d_normed, gradient);
      table.setZero();
    } else {
      table.noalias() = d_logits.transpose() * normed_;
      d_normed.noalias() = d_logits * embedding_.table().in(values);
    }
    norm_.backward(values, last_, d_normed, dx, gradient);
    for (std::size_t l = layers_.size(); l-- > 0;)
      layers_[l].backward(values, batch_, dx, gradient);
    embedding_.add_backward(ids_, dx, gradient);
    record("grad.embeddings", {batch_, dx.rows() / batch_, shape_.width}, dx);
  }

 private:
  static LanguageModelShape shape_of(const Config& config, const Checkpoint& file) {
    LanguageModelShape shape{};
    shape.width = config.size("hidden_size");
    shape.heads = config.size("num_heads");
    shape.kv_heads = config.size("num_kv_heads", shape.heads);
    if (shape.heads % shape.kv_heads != 0)
      config.fail("num_kv_heads is " + std::to_string(shape.kv_heads) +
                  "; it must divide num_heads");
    const auto dim = [&](const char* name, const char* expansion, double otherwise) {
      if (config.has(name) && !config.has(expansion)) return config.size(name);
      const Index all = config.scaled(shape.width, expansion, otherwise);
      if (all % shape.heads != 0)
        config.fail("num_heads is " + std::to_string(shape.heads) +
                    "; it must divide hidden_size * " + expansion);
      config.require_same(name, all / shape.heads,
                          std::string("hidden_size * ") + expansion + " / num_heads");
      return all / shape.heads;
    };
    shape.key_dim = dim("head_k_dim", "expand_k", 0.5);
    shape.value_dim = dim("head_v_dim", "expand_v", 1.0);
    shape.hidden = hidden_of(config, shape.width);
    shape.block = config.size("chunk_size", 64);
    const Index taps = config.size("conv_size", 4);
    shape.taps = config.flag("use_short_conv", false) ? taps : 0;
    shape.feature_map = feature_map_of(config);
    shape.is_gated = config.flag("use_output_gate", true);
    shape.theta = config.positive("rope_theta", 10000.0);
    shape.epsilon = config.number("norm_eps", 1e-6);
    const std::string first = "model.layers.0.attn.";
    shape.mix_blocks = file.shape(first + "mixing_matrix", 6)[0];
    if (shape.key_dim < 2 || shape.mix_blocks < 1)
      config.fail(
          "key_dim, hidden_size * expand_k / num_heads, must be at least 2, and mixing_matrix must "
          "have at least one block");
    file.require("model.embeddings.weight", {config.size("vocab_size"), shape.width});
    file.require(first + "mixing_matrix", {shape.mix_blocks, shape.mix_blocks, 1, 1, 1, 1});
    file.require(first + "q_proj.weight", {shape.heads * shape.key_dim, shape.width});
    file.require(first + "v_proj.weight", {shape.value_width(), shape.width});
    file.require_layers("model.layers.", "num_hidden_layers", config.size("num_hidden_layers"));
    for (Index l = 0; l < config.size("num_hidden_layers"); ++l)
      file.require_values("model.layers." + std::to_string(l) + ".attn.rotary.inv_freq",
                          inverse_frequencies(shape), inverse_frequency_rounding(shape));
    return shape;
  }
  /// As the released MLP has it: two thirds of hidden_ratio * width, rounded up to a multiple of
  /// 256.
  static Index hidden_of(const Config& config, Index width) {
    const Index hidden = config.scaled(2 * width, "hidden_ratio", 4) / 3;
    return config.size("intermediate_size", mhla::ceil_div(hidden, Index{256}) * 256);
  }
  static std::vector<double> inverse_frequencies(const LanguageModelShape& shape) {
    std::vector<double> frequencies;
    for (Index j = 0; j < shape.key_dim / 2; ++j)
      frequencies.push_back(
          std::pow(shape.theta, -2 * static_cast<double>(j) / static_cast<double>(shape.key_dim)));
    return frequencies;
  }
  /// The exponent times log(theta), and the power, each rounded to float, twice over.
  static double inverse_frequency_rounding(const LanguageModelShape& shape) {
    return 0x1p-23 * (2 + std::abs(std::log(shape.theta)));
  }
  /// Arguments of GLAConfig, and of transformers' PretrainedConfig.
  static void require_supported(const Config& config) {
    config.require_class(classes);
    config.require("model_type", {"gla"});
    config.require("attn_extends", {"mhla"});
    config.require("attn_mode", {"chunk"});
    config.require("hidden_act", {"swish", "silu"});
    config.require("elementwise_affine", {true});
    config.require("fuse_norm", {true});  // without it the released layer cannot be run
    config.require_off({"attn", "conv_bias", "add_cross_attention", "is_encoder_decoder"});
    // The released layer takes the first three but does not use them.
    config.ignore({"clamp_min", "use_gk", "use_gv", "fuse_swiglu", "fuse_cross_entropy",
                   "fuse_linear_cross_entropy", "use_l2warp", "max_position_embeddings",
                   "initializer_range", "batch", "tokens"});
    config.ignore({"architectures",
                   "torch_dtype",
                   "dtype",
                   "transformers_version",
                   "auto_map",
                   "_name_or_path",
                   "_commit_hash",
                   "_attn_implementation_autoset",
                   "use_cache",
                   "pad_token_id",
                   "bos_token_id",
                   "eos_token_id",
                   "sep_token_id",
                   "decoder_start_token_id",
                   "vocab_file",
                   "tokenizer_class",
                   "return_dict",
                   "output_hidden_states",
                   "output_attentions",
                   "torchscript",
                   "use_bfloat16",
                   "tf_legacy_loss",
                   "pruned_heads",
                   "cross_attention_hidden_size",
                   "is_decoder",
                   "tie_encoder_decoder",
                   "chunk_size_feed_forward",
                   "gradient_checkpointing",
                   "id2label",
                   "label2id",
                   "num_labels",
                   "problem_type",
                   "finetuning_task",
                   "task_specific_params",
                   "prefix"});
    // Options of text generation, which the command line gives here.
    config.ignore({"max_length",
                   "min_length",
                   "do_sample",
                   "early_stopping",
                   "num_beams",
                   "num_beam_groups",
                   "diversity_penalty",
                   "temperature",
                   "top_k",
                   "top_p",
                   "typical_p",
                   "repetition_penalty",
                   "length_penalty",
                   "no_repeat_ngram_size",
                   "encoder_no_repeat_ngram_size",
                   "bad_words_ids",
                   "num_return_sequences",
                   "output_scores",
                   "return_dict_in_generate",
                   "forced_bos_token_id",
                   "forced_eos_token_id",
                   "remove_invalid_values",
                   "suppress_tokens",
                   "exponential_decay_length_penalty",
                   "begin_suppress_tokens"});
  }
  void embed(const Values<T>& values, const std::vector<Index>& ids, Matrix<T>& x) {
    for (const Index id : ids)
      if (id < 0 || id >= vocabulary_)
        throw mhla::ShapeError({"token ", id, " is not one of ", vocabulary_});
    ids_ = ids;
    embedding_.forward(values, ids, x);
  }
  Matrix<T> head(const Values<T>& values) {
    Matrix<T> logits;
    norm_.forward(values, last_, normed_);
    if (head_)
      head_->forward(values, normed_, logits);
    else
      logits.noalias() = normed_ * embedding_.table().in(values).transpose();
    return logits;
  }

  LanguageModelShape shape_;
  Index vocabulary_;
  layers::ParameterList list_;
  layers::Embedding embedding_;
  std::vector<Layer> layers_;
  layers::RmsNorm norm_;
  std::optional<layers::Linear> head_;

  Index batch_ = 1;
  std::vector<Index> ids_;
  Matrix<T> last_, normed_;
};

}  // namespace released
