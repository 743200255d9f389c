// SPDX-License-Identifier: MIT
/// \defgroup feature_maps Feature maps
/// \ingroup variant
/// phi turns a query or key into the features whose products are the attention weights.
/// Element-wise maps have a value and a derivative; row-wise maps see a whole row, may change its
/// length, and provide the vector-Jacobian product (vjp). A type of yours that satisfies
/// mhla::ElementwiseFeatureMap or mhla::RowwiseFeatureMap works everywhere, on CUDA too if its
/// functions carry MHLA_HOST_DEVICE. If it has `void require_valid() const`, every call calls it;
/// it throws where the map's numbers make no sense. A rotation may have one too.
///
/// Relu is what the released vision, DiT and video code uses; EluPlusOne is arXiv 2006.16236,
/// Hedgehog arXiv 2402.04347, Dpfp arXiv 2102.11174, Favor arXiv 2009.14794.
#pragma once

#include <mhla/core/shape.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup feature_maps
/// \{

/// phi applied to each element: `value(x)` and its `derivative(x)`, for every floating-point type.
template <class Map>
concept ElementwiseFeatureMap = std::is_trivially_copyable_v<Map> &&
    requires(const Map& map, float x, double y) {
  { map.value(x) } -> std::same_as<float>;
  { map.value(y) } -> std::same_as<double>;
  { map.derivative(x) } -> std::same_as<float>;
  { map.derivative(y) } -> std::same_as<double>;
};

/// phi applied to each row: `value(in, out)` writes feature_dim(in.size) features;
/// `vjp(in, grad, out)` writes out = J(in)^T grad, out as long as in.
template <class Map>
concept RowwiseFeatureMap = std::is_trivially_copyable_v<Map> &&
    requires(const Map& map, Index key_dim, Span<const float> in, Span<float> out) {
  { map.feature_dim(key_dim) } -> std::same_as<Index>;
  map.value(in, out);
  map.vjp(in, in, out);
};

/// Either kind.
template <class Map>
concept FeatureMap = ElementwiseFeatureMap<Map> || RowwiseFeatureMap<Map>;

/// Length of phi's output for inputs of length `key_dim`; the largest Index if it does not fit one.
template <FeatureMap Map>
MHLA_HOST_DEVICE constexpr Index feature_dim(const Map& map, Index key_dim) {
  if constexpr (RowwiseFeatureMap<Map>) {
    return map.feature_dim(key_dim);
  } else {
    return key_dim;
  }
}

/// max(x, 0). NaN stays NaN.
template <class T>
MHLA_HOST_DEVICE T positive_part(T x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, float>) {  // one instruction, which compilers do not find
    asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(x) : "f"(x));
    return x;
  }
#endif
  return x < T(0) ? T(0) : x;
}

/// phi(x) = x. Signed: under a normalizer the denominator may vanish.
struct Identity {
  /// phi(x)
  template <class T>
  MHLA_HOST_DEVICE T value(T x) const {
    return x;
  }
  /// phi'(x)
  template <class T>
  MHLA_HOST_DEVICE T derivative(T) const {
    return T(1);
  }
};

/// phi(x) = max(x, 0) + epsilon. The derivative at 0 is 0. NaN stays NaN.
struct Relu {
  double epsilon = 1e-6;  ///< keeps features positive; 0 or more

  /// \private
  void require_valid() const { require_not_negative("feature_map.epsilon", epsilon); }

  /// phi(x)
  template <class T>
  MHLA_HOST_DEVICE T value(T x) const {
    return positive_part(x) + T(epsilon);
  }
  /// phi'(x)
  template <class T>
  MHLA_HOST_DEVICE T derivative(T x) const {
    return x > T(0) ? T(1) : T(0);
  }
};

/// phi(x) = max(x, 0)^2 + epsilon.
struct SquaredRelu {
  double epsilon = 1e-6;  ///< keeps features positive; 0 or more

  /// \private
  void require_valid() const { require_not_negative("feature_map.epsilon", epsilon); }

  /// phi(x)
  template <class T>
  MHLA_HOST_DEVICE T value(T x) const {
    const T positive = positive_part(x);
    return positive * positive + T(epsilon);
  }
  /// phi'(x)
  template <class T>
  MHLA_HOST_DEVICE T derivative(T x) const {
    return x < T(0) ? T(0) : x + x;
  }
};

/// phi(x) = elu(x) + 1 = x + 1 for x > 0, exp(x) otherwise.
struct EluPlusOne {
  /// phi(x)
  template <class T>
  MHLA_HOST_DEVICE T value(T x) const {
    using std::exp;
    return x > T(0) ? x + T(1) : exp(x);
  }
  /// phi'(x)
  template <class T>
  MHLA_HOST_DEVICE T derivative(T x) const {
    using std::exp;
    return x > T(0) ? T(1) : exp(x);
  }
};

/// phi(x) = exp(x).
struct Exp {
  /// phi(x)
  template <class T>
  MHLA_HOST_DEVICE T value(T x) const {
    using std::exp;
    return exp(x);
  }
  /// phi'(x)
  template <class T>
  MHLA_HOST_DEVICE T derivative(T x) const {
    using std::exp;
    return exp(x);
  }
};

/// \cond INTERNAL
// apply(Map, ...) for every element-wise map of the library: mhla::kernels has kernels of each
// (cpu/kernels_elsewhere.hpp).
#define MHLA_ELEMENTWISE_MAPS(apply, ...)                                               \
  apply(Identity, __VA_ARGS__) apply(Relu, __VA_ARGS__) apply(SquaredRelu, __VA_ARGS__) \
      apply(EluPlusOne, __VA_ARGS__) apply(Exp, __VA_ARGS__)

// Maps that cost hardly more than reading their argument.
template <class Map>
inline constexpr bool is_arithmetic =
    std::is_same_v<Map, Identity> || std::is_same_v<Map, Relu> || std::is_same_v<Map, SquaredRelu>;
/// \endcond

/// phi(x) = softmax of the row over key_dim.
struct Softmax {
  /// Number of features.
  MHLA_HOST_DEVICE constexpr Index feature_dim(Index key_dim) const { return key_dim; }

  /// out = phi(in).
  template <class T>
  MHLA_HOST_DEVICE void value(Span<const T> in, Span<T> out) const {
    using std::exp;
    if (in.size == 0) return;
    T largest = in[0];
    for (Index c = 1; c < in.size; ++c) largest = largest < in[c] ? in[c] : largest;
    T sum = T(0);
    for (Index c = 0; c < in.size; ++c) sum += out[c] = exp(in[c] - largest);
    for (Index c = 0; c < in.size; ++c) out[c] /= sum;
  }

  /// out = y o (g - g.y), y = phi(in), g = grad.
  template <class T>
  MHLA_HOST_DEVICE void vjp(Span<const T> in, Span<const T> grad, Span<T> out) const {
    value(in, out);
    T inner = T(0);
    for (Index c = 0; c < in.size; ++c) inner += grad[c] * out[c];
    for (Index c = 0; c < in.size; ++c) out[c] *= grad[c] - inner;
  }
};

/// phi(x) = softmax([2x, -2x]) of the row: 2 key_dim features. A learned linear map before it
/// belongs to the caller.
struct Hedgehog {
  /// Number of features.
  MHLA_HOST_DEVICE constexpr Index feature_dim(Index key_dim) const {
    return saturated_mul(2, key_dim);
  }

  /// out = phi(in).
  template <class T>
  MHLA_HOST_DEVICE void value(Span<const T> in, Span<T> out) const {
    const Softened<T> soft(in);
    for (Index c = 0; c < in.size; ++c) {
      out[c] = soft.feature(T(2) * in[c]);
      out[in.size + c] = soft.feature(T(-2) * in[c]);
    }
  }

  /// As for Softmax, then through x -> [2x, -2x].
  template <class T>
  MHLA_HOST_DEVICE void vjp(Span<const T> in, Span<const T> grad, Span<T> out) const {
    const Softened<T> soft(in);
    T inner = T(0);
    for (Index c = 0; c < in.size; ++c)
      inner +=
          grad[c] * soft.feature(T(2) * in[c]) + grad[in.size + c] * soft.feature(T(-2) * in[c]);
    for (Index c = 0; c < in.size; ++c) {
      const T plus = soft.feature(T(2) * in[c]);
      const T minus = soft.feature(T(-2) * in[c]);
      out[c] = T(2) * (plus * (grad[c] - inner) - minus * (grad[in.size + c] - inner));
    }
  }

 private:
  template <class T>
  struct Softened {
    T largest = T(0);  // of [2x, -2x], so that no exponential overflows
    T sum = T(0);

    MHLA_HOST_DEVICE explicit Softened(Span<const T> in) {
      for (Index c = 0; c < in.size; ++c) {
        const T magnitude = T(2) * (in[c] < T(0) ? -in[c] : in[c]);
        largest = largest < magnitude ? magnitude : largest;
      }
      for (Index c = 0; c < in.size; ++c) sum += power(T(2) * in[c]) + power(T(-2) * in[c]);
    }
    MHLA_HOST_DEVICE T power(T twice) const {
      using std::exp;
      return exp(twice - largest);
    }
    MHLA_HOST_DEVICE T feature(T twice) const { return power(twice) / sum; }
  };
};

/// Deterministic parameter-free projection: y = [relu(x), relu(-x)], phi = the products
/// y[c] y[(c - j) mod 2 key_dim] for j = 1..nu: 2 nu key_dim features. (The released code's
/// [relu(x), -relu(x)] is a bug; this is the cited paper's form.)
struct Dpfp {
  Index nu = 4;  ///< number of rolls, at least 1

  /// \private
  void require_valid() const { require_at_least("feature_map.nu", nu, 1); }

  /// Number of features.
  MHLA_HOST_DEVICE constexpr Index feature_dim(Index key_dim) const {
    return nu < 0 ? nu : saturated_mul(saturated_mul(2, nu), key_dim);
  }

  /// out = phi(in).
  template <class T>
  MHLA_HOST_DEVICE void value(Span<const T> in, Span<T> out) const {
    const Index width = 2 * in.size;
    for (Index j = 1; j <= nu; ++j)
      for (Index c = 0; c < width; ++c)
        out[(j - 1) * width + c] = rectified(in, c) * rectified(in, rolled(c, j, width));
  }

  /// out = J(in)^T grad.
  template <class T>
  MHLA_HOST_DEVICE void vjp(Span<const T> in, Span<const T> grad, Span<T> out) const {
    const Index width = 2 * in.size;
    for (Index c = 0; c < in.size; ++c) out[c] = T(0);
    for (Index j = 1; j <= nu; ++j)
      for (Index c = 0; c < width; ++c) {
        const Index partner = rolled(c, j, width);
        const T g = grad[(j - 1) * width + c];
        add_through_relu(in, c, g * rectified(in, partner), out);
        add_through_relu(in, partner, g * rectified(in, c), out);
      }
  }

 private:
  MHLA_HOST_DEVICE static constexpr Index rolled(Index c, Index j, Index width) {
    const Index shifted = (c - j) % width;
    return shifted < 0 ? shifted + width : shifted;
  }
  template <class T>
  MHLA_HOST_DEVICE static T rectified(Span<const T> in, Index c) {
    const T x = c < in.size ? in[c] : -in[c - in.size];
    return x < T(0) ? T(0) : x;
  }
  template <class T>
  MHLA_HOST_DEVICE static void add_through_relu(Span<const T> in, Index c, T g, Span<T> out) {
    if (c < in.size) {
      if (!(in[c] <= T(0))) out[c] += g;
    } else if (!(in[c - in.size] >= T(0))) {
      out[c - in.size] -= g;
    }
  }
};

/// FAVOR+ positive random features: phi_r(x) = exp(w_r^T x^ - |x^|^2 / 2) / sqrt(features),
/// x^ = x key_dim^(-1/4). `projection` is borrowed, shared by all heads, and lies in the
/// memory space of q.
template <class T>
struct Favor {
  TensorView<const T, 2> projection;  ///< w [features, key_dim]

  /// Number of features.
  MHLA_HOST_DEVICE constexpr Index feature_dim(Index /*key_dim*/) const {
    return projection.extent[0];
  }

  /// out = phi(in).
  template <class U>
  MHLA_HOST_DEVICE void value(Span<const U> in, Span<U> out) const {
    const U half_norm = half_squared_norm(in);
    for (Index r = 0; r < out.size; ++r) out[r] = feature(in, r, half_norm);
  }

  /// out = key_dim^(-1/4) (w^T (g o y) - x^ sum(g o y)), y = phi(in), g = grad.
  template <class U>
  MHLA_HOST_DEVICE void vjp(Span<const U> in, Span<const U> grad, Span<U> out) const {
    const U scale = input_scale<U>(in.size);
    const U half_norm = half_squared_norm(in);
    U sum = U(0);
    for (Index c = 0; c < in.size; ++c) out[c] = U(0);
    for (Index r = 0; r < grad.size; ++r) {
      const U weight = grad[r] * feature(in, r, half_norm);
      sum += weight;
      for (Index c = 0; c < in.size; ++c) out[c] += weight * static_cast<U>(projection(r, c));
    }
    for (Index c = 0; c < in.size; ++c) out[c] = scale * (out[c] - scale * in[c] * sum);
  }

 private:
  template <class U>
  MHLA_HOST_DEVICE static U input_scale(Index key_dim) {
    using std::sqrt;
    return U(1) / sqrt(sqrt(static_cast<U>(key_dim)));
  }
  template <class U>
  MHLA_HOST_DEVICE U half_squared_norm(Span<const U> in) const {
    const U scale = input_scale<U>(in.size);
    U sum = U(0);
    for (Index c = 0; c < in.size; ++c) sum += (scale * in[c]) * (scale * in[c]);
    return sum / U(2);
  }
  template <class U>
  MHLA_HOST_DEVICE U feature(Span<const U> in, Index r, U half_norm) const {
    using std::exp;
    using std::sqrt;
    const U scale = input_scale<U>(in.size);
    U inner = U(0);
    for (Index c = 0; c < in.size; ++c) inner += static_cast<U>(projection(r, c)) * (scale * in[c]);
    return exp(inner - half_norm) / sqrt(static_cast<U>(projection.extent[0]));
  }
};

/// \}

MHLA_NAMESPACE_END
