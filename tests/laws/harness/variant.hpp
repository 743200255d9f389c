// SPDX-License-Identifier: MIT
// A variant of the product of policies with one interface, so that a law is written, and
// compiled, once for all of them.
#pragma once

#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <ostream>
#include <vector>

#include "tests/laws/harness/setting.hpp"

namespace variants {
inline std::ostream& operator<<(std::ostream& out, const Policies& policies) {
  return out << name_of(policies);
}
}  // namespace variants

namespace laws {

using namespace mhla;

/// The operands of a call, wherever they lie.
template <class T>
struct Operands {
  TensorView<const T, 4> q;
  TensorView<const T, 4> k;
  TensorView<const T, 4> v;
  TensorView<const T, 3> mix;
};

/// A workspace of exactly `bytes` bytes that holds NaN: nothing may be read before it is written.
Workspace poisoned_workspace(Index bytes);

/// A variant of the library under test in one scalar type.
template <class T>
class Backend {
 public:
  explicit Backend(const variants::Entry* entry) : entry_(entry) {}

  /// Whether the build has it; nothing else may be called where not.
  bool compiled() const { return entry_ != nullptr; }
  void forward(const Setting& setting, const Operands<T>& operands,
               const TensorView<T, 4>& y) const;
  void backward(const Setting& setting, const Operands<T>& operands,
                const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                Update update) const;

 private:
  const variants::Entry* entry_;
};

/// A variant of the laws: they take matrices that are dense and batches that are plain.
class Variant {
 public:
  explicit Variant(const Policies& policies) : policies_(policies) {}

  const Policies& policies() const { return policies_; }
  /// The paths of the backend under test that it can be asked for.
  std::vector<Path> paths() const;
  /// Every variant is compiled in double.
  Backend<double> in_double() const;

  /// phi of a row, and its adjoint.
  Index feature_dim(const Setting& setting, Index key_dim) const;
  void phi(const Setting& setting, Span<const long double> in, Span<long double> out) const;
  void phi_adjoint(const Setting& setting, Span<const long double> in, Span<const long double> grad,
                   Span<long double> out) const;

 private:
  Policies policies_;
};

/// A variant in scalar type T.
template <class T>
Backend<T> backend_in(const Variant& variant);

/// The variants of this build.
const std::vector<Variant>& product();

}  // namespace laws
