// SPDX-License-Identifier: MIT
// Policies that do not make an Attention.
// EXPECT 5: mhla: the 1st argument of Attention must be a feature map: trivially copyable, with T
// EXPECT: mhla: the 2nd argument of Attention must be a block geometry: Blocks1D, Blocks2D,
// EXPECT: mhla: the 3rd argument of Attention must be Bidirectional, Causal or BlockCausal
// EXPECT: mhla: the 4th argument of Attention must be MixedKeySum, MixedProduct or Unnormalized
// EXPECT: mhla: the 5th argument of Attention must be NoRotation, HalfSplitRotary, AxialRotary, or
// EXPECT: mhla: the 6th argument of Attention must be DenseMixing, RecurrentMixing,
// EXPECT 2: mhla: causal attention needs a sequence: use Blocks1D with Causal or BlockCausal
// EXPECT 2: mhla: MixedProduct divides by products of later blocks' queries and so cannot be
// causal: EXPECT: mhla: HalfSplitRotary has one axis: use AxialRotary with Blocks2D or Blocks3D
// EXPECT: mhla: a causal mixing, as RecurrentMixing, needs Causal or BlockCausal
// EXPECT: other, as SeparableMixing, Bidirectional
// EXPECT: mhla: MixedProduct mixes products by the matrix itself: use DenseMixing with it
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
// A feature map is evaluated in the type of the tensors, copied into kernels byte by byte, and has
// a derivative, or the vector-Jacobian product of a row-wise map.
struct InDouble {
  double value(double x) const { return x * x; }
  double derivative(double x) const { return x + x; }
};
struct WithoutDerivative : Generic {
  template <class T>
  T derivative(T x) const = delete;
};
struct WithoutVjp : Rows {
  template <class T>
  void vjp(mhla::Span<const T> in, mhla::Span<const T> grad, mhla::Span<T> out) const = delete;
};
struct WithoutGrid {
  static constexpr int rank = 1;
  bool unset() const { return false; }
};
struct Epsilon {
  double epsilon = 1e-6;
};
struct Theta {
  double theta = 10000;
};
struct Fenwick {};

Plain<mhla::Blocks2D, mhla::Relu> exchanged;
Plain<InDouble, mhla::Blocks1D> in_one_precision;
Plain<Scaled<std::vector<float>>, mhla::Blocks1D> owns_memory;
Plain<WithoutDerivative, mhla::Blocks1D> without_derivative;
Plain<WithoutVjp, mhla::Blocks1D> without_vjp;
Plain<mhla::Relu, WithoutGrid> without_grid;
Seeing<mhla::Blocks1D, mhla::MixedKeySum> unknown_causality;
Seeing<mhla::Blocks1D, mhla::Bidirectional, Epsilon> unknown_normalizer;
Rotated<mhla::Blocks1D, Theta> unknown_rotation;
Mixed<Fenwick> unknown_mixing;
Seeing<mhla::Blocks2D, mhla::Causal> causal_image;
Seeing<mhla::Blocks3D, mhla::BlockCausal> causal_video;
Seeing<mhla::Blocks1D, mhla::Causal, mhla::MixedProduct> causal_product;
Seeing<mhla::Blocks1D, mhla::BlockCausal, mhla::MixedProduct> block_causal_product;
Rotated<mhla::Blocks2D, mhla::HalfSplitRotary> half_split_image;
Mixed<mhla::RecurrentMixing> bidirectional_recurrence;
Mixed<mhla::SeparableMixing, mhla::Causal> causal_separable;
Mixed<mhla::SeparableMixing, mhla::Bidirectional, mhla::MixedProduct> separable_product;
#endif
