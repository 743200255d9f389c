// SPDX-License-Identifier: MIT
// The kernels of the backward pass through 16-bit summaries, executed on the CPU, against the
// oracle: causal blocks of more than a tile, shared by heads; a rotation; infinities of tokens that
// do not pair.
#include <cmath>
#include <limits>
#include <mhla/reference/mhla.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>

#include "killer.hpp"
#include "tests/cuda/fused_backward.hpp"

namespace {

using namespace mhla;
using killer::expect;
using mhla::testing::HostTensor;

template <class T>
using Mix = HostTensor<Accumulator<T>, 3>;

template <class T>
struct Call {
  HostTensor<T, 4> q, k, v, dy;
  Mix<T> mix;
  HostTensor<T, 4> dq = q, dk = k, dv = v;
  Mix<T> dmix = mix;

  Shape shape() const { return shape_of(q.view(), k.view(), v.view(), mix.view()); }
};

template <class T>
Call<T> call_of(Index key_dim, Index value_dim, Index heads, Index kv_heads, Index tokens,
                Index blocks) {
  using mhla::testing::random_tensor;
  const mhla::testing::ExactInBFloat16<mhla::testing::Normal> normal;
  Call<T> call{
      random_tensor<T>(normal, 1, 1, heads, tokens, key_dim),
      random_tensor<T>(normal, 2, 1, kv_heads, tokens, key_dim),
      random_tensor<T>(normal, 3, 1, kv_heads, tokens, value_dim),
      random_tensor<T>(normal, 4, 1, heads, tokens, value_dim),
      random_tensor<Accumulator<T>>(mhla::testing::Uniform{0.1f, 1.0f}, 5, heads, blocks, blocks)};
  mhla::testing::for_each_element([](T& v) { store(v, load(v) + 1.0f); }, call.v.view());
  return call;
}

template <int KeyDim, int ValueDim, class V, class T>
void run(const V& attention, Call<T>& call) {
  fused_backward::Backward<V, T, KeyDim, ValueDim> backward(
      attention, checked_problem(attention, call.shape()), call.mix.view(),
      {call.q.view(), call.k.view(), call.v.view(), call.dy.view(), call.dq.view(), call.dk.view(),
       call.dv.view()});
  backward.run();
  const auto sums = backward.grad_mixing();
  std::size_t at = 0;
  mhla::testing::for_each_element([&](float& e) { e = static_cast<float>(sums[at++]); },
                                  call.dmix.view());
}

template <int KeyDim, int ValueDim, class V>
void check(const std::string& name, const V& attention, Call<BFloat16> call) {
  const auto wide = [](const auto& from) { return mhla::testing::converted<double>(from); };
  Call<double> expected{wide(call.q), wide(call.k), wide(call.v), wide(call.dy), wide(call.mix)};
  reference::mhla_backward(attention, TensorView<const double, 4>(expected.q.view()),
                           expected.k.view(), expected.v.view(), expected.mix.view(),
                           expected.dy.view(),
                           GradientViews<double>{expected.dq.view(), expected.dk.view(),
                                                 expected.dv.view(), expected.dmix.view()});
  run<KeyDim, ValueDim>(attention, call);
  const auto near = [&](const char* what, const auto& actual, const auto& wanted, double bound) {
    const double error = mhla::testing::compare(actual.view(), wanted.view()).rms_ratio;
    expect(error <= bound, name + ": " + what + ", " + std::to_string(error));
  };
  near("dq", call.dq, expected.dq, 6e-3);
  near("dk", call.dk, expected.dk, 4e-3);
  near("dv", call.dv, expected.dv, 4e-3);
  near("dmix", call.dmix, expected.dmix, 3e-3);
}

using Ordered = Attention<EluPlusOne, Blocks1D, mhla::Causal>;
using Turned = Attention<EluPlusOne, Blocks1D, Bidirectional, MixedKeySum, HalfSplitRotary>;

void check_infinities() {
  const Ordered attention{.blocks = {.block = 90}};
  auto call = call_of<BFloat16>(32, 32, 1, 1, 90, 1);
  store(call.k(0, 0, 50, 3), std::numeric_limits<float>::infinity());
  run<32, 32>(attention, call);
  for (Index c = 0; c < 32; ++c)
    expect(std::isfinite(load(call.dq(0, 0, 10, c))), "queries do not meet later keys");
}

}  // namespace

int main() {
  killer::run([] {
    check<32, 32>("causal", Ordered{.blocks = {.block = 80}},
                  call_of<BFloat16>(32, 32, 2, 1, 100, 2));
    check<64, 128>("turned", Turned{.blocks = {.block = 20}},
                   call_of<BFloat16>(64, 128, 2, 2, 50, 3));
    check_infinities();
  });
}
