// SPDX-License-Identifier: MIT
// A variant of the product of policies behind one interface, so that a law is written, and
// compiled, once for all of them.
#pragma once

#include <iterator>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <ostream>
#include <string>

#include "tests/laws/harness/setting.hpp"

namespace laws {

using namespace mhla;

/// Every feature map of the library: its value here, its type, its name in a report. Its variants
/// are compiled in variants/<value>.cpp.
#define LAWS_FEATURE_MAPS(ENTRY)                        \
  ENTRY(identity, mhla::Identity, "Identity")           \
  ENTRY(relu, mhla::Relu, "Relu")                       \
  ENTRY(squared_relu, mhla::SquaredRelu, "SquaredRelu") \
  ENTRY(elu_plus_one, mhla::EluPlusOne, "EluPlusOne")   \
  ENTRY(exp, mhla::Exp, "Exp")                          \
  ENTRY(softmax, mhla::Softmax, "Softmax")              \
  ENTRY(hedgehog, mhla::Hedgehog, "Hedgehog")           \
  ENTRY(dpfp, mhla::Dpfp, "Dpfp")                       \
  ENTRY(favor, mhla::Favor<double>, "Favor")

#define LAWS_VALUE(value, type, name) value,
enum class Map { LAWS_FEATURE_MAPS(LAWS_VALUE) };
#undef LAWS_VALUE
#define LAWS_NAME(value, type, name) name,
inline constexpr const char* map_names[] = {LAWS_FEATURE_MAPS(LAWS_NAME)};
#undef LAWS_NAME
inline constexpr int num_maps = static_cast<int>(std::size(map_names));

enum class Rotation { none, half_split, axial };
enum class Normalizer { mixed_key_sum, mixed_product, unnormalized };
enum class Causality { bidirectional, causal, block_causal };

/// The types a variant is made of, as values.
struct Policies {
  Map map;
  int rank;  ///< of the geometry: Blocks1D, Blocks2D, Blocks3D
  Rotation rotation;
  Normalizer normalizer;
  Causality causality = Causality::bidirectional;

  constexpr bool rotates() const { return rotation != Rotation::none; }
  constexpr bool normalizes() const { return normalizer != Normalizer::unnormalized; }
  constexpr bool mixes_products() const { return normalizer == Normalizer::mixed_product; }
  constexpr bool bidirectional() const { return causality == Causality::bidirectional; }

  friend bool operator==(const Policies&, const Policies&) = default;
};

/// "Relu Blocks1D Causal AxialRotary MixedKeySum"; bidirectional goes without saying
inline std::string name_of(const Policies& policies) {
  constexpr const char* rotations[] = {"NoRotation", "HalfSplitRotary", "AxialRotary"};
  constexpr const char* normalizers[] = {"MixedKeySum", "MixedProduct", "Unnormalized"};
  constexpr const char* causalities[] = {"", "Causal ", "BlockCausal "};
  return std::string(map_names[static_cast<int>(policies.map)]) + " Blocks" +
         std::to_string(policies.rank) + "D " + causalities[static_cast<int>(policies.causality)] +
         rotations[static_cast<int>(policies.rotation)] + " " +
         normalizers[static_cast<int>(policies.normalizer)];
}
inline std::ostream& operator<<(std::ostream& out, const Policies& policies) {
  return out << name_of(policies);
}

/// The operands of a call, wherever they lie.
template <class T>
struct Operands {
  TensorView<const T, 4> q;
  TensorView<const T, 4> k;
  TensorView<const T, 4> v;
  TensorView<const T, 3> mix;
};

/// The library under test in one scalar type.
template <class T>
class Backend {
 public:
  /// Whether the build has the variant in this scalar type; nothing else may be called where not.
  virtual bool compiled() const { return true; }
  virtual void forward(const Setting& setting, const Operands<T>& operands,
                       const TensorView<T, 4>& y) const = 0;
  virtual void backward(const Setting& setting, const Operands<T>& operands,
                        const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                        Update update) const = 0;

 protected:
  ~Backend() = default;
};

class Variant {
 public:
  virtual Policies policies() const = 0;

  /// Float and long double are not compiled everywhere.
  virtual const Backend<float>& in_float() const = 0;
  virtual const Backend<double>& in_double() const = 0;
  virtual const Backend<long double>& in_long_double() const = 0;

  /// phi of a row, and its adjoint.
  virtual Index feature_dim(const Setting& setting, Index key_dim) const = 0;
  virtual void phi(const Setting& setting, Span<const long double> in,
                   Span<long double> out) const = 0;
  virtual void phi_adjoint(const Setting& setting, Span<const long double> in,
                           Span<const long double> grad, Span<long double> out) const = 0;

 protected:
  ~Variant() = default;
};

/// The backend of a variant in scalar type T.
template <class T>
const Backend<T>& backend_in(const Variant& variant);
template <>
inline const Backend<float>& backend_in(const Variant& variant) {
  return variant.in_float();
}
template <>
inline const Backend<double>& backend_in(const Variant& variant) {
  return variant.in_double();
}
template <>
inline const Backend<long double>& backend_in(const Variant& variant) {
  return variant.in_long_double();
}

}  // namespace laws
