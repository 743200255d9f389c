// SPDX-License-Identifier: MIT
#include "tests/mixed_flags/run.hpp"

namespace mixed_flags::plain {

Flags flags() { return {MHLA_TEST_OPTIMIZES, MHLA_TEST_AVX2}; }

void map_elements(Index n, const float* x, float* y) { map(n, x, y); }

Results<float> run(const Attention& attention, const call::Operands<float>& x) {
  return {call::forward(attention, x), call::backward(attention, x)};
}
Results<double> run(const Attention& attention, const call::Operands<double>& x) {
  return {call::forward(attention, x), call::backward(attention, x)};
}

}  // namespace mixed_flags::plain
