// SPDX-License-Identifier: MIT
// How far results are from those of the same inputs in double.
#pragma once

#include <cmath>
#include <cstddef>
#include <mhla/core/scalar.hpp>
#include <mhla/testing/host_tensor.hpp>

#include "library.hpp"
#include "tensors.hpp"

namespace bench {

/// Root mean square of the errors over that of the exact values.
template <class T, int Rank>
double rms_error(const HostTensor<T, Rank>& actual, const HostTensor<double, Rank>& exact) {
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < exact.elements().size(); ++i) {
    const double value = exact.elements()[i];
    const double difference = static_cast<double>(mhla::load(actual.elements()[i])) - value;
    error += difference * difference;
    size += value * value;
  }
  return std::sqrt(error / size);
}

/// A batch of one, its values of mean 1, and the same, rounded as it is, in double.
template <class T>
struct ExactTwin {
  Batch one;
  Tensors<T> rounded;
  Tensors<double> exact;

  explicit ExactTwin(const Shape& shape) : one{shape, 1}, rounded(one), exact(one) {
    for (T& value : rounded.v.elements()) mhla::store(value, mhla::load(value) + 1);
    exact.q = mhla::testing::converted<double>(rounded.q);
    exact.k = mhla::testing::converted<double>(rounded.k);
    exact.v = mhla::testing::converted<double>(rounded.v);
    exact.dy = mhla::testing::converted<double>(rounded.dy);
    exact.mix = mhla::testing::converted<double>(rounded.mix);
    const mhla::SerialExecutor serial;
    const auto calls = library_calls(shape, exact, mhla::ExecutorRef(serial));
    calls.forward();
    calls.backward();
  }
};

}  // namespace bench
