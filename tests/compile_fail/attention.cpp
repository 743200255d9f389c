// SPDX-License-Identifier: MIT
// Policies that do not make an Attention.
#include <mhla/policy/variant.hpp>
#include <vector>

struct Generic {
  template <class T>
  T value(T x) const {
    return x * x;
  }
  template <class T>
  T derivative(T x) const {
    return x + x;
  }
};
struct Rows {
  mhla::Index feature_dim(mhla::Index key_dim) const { return key_dim; }
  template <class T>
  void value(mhla::Span<const T> in, mhla::Span<T> out) const {
    for (mhla::Index c = 0; c < in.size; ++c) out[c] = in[c];
  }
  template <class T>
  void vjp(mhla::Span<const T> in, mhla::Span<const T> grad, mhla::Span<T> out) const {
    for (mhla::Index c = 0; c < in.size; ++c) out[c] = in[c] * grad[c];
  }
};
template <class Weights>
struct Scaled : Generic {
  Weights weights{};
};
struct Thirds {
  static constexpr int rank = 1;
  bool unset() const { return false; }
  mhla::Grid grid_of(mhla::Index tokens) const { return {{1, 1, tokens}, {1, 1, 3}}; }
};

template <class FeatureMap, class Geometry>
using Plain = mhla::Attention<FeatureMap, Geometry>;
template <class Geometry, class Causality, class Normalizer = mhla::MixedKeySum>
using Seeing = mhla::Attention<mhla::Relu, Geometry, Causality, Normalizer>;
template <class Geometry, class Rotation>
using Rotated =
    mhla::Attention<mhla::Relu, Geometry, mhla::Bidirectional, mhla::MixedKeySum, Rotation>;
template <class Mixing, class Causality = mhla::Bidirectional, class Normalizer = mhla::MixedKeySum>
using Mixed =
    mhla::Attention<mhla::Relu, mhla::Blocks1D, Causality, Normalizer, mhla::NoRotation, Mixing>;

Plain<Generic, Thirds> element_wise;
Plain<Rows, Thirds> row_wise;
Plain<Scaled<mhla::Span<const float>>, Thirds> borrowing;
Seeing<mhla::Blocks1D, mhla::BlockCausal, mhla::Unnormalized> block_causal;
Rotated<mhla::Blocks2D, mhla::AxialRotary> axial;
Mixed<mhla::RecurrentMixing, mhla::Causal> recurrent;
Mixed<mhla::SeparableMixing> separable;

#ifndef MHLA_CONTROL
// The first two arguments, exchanged.
// EXPECT: mhla: the 1st argument of Attention must be a feature map: trivially copyable, with T
Plain<mhla::Blocks2D, mhla::Relu> exchanged;
// A feature map is evaluated in the type of the tensors.
// EXPECT: mhla: the 1st argument of Attention must be a feature map: trivially copyable, with T
struct InDouble {
  double value(double x) const { return x * x; }
  double derivative(double x) const { return x + x; }
};
Plain<InDouble, mhla::Blocks1D> in_one_precision;
// A policy is copied into kernels byte by byte.
// EXPECT: mhla: the 1st argument of Attention must be a feature map: trivially copyable, with T
Plain<Scaled<std::vector<float>>, mhla::Blocks1D> owns_memory;
// Backward needs the derivative.
// EXPECT: mhla: the 1st argument of Attention must be a feature map: trivially copyable, with T
struct WithoutDerivative : Generic {
  template <class T>
  T derivative(T x) const = delete;
};
Plain<WithoutDerivative, mhla::Blocks1D> without_derivative;
// Backward needs the vector-Jacobian product of a row-wise map.
// EXPECT: mhla: the 1st argument of Attention must be a feature map: trivially copyable, with T
struct WithoutVjp : Rows {
  template <class T>
  void vjp(mhla::Span<const T> in, mhla::Span<const T> grad, mhla::Span<T> out) const = delete;
};
Plain<WithoutVjp, mhla::Blocks1D> without_vjp;
// A block geometry says how it cuts.
// EXPECT: mhla: the 2nd argument of Attention must be a block geometry: Blocks1D, Blocks2D,
struct WithoutGrid {
  static constexpr int rank = 1;
  bool unset() const { return false; }
};
Plain<mhla::Relu, WithoutGrid> without_grid;
// What a query sees is one of three.
// EXPECT: mhla: the 3rd argument of Attention must be Bidirectional, Causal or BlockCausal
Seeing<mhla::Blocks1D, mhla::MixedKeySum> unknown_causality;
// A normalizer of one's own is not among the three.
// EXPECT: mhla: the 4th argument of Attention must be MixedKeySum, MixedProduct or Unnormalized
struct Mean {
  double epsilon = 1e-6;
};
Seeing<mhla::Blocks1D, mhla::Bidirectional, Mean> unknown_normalizer;
// A rotation says which features it turns, and how fast.
// EXPECT: mhla: the 5th argument of Attention must be NoRotation, HalfSplitRotary, AxialRotary, or
struct Theta {
  double theta = 10000;
};
Rotated<mhla::Blocks1D, Theta> unknown_rotation;
// A mixing says which products it is made of.
// EXPECT: mhla: the 6th argument of Attention must be DenseMixing, RecurrentMixing,
struct Fenwick {};
Mixed<Fenwick> unknown_mixing;
// Neither an image nor a video has an order to follow.
// EXPECT: mhla: causal attention needs a sequence: use Blocks1D with Causal or BlockCausal
Seeing<mhla::Blocks2D, mhla::Causal> causal_image;
// EXPECT: mhla: causal attention needs a sequence: use Blocks1D with Causal or BlockCausal
Seeing<mhla::Blocks3D, mhla::BlockCausal> causal_video;
// MixedProduct looks at later queries.
// EXPECT: mhla: MixedProduct divides by products of later blocks' queries and so cannot be causal:
Seeing<mhla::Blocks1D, mhla::Causal, mhla::MixedProduct> causal_product;
// EXPECT: mhla: MixedProduct divides by products of later blocks' queries and so cannot be causal:
Seeing<mhla::Blocks1D, mhla::BlockCausal, mhla::MixedProduct> block_causal_product;
// HalfSplitRotary has one position for each token.
// EXPECT: mhla: HalfSplitRotary has one axis: use AxialRotary with Blocks2D or Blocks3D
Rotated<mhla::Blocks2D, mhla::HalfSplitRotary> half_split_image;
// A recurrence runs over earlier blocks; a Kronecker product has entries for later ones.
// EXPECT: mhla: a causal mixing, as RecurrentMixing, needs Causal or BlockCausal
Mixed<mhla::RecurrentMixing> bidirectional_recurrence;
// EXPECT: other, as SeparableMixing, Bidirectional
Mixed<mhla::SeparableMixing, mhla::Causal> causal_separable;
// The products of MixedProduct are mixed by the dense matrix.
// EXPECT: mhla: MixedProduct mixes products by the matrix itself: use DenseMixing with it
Mixed<mhla::SeparableMixing, mhla::Bidirectional, mhla::MixedProduct> separable_product;
#endif
