// SPDX-License-Identifier: MIT
// The library without EIGEN_USE_THREADS, through its umbrella header alone.
#include <mhla/mhla.hpp>

#ifdef EIGEN_USE_THREADS
#error "this test is about programs that do not define EIGEN_USE_THREADS"
#endif

#include "tests/eigen/tensors.hpp"
#include "tests/support/catch.hpp"

using test::memory_of;
using Tensors = test::Tensors<double, Eigen::RowMajor>;

TEST_CASE("without threads: forward and backward on the default device", "[eigen]") {
  const Tensors t;
  const auto expected = t.expected();
  Tensors::Tensor4 y = t.output();
  y.device(Eigen::DefaultDevice()) = t.attention(t.q, t.k, t.v, t.mix);
  CHECK(memory_of(y) == expected);
  const Tensors::Tensor4 sum = t.x + t.attention(t.q * 1., t.k, t.v, t.mix) * 0.5;
  const Tensors::Tensor4 expected_sum = t.x + y * 0.5;
  CHECK(memory_of(sum) == memory_of(expected_sum));

  Tensors::Tensor4 dq = t.q;
  Tensors::Tensor4 dk = t.k;
  Tensors::Tensor4 dv = t.v;
  Tensors::Tensor3 dmix = t.mix;
  const auto gradients = expected_gradients(
      t, {memory_of(dq), memory_of(dk), memory_of(dv), memory_of(dmix)}, mhla::Update::overwrite);
  mhla::gradients(dq, dk, dv, dmix) = t.attention.backward(t.q, t.k, t.v, t.mix, t.dy);
  CHECK(memory_of(dq) == gradients.dq);
  CHECK(memory_of(dk) == gradients.dk);
  CHECK(memory_of(dv) == gradients.dv);
  CHECK(memory_of(dmix) == gradients.dmix);
}
