// SPDX-License-Identifier: MIT
// How far apart two tensors are, in the two figures that tolerances are stated in, and where the
// error is largest; and the tolerances.
#pragma once

#include <iomanip>
#include <limits>
#include <mhla/testing/host_tensor.hpp>
#include <ostream>
#include <sstream>

MHLA_NAMESPACE_BEGIN

namespace testing {

/// \defgroup testing Testing
/// Tools to test your code against the library: a gradient check, comparisons, reproducible random
/// tensors, and a tensor that does not need Eigen.
/// \code
/// auto a = mhla::testing::random_tensor<double>(mhla::testing::Normal{}, 1, 2, 3);
/// const auto b = mhla::testing::random_tensor<double>(mhla::testing::Normal{}, 2, 2, 3);
/// std::cout << mhla::testing::compare(a.view(), b.view()) << "\n";
/// const auto product = [&] {  // its gradient in a is b
///   double sum = 0;
///   for (mhla::Index i = 0; i < a.size(); ++i) sum += a.view().element(i) * b.view().element(i);
///   return sum;
/// };
/// std::cout << mhla::testing::check_gradient(product, 7, 3, mhla::testing::differentiate(a, b));
/// \endcode
/// \{

/// The outcome of compare(). Every figure is infinite if there is a NaN, or an infinity on one side
/// only.
template <int Rank>
struct Comparison {
  double rms_ratio = 0;  ///< RMS(actual - expected) / RMS(expected); 0 / 0 counts as 0
  double max_error = 0;  ///< max |actual - expected|
  double scale = 0;      ///< what max_ratio divides by: the caller's, or RMS(expected)
  double max_ratio = 0;  ///< max_error / scale; 0 / 0 counts as 0
  Index worst[TensorView<int, Rank>::axes] = {};   ///< index of the largest error
  double worst_actual = 0;                         ///< the value there
  double worst_expected = 0;                       ///< what it should be
  Index extent[TensorView<int, Rank>::axes] = {};  ///< of both tensors

  /// One line for a test's log.
  std::string report() const {
    const auto list = [](const Index* values, char open, char close) {
      std::ostringstream out;
      out << open;
      for (int axis = 0; axis < Rank; ++axis) out << (axis == 0 ? "" : ", ") << values[axis];
      out << close;
      return out.str();
    };
    std::ostringstream out;
    out << list(extent, '[', ']') << ": rms ratio " << rms_ratio << ", max error " << max_error
        << " = " << max_ratio << " of scale " << scale << ", worst at " << list(worst, '(', ')')
        << std::setprecision(17) << ": got " << worst_actual << ", expected " << worst_expected;
    return out.str();
  }

  /// Prints report().
  friend std::ostream& operator<<(std::ostream& out, const Comparison& comparison) {
    return out << comparison.report();
  }
};

/// Compares two tensors of equal extents. The maximum is relative to `scale` or, without one, to
/// the RMS of `expected`. Differences are taken in double, or in a wider type of either tensor.
/// \throws ShapeError if extents differ.
template <class T, class U, int Rank>
Comparison<Rank> compare(const TensorView<T, Rank>& actual, const TensorView<U, Rank>& expected,
                         double scale = std::numeric_limits<double>::quiet_NaN()) {
  using Wide = std::common_type_t<decltype(load(std::declval<T>())),
                                  decltype(load(std::declval<U>())), double>;
  // Equal infinities are equal; a NaN is as far as can be.
  const auto for_each = [&](const auto& f) {
    for_each_element(
        [&](const T& got_stored, const U& want_stored) {
          const Wide got = static_cast<Wide>(load(got_stored));
          const Wide want = static_cast<Wide>(load(want_stored));
          const Wide error = got == want ? Wide(0) : (std::abs)(got - want);
          f(got, want,
            error <= (std::numeric_limits<Wide>::max)() ? error
                                                        : std::numeric_limits<Wide>::infinity());
        },
        actual, expected);
  };
  Comparison<Rank> result;
  Wide largest_error = 0;
  Wide largest_expected = 0;
  Index number = 0;
  Index worst_number = 0;
  for_each([&](Wide got, Wide want, Wide error) {
    largest_error = (std::max)(largest_error, error);
    if ((std::isfinite)(want)) largest_expected = (std::max)(largest_expected, (std::abs)(want));
    if (static_cast<double>(error) > result.max_error || number == 0) {
      result.max_error = static_cast<double>(error);
      result.worst_actual = static_cast<double>(got);
      result.worst_expected = static_cast<double>(want);
      worst_number = number;
    }
    ++number;
  });
  if (number == 0) return result;

  const Wide error_scale = square_scale(largest_error);
  const Wide expected_scale = square_scale(largest_expected);
  Wide error_squares = 0;
  Wide expected_squares = 0;
  for_each([&](Wide, Wide want, Wide error) {
    error_squares += error / error_scale * (error / error_scale);
    if ((std::isfinite)(want)) expected_squares += want / expected_scale * (want / expected_scale);
  });
  const auto rms_of = [&](Wide squares, Wide unit) {
    return static_cast<double>(unit * std::sqrt(squares / static_cast<Wide>(number)));
  };
  const auto ratio = [](double error, double unit) { return error == 0 ? 0 : error / unit; };
  const double rms = rms_of(expected_squares, expected_scale);
  result.rms_ratio = ratio(rms_of(error_squares, error_scale), rms);
  result.scale = (std::isnan)(scale) ? rms : scale;
  result.max_ratio = ratio(result.max_error, result.scale);
  for (int axis = Rank - 1; axis >= 0; --axis) {
    result.extent[axis] = actual.extent[axis];
    result.worst[axis] = worst_number % actual.extent[axis];
    worst_number /= actual.extent[axis];
  }
  return result;
}

/// Whether two tensors have the same bits: 0 and -0 differ, equal NaNs are equal.
/// \throws ShapeError if extents differ.
template <class T, int Rank>
bool bitwise_equal(const TensorView<T, Rank>& a, const InputView<T, Rank>& b) {
  bool equal = true;
  // An x87 long double has 10 bytes of value in 16 bytes of memory.
  constexpr bool padded = std::is_floating_point_v<T> && std::numeric_limits<T>::digits == 64;
  constexpr std::size_t bytes = padded ? 10 : sizeof(T);
  for_each_element(
      [&](const T& x, const T& y) { equal = equal && std::memcmp(&x, &y, bytes) == 0; },
      TensorView<const T, Rank>(a), b);
  return equal;
}

/// \cond INTERNAL
MHLA_NO_SUCH_CALL(Comparison<1> compare,
                  "mhla: call compare(actual, expected, scale) with two views of one rank: of a "
                  "HostTensor write x.view()")
MHLA_NO_SUCH_CALL(bool bitwise_equal,
                  "mhla: call bitwise_equal(a, b) with two views of one rank and scalar: of a "
                  "HostTensor write x.view()")
/// \endcond

/// What an implementation of MHLA may differ by from the oracles of mhla/reference, for each
/// scalar: the bounds that the library's own tests hold it to.
namespace tolerance {

/// u of a floating-point type.
template <class T>
inline constexpr double unit_roundoff = static_cast<double>(std::numeric_limits<T>::epsilon()) / 2;

/// An output against the oracle evaluated in double (for long double in long double), as
/// compare(...).rms_ratio.
//
// Every output is a sum of about N signed products, rounded in another order than the oracle's, so
// errors grow like u sqrt(N). Measured with non-negative features and N = 64 to 4096: 10 u in
// double, 2.5 u in float (whose inputs' own rounding is in both runs), and in gradients up to 10 u.
// Gradients are products of two such sums and differences of them (the normalizer's term).
template <class T>
inline constexpr double forward_rms = 180 * unit_roundoff<T>;  // double 2e-14, long double 1e-17
/// Of float.
template <>
inline constexpr double forward_rms<float> = 1e-6;  // 17 u

/// Likewise dq, dk, dv and, for the type it is stored in, dmix.
template <class T>
inline constexpr double gradient_rms = forward_rms<T>;
/// Of float.
template <>
inline constexpr double gradient_rms<float> = 5e-6;  // 84 u

/// Bounds on compare(...).max_ratio, the largest error in units of the RMS.
// A thousand normal errors reach 3.3 of their standard deviations, ten million 5.3, and outputs
// differ in size by a few.
template <class T>
inline constexpr double forward_max = 10 * forward_rms<T>;  // double 2e-13, float 1e-5
/// Likewise of gradients.
template <class T>
inline constexpr double gradient_max = 20 * gradient_rms<T>;  // double 4e-13, float 1e-4

/// Of bfloat16.
// 16-bit tensors against the oracle in double on the same, already rounded, inputs: what remains is
// the rounding of the output, at most 2^-9 (bfloat16) and 2^-12 (half) relative to each element,
// 0.58 of it in RMS, and as much again for the float sums and for small elements.
template <>
inline constexpr double forward_rms<mhla::BFloat16> = 3e-3;
/// Of half.
template <>
inline constexpr double forward_rms<mhla::Half> = 4e-4;

}  // namespace tolerance

/// \}

}  // namespace testing

MHLA_NAMESPACE_END
