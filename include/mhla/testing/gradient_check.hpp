// SPDX-License-Identifier: MIT
// Checks that a gradient is the derivative of its function.
#pragma once

#include <limits>
#include <mhla/testing/random_tensor.hpp>
#include <ostream>
#include <sstream>
#include <tuple>

MHLA_NAMESPACE_BEGIN

namespace testing {

/// \addtogroup testing
/// \{

/// An operand the function reads, and the gradient claimed for it.
template <class T, int Rank>
struct Differentiated {
  TensorView<T, Rank> operand;         ///< displaced during the check
  TensorView<const T, Rank> gradient;  ///< of the same extents
};

/// Pairs an operand with its gradient.
template <class T, int Rank>
Differentiated<T, Rank> differentiate(const TensorView<T, Rank>& operand,
                                      const InputView<T, Rank>& gradient) {
  return {operand, gradient};
}
/// The gradient check for HostTensors.
template <class T, int Rank>
Differentiated<T, Rank> differentiate(HostTensor<T, Rank>& operand,
                                      const HostTensor<T, Rank>& gradient) {
  return {operand.view(), gradient.view()};
}

/// The outcome of check_gradient(), for its worst direction.
struct GradientCheck {
  double error = 0;        ///< |claimed - measured| / sum |gradient o direction|; 0 / 0 counts as 0
  double claimed = 0;      ///< gradient^T direction
  double measured = 0;     ///< the central difference
  double step = 0;         ///< the step it was measured with
  std::uint64_t seed = 0;  ///< of the direction

  /// One line for a test's log.
  std::string report() const {
    std::ostringstream out;
    out.precision(17);
    out << "gradient . direction " << claimed << ", central difference " << measured << " at step "
        << step;
    out.precision(3);
    out << ", relative error " << error << ", direction seed " << seed;
    return out.str();
  }
  /// Prints report().
  friend std::ostream& operator<<(std::ostream& out, const GradientCheck& check) {
    return out << check.report();
  }
};

/// \cond INTERNAL
// An operand of check_gradient() that can be displaced along its direction; the destructor restores
// its bits. A direction's entries have random signs and magnitudes between 1/2 and 1: none is lost
// beside the others, and swapped gradients do not cancel as they would with signs alone.
template <class T, int Rank>
class DisplacedOperand {
 public:
  explicit DisplacedOperand(const Differentiated<T, Rank>& of)
      : of_(of),
        origin_(converted<T>(TensorView<const T, Rank>(of.operand))),
        direction_(HostTensor<T, Rank>::like(of.operand)) {}
  DisplacedOperand(const DisplacedOperand&) = delete;
  DisplacedOperand& operator=(const DisplacedOperand&) = delete;
  ~DisplacedOperand() { move_to(T(0)); }

  void choose_direction(std::uint64_t seed) {
    std::uint64_t counter = 0;
    for (T& entry : direction_.elements()) {
      const double x = Uniform{-1, 1}(seed, counter++);
      entry = static_cast<T>((x < 0 ? x - 1 : x + 1) / 2);
    }
  }
  // operand = origin + step direction
  void move_to(T step) {
    for_each_element([&](T& x, const T& origin,
                         const T& entry) { x = step == T(0) ? origin : origin + step * entry; },
                     of_.operand, origin_.view(), direction_.view());
  }
  // Adds gradient . direction to `sum`, and sum |gradient o direction| to `magnitude`.
  template <class S>
  void add_slope(S& sum, S& magnitude) const {
    for_each_element(
        [&](const T& gradient, const T& entry) {
          sum += static_cast<S>(gradient * entry);
          magnitude += static_cast<S>((std::abs)(gradient * entry));
        },
        of_.gradient, direction_.view());
  }

 private:
  Differentiated<T, Rank> of_;
  HostTensor<T, Rank> origin_;
  HostTensor<T, Rank> direction_;
};
/// \endcond

/// Checks the gradients of `loss()`, a function without arguments that reads the operands in place,
/// along random directions of max-norm 1 in the space of all operands given, with the fourth-order
/// central difference
///
///     dL/dh = (8 (L(+h) - L(-h)) - (L(+2h) - L(-2h))) / (12 h) + O(h^4)
///
/// at three steps, of which the best counts: a correct gradient passes at one of them, where both
/// truncation and rounding are small; a wrong one passes at none. Returns the worst direction. In
/// double the error of an attention's exact gradient is below 1e-11 where its feature map is smooth
/// (Exp, Softmax); where features cross the kink of Relu, SquaredRelu or EluPlusOne it may be 1e-4:
/// check with a smooth map, or keep away from the kink (AwayFromKink). Operands are displaced
/// during the check and have their old bits afterwards, even if `loss` throws. \throws ShapeError
/// if directions < 1.
template <class Loss, class... T, int... Rank>
GradientCheck check_gradient(const Loss& loss, std::uint64_t seed, int directions,
                             const Differentiated<T, Rank>&... operands) {
  using S = decltype(loss());
  static_assert(std::is_floating_point_v<S>, "mhla: a loss is a floating-point number");
  if (directions < 1)
    throw ShapeError(
        {"mhla: check_gradient: directions is ", directions, "; without one nothing is checked"});
  constexpr double steps[] = {3e-3, 1e-3, 3e-4};
  std::tuple<DisplacedOperand<T, Rank>...> displaced(operands...);
  const auto loss_at = [&](S step) {
    std::apply([&](auto&... operand) { (operand.move_to(static_cast<T>(step)), ...); }, displaced);
    return loss();
  };

  GradientCheck worst;
  for (int i = 0; i < directions; ++i) {
    const std::uint64_t direction_seed = random_bits(seed, static_cast<std::uint64_t>(i));
    S slope = 0;
    S magnitude = 0;
    std::uint64_t number = 0;
    std::apply(
        [&](auto&... operand) {
          (operand.choose_direction(random_bits(direction_seed, number++)), ...);
          (operand.add_slope(slope, magnitude), ...);
        },
        displaced);

    GradientCheck best;
    best.error = std::numeric_limits<double>::infinity();
    for (const double h : steps) {
      const S step = static_cast<S>(h);
      const S once = loss_at(step) - loss_at(-step);
      const S twice = loss_at(2 * step) - loss_at(-2 * step);
      const S measured = (8 * once - twice) / (12 * step);
      const S difference = (std::abs)(measured - slope);
      const double error = static_cast<double>(difference == S(0) ? S(0) : difference / magnitude);
      if (error < best.error || h == steps[0])  // the first step counts even where it gives NaN
        best = {error, static_cast<double>(slope), static_cast<double>(measured), h,
                direction_seed};
    }
    if (!(best.error <= worst.error) || i == 0) worst = best;
  }
  return worst;
}

/// \cond INTERNAL
MHLA_NO_SUCH_CALL(AnyArgument differentiate,
                  "mhla: call differentiate(operand, gradient) with two views of one rank and "
                  "scalar, or two HostTensors, the operand not const")
MHLA_NO_SUCH_CALL(GradientCheck check_gradient,
                  "mhla: call check_gradient(loss, seed, directions, operands...): loss takes no "
                  "argument and returns a floating-point number, and operands are made by "
                  "differentiate(operand, gradient)")
/// \endcond

/// \}

}  // namespace testing

MHLA_NAMESPACE_END
