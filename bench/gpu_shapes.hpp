// SPDX-License-Identifier: MIT
// What is measured on a GPU: one layer of each model in batches of its size, and which variant that
// is.
#pragma once

#include <cmath>
#include <cstddef>
#include <mhla/core/shape.hpp>
#include <mhla/policy/variant.hpp>
#include <string>
#include <vector>

namespace bench {

enum class GpuModel {
  image,    ///< Relu, MixedKeySum: the library's default
  video,    ///< Relu, Unnormalized, AxialRotary: Wan's
  language  ///< Causal, Relu, Unnormalized, HalfSplitRotary, scale 1 / sqrt(key_dim)
};

/// (bench/shapes.hpp is about the CPU backend, which nvcc does not compile without warnings.)
struct GpuShape {
  std::string name;
  GpuModel model;
  std::ptrdiff_t batch;
  std::ptrdiff_t heads;
  std::ptrdiff_t key_dim;
  std::ptrdiff_t value_dim;
  std::ptrdiff_t grid[3];
  std::ptrdiff_t block[3];

  bool causal() const { return model == GpuModel::language; }
  std::ptrdiff_t tokens() const { return grid[0] * grid[1] * grid[2]; }
  std::ptrdiff_t blocks() const {
    std::ptrdiff_t count = 1;
    for (int axis = 0; axis < 3; ++axis) count *= (grid[axis] + block[axis] - 1) / block[axis];
    return count;
  }

  /// Query blocks and key blocks are the same ones.
  mhla::Shape call(std::ptrdiff_t items, std::ptrdiff_t item_heads) const {
    return {.batch = items,
            .heads = item_heads,
            .kv_heads = item_heads,
            .query_tokens = tokens(),
            .key_tokens = tokens(),
            .key_dim = key_dim,
            .value_dim = value_dim,
            .mix_heads = 1,
            .mix_query_blocks = blocks(),
            .mix_key_blocks = blocks()};
  }
  mhla::Shape call() const { return call(batch, heads); }

  /// Elements that have to be moved: q, k, v and y once; backward q, k, v, dy, dq, dk and dv.
  double forward_elements() const { return count(2, 2); }
  double backward_elements() const { return count(4, 3); }

  /// FLOPs of the matrix products, each done once: summaries, mixing and readout, and of a causal
  /// block the scores on and below the diagonal and what they weigh.
  double forward_flops() const {
    const double of_head = static_cast<double>(key_dim * value_dim);
    const double pairs =
        static_cast<double>(causal() ? blocks() * (blocks() - 1) / 2 : blocks() * blocks());
    const double own =
        causal() ? static_cast<double>(key_dim + value_dim) * static_cast<double>(block[2] + 1) : 0;
    return static_cast<double>(batch * heads) *
           (static_cast<double>(tokens()) * (4 * of_head + own) + 2 * pairs * of_head);
  }
  /// Two for each product of the forward pass.
  double backward_flops() const { return 2 * forward_flops(); }

 private:
  double count(std::ptrdiff_t of_key_dim, std::ptrdiff_t of_value_dim) const {
    return static_cast<double>(batch * heads * tokens()) *
           static_cast<double>(of_key_dim * key_dim + of_value_dim * value_dim);
  }
};

inline std::vector<GpuShape> gpu_shapes() {
  const auto video = [](std::ptrdiff_t batch) {
    return GpuShape{"Wan_B" + std::to_string(batch),
                    GpuModel::video,
                    batch,
                    12,
                    128,
                    128,
                    {21, 30, 50},
                    {3, 10, 10}};
  };
  const auto images = [](const std::string& name, std::ptrdiff_t batch, std::ptrdiff_t heads,
                         std::ptrdiff_t dim, std::ptrdiff_t side, std::ptrdiff_t window) {
    return GpuShape{name + "_B" + std::to_string(batch),
                    GpuModel::image,
                    batch,
                    heads,
                    dim,
                    dim,
                    {1, side, side},
                    {1, window, window}};
  };
  const auto text = [](std::ptrdiff_t batch, std::ptrdiff_t heads, std::ptrdiff_t key_dim,
                       std::ptrdiff_t value_dim, std::ptrdiff_t tokens) {
    return GpuShape{"NLP_" + std::to_string(key_dim) + "x" + std::to_string(value_dim) + "_N" +
                        std::to_string(tokens) + "_B" + std::to_string(batch),
                    GpuModel::language,
                    batch,
                    heads,
                    key_dim,
                    value_dim,
                    {1, 1, tokens},
                    {1, 1, 64}};
  };
  return {video(1),
          video(2),
          images("DiT-XL/2_256", 64, 16, 72, 16, 4),
          images("DiT-XL/2_256", 256, 16, 72, 16, 4),
          images("DiT-XL/2_512", 64, 16, 72, 32, 8),
          images("DeiT-S", 256, 6, 64, 16, 4),
          text(8, 8, 128, 128, 2048),
          text(4, 8, 128, 128, 8192),
          text(1, 8, 128, 128, 32768),
          text(8, 4, 128, 256, 2048),
          text(8, 4, 256, 256, 2048),
          text(1, 4, 256, 256, 32768)};
}

using GpuImage = mhla::Attention<mhla::Relu, mhla::Blocks3D>;
using GpuVideo = mhla::Attention<mhla::Relu, mhla::Blocks3D, mhla::Bidirectional,
                                 mhla::Unnormalized, mhla::AxialRotary>;
using GpuLanguage = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized,
                                    mhla::HalfSplitRotary>;

/// Calls f with the variant that a shape is run with.
template <class F>
auto with_gpu_variant(const GpuShape& shape, F&& f) {
  const mhla::Blocks3D blocks{{shape.grid[0], shape.grid[1], shape.grid[2]},
                              {shape.block[0], shape.block[1], shape.block[2]}};
  if (shape.model == GpuModel::language)
    return f(GpuLanguage{.feature_map = {.epsilon = 0},
                         .blocks = {shape.block[2]},
                         .scale = 1 / std::sqrt(static_cast<double>(shape.key_dim))});
  if (shape.model == GpuModel::video) return f(GpuVideo{.blocks = blocks});
  return f(GpuImage{.blocks = blocks});
}

}  // namespace bench
