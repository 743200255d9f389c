// SPDX-License-Identifier: MIT
// The Variant of a type Attention<...>: here the library is compiled.
#pragma once

#include <cstring>
#include <mhla/core/workspace.hpp>
#include <mhla/reference/token_features.hpp>
#include <stdexcept>
#include <type_traits>

#include "tests/laws/harness/product.hpp"
#include "tests/support/backend.hpp"

namespace laws {

template <class Policy>
constexpr Map map_of();
#define LAWS_MAP_OF(value, type, name) \
  template <>                          \
  constexpr Map map_of<type>() {       \
    return Map::value;                 \
  }
LAWS_FEATURE_MAPS(LAWS_MAP_OF)
#undef LAWS_MAP_OF

template <class V>
constexpr Policies policies_of() {
  using R = typename V::RotationType;
  using N = typename V::NormalizerType;
  using C = typename V::CausalityType;
  return {map_of<typename V::FeatureMapType>(), V::GeometryType::rank,
          std::is_same_v<R, mhla::NoRotation>        ? Rotation::none
          : std::is_same_v<R, mhla::HalfSplitRotary> ? Rotation::half_split
                                                     : Rotation::axial,
          std::is_same_v<N, mhla::MixedKeySum>    ? Normalizer::mixed_key_sum
          : std::is_same_v<N, mhla::MixedProduct> ? Normalizer::mixed_product
                                                  : Normalizer::unnormalized,
          std::is_same_v<C, mhla::Bidirectional> ? Causality::bidirectional
          : std::is_same_v<C, mhla::Causal>      ? Causality::causal
                                                 : Causality::block_causal};
}

/// A workspace of exactly `bytes` bytes that holds NaN: nothing may be read before it is written.
inline mhla::Workspace poisoned_workspace(Index bytes) {
  mhla::Workspace workspace(bytes);
  if (bytes > 0) std::memset(workspace.data(), 0xff, static_cast<std::size_t>(bytes));
  return workspace;
}

template <class V, class T>
class BackendOf final : public Backend<T> {
 public:
  void forward(const Setting& setting, const Operands<T>& operands,
               const TensorView<T, 4>& y) const override {
    const V attention = attention_of<V>(setting);
    const auto& [q, k, v, mix] = operands;
    const mhla::Workspace workspace = poisoned_workspace(mhla::forward_workspace_size<T>(
        attention, mhla::shape_of(q, k, v, mix), backend::device()));
    mhla::forward_into(attention, backend::device(), q, k, v, mix, y, workspace);
  }
  void backward(const Setting& setting, const Operands<T>& operands,
                const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                Update update) const override {
    const V attention = attention_of<V>(setting);
    const auto& [q, k, v, mix] = operands;
    const mhla::Workspace workspace = poisoned_workspace(mhla::backward_workspace_size<T>(
        attention, mhla::shape_of(q, k, v, mix), backend::device()));
    mhla::backward_into(attention, backend::device(), q, k, v, mix, dy, gradients, update,
                        workspace);
  }
};

/// In place of a backend that is not compiled.
template <class T>
class NoBackend final : public Backend<T> {
 public:
  bool compiled() const override { return false; }
  void forward(const Setting&, const Operands<T>&, const TensorView<T, 4>&) const override {
    throw std::logic_error("this variant is not compiled in this scalar type");
  }
  void backward(const Setting&, const Operands<T>&, const TensorView<const T, 4>&,
                const GradientViews<T>&, Update) const override {
    throw std::logic_error("this variant is not compiled in this scalar type");
  }
};

template <class V>
class VariantOf final : public Variant {
 public:
  static const VariantOf& instance() {
    static const VariantOf variant;
    return variant;
  }

  Policies policies() const override { return policies_of<V>(); }

  const Backend<float>& in_float() const override { return float_; }
  const Backend<double>& in_double() const override { return double_; }
  const Backend<long double>& in_long_double() const override { return long_double_; }

  Index feature_dim(const Setting& setting, Index key_dim) const override {
    return mhla::feature_dim(feature_map_of<FeatureMap>(setting), key_dim);
  }
  void phi(const Setting& setting, Span<const long double> in,
           Span<long double> out) const override {
    mhla::reference::apply_feature_map(feature_map_of<FeatureMap>(setting), in, out);
  }
  void phi_adjoint(const Setting& setting, Span<const long double> in, Span<const long double> grad,
                   Span<long double> out) const override {
    mhla::reference::apply_feature_map_adjoint(feature_map_of<FeatureMap>(setting), in, grad, out);
  }

 private:
  using FeatureMap = typename V::FeatureMapType;

  template <class T>
  using IfCompiled = std::conditional_t<backend::computes_in<T> && in_scalar<T>(policies_of<V>()),
                                        BackendOf<V, T>, NoBackend<T>>;

  IfCompiled<float> float_;
  BackendOf<V, double> double_;
  IfCompiled<long double> long_double_;
};

}  // namespace laws
