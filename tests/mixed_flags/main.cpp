// SPDX-License-Identifier: MIT
// Both translation units are right, whichever copy of their common functions the linker has kept:
// this program is linked in both orders. Right is what the tolerances say; the bits are those of
// the copies that were kept, as the compiler contracts products and sums outside the kernels where
// its flags let it.
#include <cmath>
#include <type_traits>
#include <vector>

#include "tests/mixed_flags/run.hpp"

namespace {

using namespace mixed_flags;

bool skipped() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    WARN("Skipped: this machine has no AVX2");
    return true;
  }
#endif
  return false;
}

template <class T>
void check(Run<T> of_plain, Run<T> of_vectorized) {
  const Attention attention{.blocks = {.block = 8}};
  const auto x = call::operands<T>(attention, {2, 4, 2, 50, 50, 36, 45});
  using Wide = std::conditional_t<std::is_same_v<T, float>, double, long double>;
  const auto wide = call::converted<Wide>(x);
  const auto y = call::oracle_forward(attention, wide);
  const auto gradients = call::oracle_backward(attention, wide);
  for (const Run<T> run : {of_plain, of_vectorized}) {
    const Results<T> results = run(attention, x);
    call::check_close("y", results.y, y, tolerance::forward_rms<T>, tolerance::forward_max<T>);
    call::check_close(results.gradients, gradients);
  }
}

// e^x as kernels have it where there is FMA, step by step: see mhla/cpu/exponential.hpp.
float exponential_by_fma(float x) {
  constexpr float shift = 12582912;
  const float n = std::fma(x, 1.44269504f, shift) - shift;
  const float r = std::fma(-n, -2.12194440e-4f, std::fma(-n, 0.693359375f, x));
  float p = 1.3926213e-3f;
  for (const float c : {8.3632031e-3f, 4.16665561e-2f, 0.166665763f, 0.5f}) p = std::fma(p, r, c);
  return std::ldexp(std::fma(p, r * r, r) + 1.0f, static_cast<int>(n));
}

}  // namespace

TEST_CASE("mixed flags: an exponential has the bits of optimized kernels, whatever the flags",
          "[mixed_flags]") {
  if (skipped()) return;
  std::vector<float> x, expected;
  for (int i = 0; i < 1001; ++i) {
    x.push_back(static_cast<float>(-i) / 97);
    expected.push_back(exponential_by_fma(x.back()));
  }
  for (const Part& part : {plain, vectorized}) {
    std::vector<float> y(x.size());
    part.map(static_cast<mhla::Index>(x.size()), x.data(), y.data());
    CHECK(y == expected);
  }
}

TEST_CASE("mixed flags: the translation units are compiled as they should", "[mixed_flags]") {
  CHECK_FALSE(plain.optimizes);
  CHECK(vectorized.optimizes);
#if defined(__x86_64__)
  CHECK_FALSE(plain.has_avx2);
  CHECK(vectorized.has_avx2);
#endif
}

TEST_CASE("mixed flags: both translation units run and are right", "[mixed_flags]") {
  if (skipped()) return;
  check<float>(plain.in_float, vectorized.in_float);
  check<double>(plain.in_double, vectorized.in_double);
}
