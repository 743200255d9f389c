// SPDX-License-Identifier: MIT
// A variant of mhla::Attention as AnyAttention.
#pragma once

#include <cmath>
#include <memory>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/decoding.hpp>
#include <mhla/policy/causality.hpp>
#include <mhla/policy/rotation.hpp>
#include <mhla/structured_mixing.hpp>
#include <type_traits>

#include "any_attention.hpp"

namespace training {

inline mhla::Blocks1D one_block(const mhla::Blocks1D& /*blocks*/, Index tokens) {
  return {.block = tokens};
}
template <class Geometry>
Geometry one_block(Geometry blocks, Index /*tokens*/) {
  for (int axis = 0; axis < Geometry::rank; ++axis) blocks.block[axis] = blocks.grid[axis];
  return blocks;
}

template <class Attention>
class AttentionOf : public AnyAttention {
  static constexpr bool causal = std::is_same_v<typename Attention::CausalityType, mhla::Causal>;

 public:
  explicit AttentionOf(const Attention& attention) : attention_(attention) {}

  bool is_causal() const override { return causal; }
  int rank() const override { return Attention::GeometryType::rank; }
  mhla::Grid grid_of(Index tokens) const override { return attention_.blocks.grid_of(tokens); }
  std::shared_ptr<const AnyAttention> with_one_block(Index tokens) const override {
    Attention attention = attention_;
    attention.blocks = one_block(attention.blocks, tokens);
    return std::make_shared<AttentionOf>(attention);
  }

  void rotate(Matrix& x, int direction) const override {
    if constexpr (!std::is_same_v<typename Attention::RotationType, mhla::NoRotation>) {
      const auto& rotation = attention_.rotation;
      const mhla::Grid grid = grid_of(x.rows());
      const auto [step, gap] = rotation.pairs(x.cols());
      Index first = 0;
      for (int axis = 0; axis < rank(); ++axis) {
        const Index count = rotation.axis_pairs(axis, rank(), x.cols() / 2);
        for (Index j = 0; j < count; ++j, first += step)
          for (Index t = 0; t < x.rows(); ++t) {
            const double angle = direction * rotation.frequency(j, count) *
                                 static_cast<double>(grid.coordinate(t, 3 - rank() + axis));
            turn(x(t, first), x(t, first + gap), angle);
          }
      }
    }
  }

  mhla::MixExtents mix_extents(Index tokens) const override {
    return mhla::mix_extents(attention_, tokens);
  }
  void initialize(const MixView& mix) const override { mhla::initialize(mix, attention_); }
  void project(const MixView& mix) const override {
    mhla::project(mix, attention_, causal ? mhla::causal_projection : mhla::Projection{});
  }
  void forward(const ConstView& q, const ConstView& k, const ConstView& v, const ConstMixView& mix,
               const View& y, Saved& saved) const override {
    const mhla::Workspace workspace(
        mhla::forward_workspace_size<Scalar>(attention_, mhla::shape_of(q, k, v, mix), one_thread));
    mhla::forward_into(attention_, one_thread, q, k, v, mix, y, workspace, &saved);
  }
  void backward(const ConstView& q, const ConstView& k, const ConstView& v, const ConstMixView& mix,
                const ConstView& dy, const Saved& saved,
                const mhla::GradientViews<Scalar>& gradients) const override {
    const mhla::Workspace workspace(mhla::backward_workspace_size<Scalar>(
        attention_, mhla::shape_of(q, k, v, mix), one_thread));
    mhla::backward_into(attention_, one_thread, q, k, v, mix, dy, gradients,
                        mhla::Update::overwrite, workspace, &saved);
  }
  std::unique_ptr<AnyDecoder> decoder(const ConstMixView& mix, Index head_dim) const override {
    if constexpr (causal) return std::make_unique<DecoderOf>(attention_, mix, head_dim);
    return nullptr;
  }

 private:
  struct DecoderOf : AnyDecoder {
    DecoderOf(const Attention& attention, const ConstMixView& mix, Index head_dim)
        : decoder(attention, mix,
                  {.batch = 1,
                   .heads = mix.extent[0],
                   .kv_heads = mix.extent[0],
                   .key_dim = head_dim,
                   .value_dim = head_dim}) {}
    void step(const ConstView& q, const ConstView& k, const ConstView& v, const View& y) override {
      decoder.step(q, k, v, y);
    }
    mhla::Decoder<Attention, Scalar> decoder;
  };

  static void turn(Scalar& x, Scalar& y, double angle) {
    const Scalar cosine = static_cast<Scalar>(std::cos(angle));
    const Scalar sine = static_cast<Scalar>(std::sin(angle));
    const Scalar first = x;
    x = cosine * first - sine * y;
    y = sine * first + cosine * y;
  }

  static constexpr mhla::SerialExecutor one_thread{};
  Attention attention_;
};

template <class Attention>
std::shared_ptr<const AnyAttention> any_attention(const Attention& attention) {
  return std::make_shared<AttentionOf<Attention>>(attention);
}

}  // namespace training
