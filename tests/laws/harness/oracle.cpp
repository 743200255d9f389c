// SPDX-License-Identifier: MIT
// The oracles of every geometry, rotation and normalizer, on features.
#include "tests/laws/harness/oracle.hpp"

#include <mhla/core/error.hpp>
#include <mhla/reference/linear_attention.hpp>
#include <mhla/reference/mhla.hpp>
#include <type_traits>

#include "tests/variants/attention.hpp"

namespace laws {

namespace {

/// Calls f(a value of type Attention<Identity, ...>) with all but the feature map of `policies`.
template <class F>
void with_identity(const Policies& policies, F&& f) {
  using namespace mhla;
  const auto in_mode = [&]<class Geometry, class Mode, class R>() {
    switch (policies.normalizer) {
      case Normalizer::mixed_key_sum:
        return f(mhla::Attention<Identity, Geometry, Mode, MixedKeySum, R>{});
      case Normalizer::mixed_product:
        if constexpr (std::is_same_v<Mode, Bidirectional>)
          return f(mhla::Attention<Identity, Geometry, Mode, MixedProduct, R>{});
        return;
      case Normalizer::unnormalized:
        return f(mhla::Attention<Identity, Geometry, Mode, Unnormalized, R>{});
    }
  };
  const auto with = [&]<class Geometry, class R>() {
    if constexpr (Geometry::rank == 1) {
      if (policies.causality == Causality::causal)
        return in_mode.template operator()<Geometry, Causal, R>();
      if (policies.causality == Causality::block_causal)
        return in_mode.template operator()<Geometry, BlockCausal, R>();
    }
    return in_mode.template operator()<Geometry, Bidirectional, R>();
  };
  const bool rotates = policies.rotates();
  if (policies.rank == 3)
    return rotates ? with.template operator()<Blocks3D, AxialRotary>()
                   : with.template operator()<Blocks3D, NoRotation>();
  if (policies.rank == 2)
    return rotates ? with.template operator()<Blocks2D, AxialRotary>()
                   : with.template operator()<Blocks2D, NoRotation>();
  switch (policies.rotation) {
    case Rotation::none:
      return with.template operator()<Blocks1D, NoRotation>();
    case Rotation::half_split:
      return with.template operator()<Blocks1D, HalfSplitRotary>();
    case Rotation::axial:
      return with.template operator()<Blocks1D, AxialRotary>();
  }
}

/// f(row of a, row of b, ...) for every token; rows are contiguous.
template <class F, class... Tensors>
void for_each_row(F&& f, const HostTensor<Wide, 4>& first, Tensors&... others) {
  const auto row = [](auto& tensor, Index number) {
    return Span<Wide>{const_cast<Wide*>(tensor.elements().data()) + number * tensor.extent(3),
                      tensor.extent(3)};
  };
  for (Index r = 0; r < first.extent(0) * first.extent(1) * first.extent(2); ++r)
    f(row(first, r), row(others, r)...);
}

/// phi of every row.
HostTensor<Wide, 4> features_of(const Variant& variant, const Setting& setting,
                                const TensorView<const Wide, 4>& x) {
  const auto in = mhla::testing::converted<Wide>(x);
  HostTensor<Wide, 4> out(x.extent[0], x.extent[1], x.extent[2],
                          variant.feature_dim(setting, x.extent[3]));
  for_each_row([&](Span<Wide> from, Span<Wide> to) { variant.phi(setting, from, to); }, in, out);
  return out;
}

/// The gradient of x, given that of phi(x).
HostTensor<Wide, 4> input_gradient(const Variant& variant, const Setting& setting,
                                   const TensorView<const Wide, 4>& x,
                                   const HostTensor<Wide, 4>& grad_features) {
  const auto in = mhla::testing::converted<Wide>(x);
  auto out = HostTensor<Wide, 4>::like(x);
  for_each_row([&](Span<Wide> from, Span<Wide> grad,
                   Span<Wide> to) { variant.phi_adjoint(setting, from, grad, to); },
               in, grad_features, out);
  return out;
}

Policies policies_of(Formula formula, const Variant& variant) {
  Policies policies = variant.policies();
  if (formula != Formula::mhla && policies.mixes_products())
    policies.normalizer = Normalizer::mixed_key_sum;
  return policies;
}

template <class V>
inline constexpr bool is_mixed_product =
    std::is_same_v<typename V::NormalizerType, mhla::MixedProduct>;

}  // namespace

HostTensor<Wide, 4> expected_output(Formula formula, const Variant& variant, const Setting& setting,
                                    const Operands<Wide>& operands) {
  const auto q = features_of(variant, setting, operands.q);
  const auto k = features_of(variant, setting, operands.k);
  HostTensor<Wide, 4> y(q.extent(0), q.extent(1), q.extent(2), operands.v.extent[3]);
  with_identity(policies_of(formula, variant), [&](auto type) {
    using V = decltype(type);
    const V on_features = variants::attention_of<V>(call_of(setting));
    if (formula != Formula::linear) {
      mhla::reference::mhla_forward(on_features, q.view(), k.view(), operands.v, operands.mix,
                                    y.view());
    } else if constexpr (!is_mixed_product<V>) {
      mhla::reference::linear_attention_forward(on_features, q.view(), k.view(), operands.v,
                                                y.view());
    }
  });
  return y;
}

Gradients<Wide> expected_gradients(Formula formula, const Variant& variant, const Setting& setting,
                                   const Operands<Wide>& operands,
                                   const TensorView<const Wide, 4>& dy) {
  const auto q = features_of(variant, setting, operands.q);
  const auto k = features_of(variant, setting, operands.k);
  auto grad = zero_gradients<Wide>(Operands<Wide>{q.view(), k.view(), operands.v, operands.mix});
  with_identity(policies_of(formula, variant), [&](auto type) {
    using V = decltype(type);
    const V on_features = variants::attention_of<V>(call_of(setting));
    GradientViews<Wide> views = grad.views();
    if (formula != Formula::linear) {
      mhla::reference::mhla_backward(on_features, q.view(), k.view(), operands.v, operands.mix, dy,
                                     views);
    } else if constexpr (!is_mixed_product<V>) {
      views.mix = mhla::skip;
      mhla::reference::linear_attention_backward(on_features, q.view(), k.view(), operands.v, dy,
                                                 views);
    }
  });
  grad.q = input_gradient(variant, setting, operands.q, grad.q);
  grad.k = input_gradient(variant, setting, operands.k, grad.k);
  return grad;
}

void rotate(const Policies& policies, const Setting& setting, const Grid& grid, Index token,
            Span<Wide> features) {
  with_identity(policies, [&](auto type) {
    using V = decltype(type);
    mhla::reference::rotate(variants::attention_of<V>(call_of(setting)).rotation, grid,
                            V::GeometryType::rank, token, +1, features);
  });
}

}  // namespace laws
