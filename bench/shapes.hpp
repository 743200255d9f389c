// SPDX-License-Identifier: MIT
// The shapes of the paper's experiments (arXiv 2601.07832, section 5 and its tables) and of the
// released code, as one layer of each model calls attention.
#pragma once

#include <cstddef>
#include <mhla/cpu/block_table.hpp>
#include <string>
#include <vector>

namespace bench {

/// Which variant a shape is run with.
enum class Model {
  key_sum,   ///< Relu, MixedKeySum: the library's default
  product,   ///< Relu, MixedProduct: the released vision and DiT code's
  video,     ///< Relu, Unnormalized, AxialRotary: Wan's
  language,  ///< Causal, Relu, Unnormalized, HalfSplitRotary, scale 1 / sqrt(key_dim)
};

struct Shape {
  std::string name;
  Model model;
  std::ptrdiff_t heads;
  std::ptrdiff_t key_dim;
  std::ptrdiff_t value_dim;
  std::ptrdiff_t grid[3];
  std::ptrdiff_t block[3];

  std::ptrdiff_t tokens() const { return grid[0] * grid[1] * grid[2]; }
  std::ptrdiff_t blocks() const {
    std::ptrdiff_t count = 1;
    for (int axis = 0; axis < 3; ++axis) count *= (grid[axis] + block[axis] - 1) / block[axis];
    return count;
  }
  /// Elements of q, k, v and y of one image or sequence.
  std::ptrdiff_t elements() const { return heads * tokens() * 2 * (key_dim + value_dim); }

  /// FLOPs of the matrix products of one image or sequence, as executed: summaries and readout,
  /// mixing; causal tiles have their own scores and triangle besides, and all but the last of a
  /// block leave a running summary.
  double forward_flops() const {
    if (!causal()) return 4 * linear() + 2 * mixing();
    return (4 + 2 * later_tiles()) * linear() + 2 * mixing() + 2 * scores(key_dim) +
           2 * triangle(value_dim);
  }
  /// The same of the backward pass, with the recomputation of summaries, of their mixture, and of a
  /// causal tile's scores.
  double backward_flops() const {
    if (!causal()) return 10 * linear() + 6 * mixing();
    return (10 + 8 * later_tiles()) * linear() + 6 * mixing() + 4 * scores(value_dim) +
           2 * scores(key_dim) + 4 * triangle(key_dim) + 2 * triangle(value_dim);
  }
  /// The same where the forward pass has saved the summaries.
  double backward_saved_flops() const { return backward_flops() - 2 * linear(); }

  /// Without what is computed a second time, or for nothing: a product each for summaries and
  /// readout, of which the backward pass has two each, and of a causal tile's scores only those on
  /// and below the diagonal.
  double useful_forward_flops() const {
    const double own = causal() ? 2 * triangle(key_dim) + 2 * triangle(value_dim) : 0;
    return 4 * linear() + 2 * mixing() + own;
  }
  double useful_backward_flops() const { return 2 * useful_forward_flops(); }

  /// Of softmax attention, which knows no blocks.
  double softmax_flops() const {
    const double pairs = static_cast<double>(tokens()) *
                         static_cast<double>(causal() ? tokens() + 1 : 2 * tokens()) / 2;
    return 2 * pairs * static_cast<double>(heads * (key_dim + value_dim));
  }

  bool causal() const { return model == Model::language; }

 private:
  double per_head(std::ptrdiff_t count) const {
    return static_cast<double>(count) * static_cast<double>(heads * key_dim * value_dim);
  }
  double linear() const { return per_head(tokens()); }
  double mixing() const {
    return per_head(causal() ? blocks() * (blocks() - 1) / 2 : blocks() * blocks());
  }
  /// Tokens of a causal tile, blocks being cut evenly.
  double tile() const {
    const std::ptrdiff_t longest = mhla::cpu::max_causal_tile_tokens;
    return static_cast<double>(block[2]) / static_cast<double>((block[2] + longest - 1) / longest);
  }
  /// The share of a block's tiles that have another before them.
  double later_tiles() const { return 1 - tile() / static_cast<double>(block[2]); }
  /// Multiply-adds of a product with every pair of a tile's tokens, and with those of its triangle.
  double scores(std::ptrdiff_t dim) const {
    return static_cast<double>(heads * tokens() * dim) * tile();
  }
  double triangle(std::ptrdiff_t dim) const {
    return static_cast<double>(heads * tokens() * dim) * (tile() + 1) / 2;
  }
};

/// A square image of side x side tokens in windows of window x window.
inline Shape image(std::string name, std::ptrdiff_t heads, std::ptrdiff_t dim, std::ptrdiff_t side,
                   std::ptrdiff_t window, Model model = Model::key_sum) {
  return {std::move(name), model, heads, dim, dim, {1, side, side}, {1, window, window}};
}

/// A text. At 2048 tokens and blocks of 64 the paper's, which has 32 blocks.
inline Shape language(std::ptrdiff_t tokens, std::ptrdiff_t block) {
  return {"NLP_N" + std::to_string(tokens) + "_M" + std::to_string((tokens + block - 1) / block),
          Model::language,
          4,
          128,
          256,
          {1, 1, tokens},
          {1, 1, block}};
}

/// The list that everything is run with; bench_attention --shapes prints it.
inline std::vector<Shape> paper_shapes() {
  std::vector<Shape> shapes = {
      image("DeiT-T", 3, 64, 16, 4),
      image("DeiT-T_MixedProduct", 3, 64, 16, 4, Model::product),
      image("DeiT-S", 6, 64, 16, 4),
      image("DeiT-B", 12, 64, 16, 4),
      image("VLT-T_stage1", 1, 64, 56, 8),
      image("VLT-T_stage2", 2, 64, 28, 7),
      image("DiT-S/2_256", 6, 64, 16, 4),
      image("DiT-S/2_512", 6, 64, 32, 8),
      image("DiT-XL/2_256", 16, 72, 16, 4),
      image("DiT-XL/2_512", 16, 72, 32, 8),
      image("SANA_512", 36, 32, 16, 4),
      image("SANA_1024", 36, 32, 32, 8),
  };
  // Table 14: tokens against blocks, from 4 blocks to blocks of 4 tokens.
  for (const std::ptrdiff_t side : {16, 32, 64})
    for (std::ptrdiff_t layout = 2; layout <= side / 2; layout *= 2)
      shapes.push_back(
          image("Tab14_N" + std::to_string(side * side) + "_M" + std::to_string(layout * layout), 6,
                64, side, side / layout));
  for (const std::ptrdiff_t tokens : {2048, 8192, 32768}) shapes.push_back(language(tokens, 64));
  for (const std::ptrdiff_t tokens : {8192, 32768}) shapes.push_back(language(tokens, tokens / 32));
  // 774 MB of float tensors and more: --benchmark_filter=-Wan leaves them out.
  shapes.push_back({"Wan_M105", Model::video, 12, 128, 128, {21, 30, 50}, {3, 10, 10}});
  shapes.push_back({"Wan_M150", Model::video, 12, 128, 128, {21, 30, 50}, {7, 6, 5}});
  return shapes;
}

}  // namespace bench
