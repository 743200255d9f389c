// SPDX-License-Identifier: MIT
#include "tests/laws/harness/variant.hpp"

#include <cstring>
#include <mhla/core/workspace.hpp>
#include <mhla/reference/mhla.hpp>
#include <type_traits>

#include "tests/support/backend.hpp"
#include "tests/variants/attention.hpp"
#include "tests/variants/executor.hpp"
#include "tests/variants/product.hpp"

namespace laws {

namespace {

template <class T>
constexpr variants::Scalar scalar_of = std::is_same_v<T, float>    ? variants::Scalar::float32
                                       : std::is_same_v<T, double> ? variants::Scalar::float64
                                                                   : variants::Scalar::extended;

template <class T>
variants::Call call_with(const Setting& setting, const HostTensor<T, 2>& projection,
                         const Operands<T>& operands) {
  variants::Call call = call_of(setting, view_of(projection.view()));
  call.q = view_of(operands.q);
  call.k = view_of(operands.k);
  call.v = view_of(operands.v);
  call.mix = view_of(operands.mix);
  return call;
}

/// Calls f with the feature map.
template <class F>
auto with_map(Map map, const Setting& setting, const F& f) {
  using Maps = variants::Maps<double>;
  const variants::Call call = call_of(setting, view_of(setting.projection.view()));
  const auto number = static_cast<std::size_t>(map);
  const auto with = [&]<std::size_t at>(const auto& next) {
    if constexpr (at + 1 < std::tuple_size_v<Maps>)
      if (at != number) return next.template operator()<at + 1>(next);
    return f(variants::feature_map_of<std::tuple_element_t<at, Maps>>(call));
  };
  return with.template operator()<0>(with);
}

}  // namespace

Workspace poisoned_workspace(Index bytes) {
  Workspace workspace(bytes);
  if (bytes > 0) std::memset(workspace.data(), 0xff, static_cast<std::size_t>(bytes));
  return workspace;
}

template <class T>
void Backend<T>::forward(const Setting& setting, const Operands<T>& operands,
                         const TensorView<T, 4>& y) const {
  const auto projection = mhla::testing::converted<T>(setting.projection);
  variants::Call call = call_with(setting, projection, operands);
  call.y = view_of(y);
  const backend::Device device = backend::device();
  const Workspace workspace = poisoned_workspace(entry_->forward_size(call, device));
  call.workspace = workspace.data();
  call.workspace_bytes = workspace.size();
  entry_->forward(call, device, nullptr);
}

template <class T>
void Backend<T>::backward(const Setting& setting, const Operands<T>& operands,
                          const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                          Update update) const {
  const auto projection = mhla::testing::converted<T>(setting.projection);
  variants::Call call = call_with(setting, projection, operands);
  call.dy = view_of(dy);
  call.accumulate = update == Update::accumulate;
  const auto want = [&](variants::Gradient which, const auto& gradient) {
    call.wanted[which] = gradient.wanted;
    if (gradient.wanted) call.gradient[which] = view_of(gradient.view);
  };
  want(variants::query, gradients.query);
  want(variants::key, gradients.key);
  want(variants::value, gradients.value);
  want(variants::mixing, gradients.mix);
  const backend::Device device = backend::device();
  const Workspace workspace = poisoned_workspace(entry_->backward_size(call, device));
  call.workspace = workspace.data();
  call.workspace_bytes = workspace.size();
  entry_->backward(call, device, nullptr);
}

template <class T>
Backend<T> backend_in(const Variant& variant) {
  return Backend<T>(variants::find(variant.policies(), variants::Batch::plain, scalar_of<T>));
}

template class Backend<float>;
template class Backend<double>;
template class Backend<long double>;
template Backend<float> backend_in(const Variant&);
template Backend<double> backend_in(const Variant&);
template Backend<long double> backend_in(const Variant&);

std::vector<Path> Variant::paths() const {
  if (!backend::has_paths) return {Path::automatic};
  if (policies_.mixes_products()) return {Path::linear};
  return {Path::linear, Path::quadratic};
}

Backend<double> Variant::in_double() const { return backend_in<double>(*this); }

Index Variant::feature_dim(const Setting& setting, Index key_dim) const {
  return with_map(policies_.map, setting,
                  [&](const auto& map) { return mhla::feature_dim(map, key_dim); });
}
void Variant::phi(const Setting& setting, Span<const long double> in, Span<long double> out) const {
  with_map(policies_.map, setting,
           [&](const auto& map) { reference::apply_feature_map(map, in, out); });
}
void Variant::phi_adjoint(const Setting& setting, Span<const long double> in,
                          Span<const long double> grad, Span<long double> out) const {
  with_map(policies_.map, setting,
           [&](const auto& map) { reference::apply_feature_map_adjoint(map, in, grad, out); });
}

const std::vector<Variant>& product() {
  static const std::vector<Variant> variants = [] {
    std::vector<Variant> all;
    for (const variants::Entry& entry : variants::library())
      if (entry.scalar == variants::Scalar::float64 && entry.batch == variants::Batch::plain &&
          entry.policies.mixing == variants::Mixing::dense && variants::in_laws(entry.policies))
        all.emplace_back(entry.policies);
    return all;
  }();
  return variants;
}

}  // namespace laws
