// SPDX-License-Identifier: MIT
// An mhla::Attention of any policies, so that what is built over it is compiled once. q, k, v and y
// are views [sequences, heads, tokens, dim], mix [heads, rows, columns].
#pragma once

#include <memory>
#include <mhla/core/forward_state.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/structured_mixing.hpp>

#include "scalar.hpp"

namespace training {

using View = mhla::TensorView<Scalar, 4>;
using ConstView = mhla::TensorView<const Scalar, 4>;
using MixView = mhla::TensorView<Scalar, 3>;
using ConstMixView = mhla::TensorView<const Scalar, 3>;
using Saved = mhla::ForwardState<Scalar>;

/// Of one sequence.
class AnyDecoder {
 public:
  virtual ~AnyDecoder() = default;
  /// The next tokens.
  virtual void step(const ConstView& q, const ConstView& k, const ConstView& v, const View& y) = 0;
};

class AnyAttention {
 public:
  virtual ~AnyAttention() = default;

  virtual bool is_causal() const = 0;
  virtual int rank() const = 0;  ///< axes of the grid
  virtual mhla::Grid grid_of(Index tokens) const = 0;
  /// Turns the pairs of each token, a row of x, by the angles of its place; direction -1 turns
  /// back.
  virtual void rotate(Matrix& x, int direction) const = 0;
  /// With one block of all tokens and its one weight 1 it is linear attention.
  virtual std::shared_ptr<const AnyAttention> with_one_block(Index tokens) const = 0;

  /// The last extents of mix.
  virtual mhla::MixExtents mix_extents(Index tokens) const = 0;
  virtual void initialize(const MixView& mix) const = 0;
  /// Back to where a mixing matrix may be, after an update.
  virtual void project(const MixView& mix) const = 0;
  virtual void forward(const ConstView& q, const ConstView& k, const ConstView& v,
                       const ConstMixView& mix, const View& y, Saved& saved) const = 0;
  virtual void backward(const ConstView& q, const ConstView& k, const ConstView& v,
                        const ConstMixView& mix, const ConstView& dy, const Saved& saved,
                        const mhla::GradientViews<Scalar>& gradients) const = 0;
  /// Null where the variant is not causal.
  virtual std::unique_ptr<AnyDecoder> decoder(const ConstMixView& mix, Index head_dim) const = 0;
};

}  // namespace training
