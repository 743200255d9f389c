// SPDX-License-Identifier: MIT
// The forward pass whose summaries are made, mixed and read out in one launch, its kernel executed
// on the CPU by blocks of threads that take turns, against the oracle: more units than places, a
// matrix for each and one for all; causal blocks with denominators; sums that 16 bits do not hold.
#include <algorithm>
#include <mhla/cuda/fused/persistent_pass.cuh>
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

/// Blocks of threads that there is to be work for: less than a unit has, so that units share places
/// soon.
constexpr Index few = 4;

template <class V, class T>
HostTensor<T, 4> forward(const V& attention, const Call<T>& call, std::uint64_t seed) {
  machine::context().seed = seed;
  HostTensor<T, 4> y = poisoned_result(call);
  const Problem problem = checked_problem(attention, call.shape());
  Arena measured;
  cuda::fused::PersistentPlan<V, T>(measured, attention, problem, problem.shape.batch, false, few);
  const Workspace workspace(measured.used());
  // Counters that count more than there is to do.
  std::fill_n(static_cast<unsigned char*>(static_cast<void*>(workspace.data())), workspace.size(),
              static_cast<unsigned char>(1));
  cuda::fused::attend_in_one_launch<HeadDims<dim, dim>, V, T>(
      machine::device(), attention, problem,
      {call.q.view(), call.k.view(), call.v.view(), call.mix.view()}, y.view(), workspace, few);
  return y;
}
template <class V, class T>
void check(const std::string& name, const V& attention, const Call<T>& call, double bound) {
  const auto y = forward(attention, call, 1);
  expect_near(name, attention, call, y, bound);
  for (std::uint64_t seed = 2; seed < 8; ++seed)
    expect(mhla::testing::bitwise_equal(forward(attention, call, seed).view(), y.view()),
           name + ": whoever has their turn");
}

}  // namespace

int main() {
  killer::run([] {
    check("units", Positive{.blocks = {.block = 10}}, random_call<Half>(7, 7, 30, 1, 3), 1e-3);
    check("matrices", Positive{.blocks = {.block = 10}}, random_call<Half>(6, 6, 30, 6, 3), 1e-3);
    check("causal", Ordered{.blocks = {.block = 10}}, random_call<BFloat16>(4, 2, 30, 1, 3), 4e-3);
    check("many blocks", Positive{.blocks = {.block = 1}}, random_call<Half>(1, 1, 40, 1, 40),
          1e-3);
    check("key sums of more than 16 bits", Plain{.blocks = {.block = 257}},
          call_of_float_key_sums(), 1e-3);
    check("matrices of more than 16 bits", Plain{.blocks = {.block = 4}}, call_of_float_matrices(),
          4e-3);
  });
}
