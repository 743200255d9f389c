// SPDX-License-Identifier: MIT
// The forward pass whose summaries stay in shared memory, its kernel executed on the CPU, against
// the oracle: causal blocks of more than a tile, a matrix for each head and one for all; half, and
// more blocks than a part of the matrix has, in slices of values; sums that 16 bits do not hold.
#include <limits>
#include <mhla/cuda/fused/resident_pass.cuh>
#include <mhla/cuda/head_dims.hpp>
#include <string>

#include "cuda_call.hpp"
#include "tests/cuda/machine.hpp"

namespace {

using namespace mhla;
using namespace cuda_call;
using killer::expect;

using Ordered = Attention<EluPlusOne, Blocks1D, mhla::Causal>;
using Positive = Attention<EluPlusOne, Blocks1D>;

template <class V, class T>
HostTensor<T, 4> forward(const V& attention, const Call<T>& call) {
  HostTensor<T, 4> y = poisoned_result(call);
  const Problem problem = checked_problem(attention, call.shape());
  Arena measured;
  cuda::fused::ResidentPlan<V>(measured, attention, problem, problem.shape.batch, false);
  const Workspace workspace(measured.used());
  cuda::fused::attend_with_resident_summaries<HeadDims<dim, dim>, V, T>(
      machine::device(), attention, problem,
      {call.q.view(), call.k.view(), call.v.view(), call.mix.view()}, y.view(), workspace);
  return y;
}
template <class V, class T>
void check(const std::string& name, const V& attention, const Call<T>& call, double bound) {
  expect_near(name, attention, call, forward(attention, call), bound);
}

void check_infinities(const Ordered& attention, Call<BFloat16> call) {
  const auto y = forward(attention, call);
  store(call.v(0, 0, 80, 3), std::numeric_limits<float>::infinity());
  const auto spoilt = forward(attention, call);
  for (Index t = 0; t < 150; ++t)
    expect((spoilt(0, 1, t, 3).bits == y(0, 1, t, 3).bits) == (t < 80),
           "a token sees an infinity exactly from its own place on");
}

}  // namespace

int main() {
  killer::run([] {
    const Ordered ordered{.blocks = {.block = 70}};
    const auto call = random_call<BFloat16>(2, 1, 150, 2, 3);
    check("causal", ordered, call, 4e-3);
    check_infinities(ordered, call);
    const Positive positive{.blocks = {.block = 4}};
    const auto many = random_call<Half>(2, 1, 70, 1, 18);
    const auto in_one_slice = forward(positive, many);
    expect_near("many blocks", positive, many, in_one_slice, 1e-3);
    // The least that 18 blocks need: slices of 16 columns.
    stand_in::runtime().shared_bytes =
        cuda::fused::ResidentShape{static_cast<int>(dim), 16, true, false}.bytes(18);
    expect(mhla::testing::bitwise_equal(forward(positive, many).view(), in_one_slice.view()),
           "slices change no bit");
    stand_in::runtime() = {};
    check("key sums of more than 16 bits", Plain{.blocks = {.block = 257}},
          call_of_float_key_sums(), 1e-3);
    check("matrices of more than 16 bits", Plain{.blocks = {.block = 4}}, call_of_float_matrices(),
          4e-3);
  });
}
