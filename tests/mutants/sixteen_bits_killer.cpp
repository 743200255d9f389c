// SPDX-License-Identifier: MIT
// 16-bit storage: every pattern, rounding at and beside a tie, and expressions over Eigen::bfloat16
// and Eigen::half against the core on copies of their patterns.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mhla/attention.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>

#include "killer.hpp"

namespace {

using killer::expect;
using mhla::BFloat16;
using mhla::Half;
using mhla::Index;
using mhla::make_view;

template <class T>
std::uint16_t stored_bits(float value) {
  T stored{};
  mhla::store(stored, value);
  return stored.bits;
}

void check_scalars() {
  for (std::uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const float wide = mhla::load(BFloat16{bits});
    const float half = mhla::load(Half{bits});
    expect(std::isnan(wide) || stored_bits<BFloat16>(wide) == bits, "a pattern of bfloat16");
    expect(std::isnan(half) || stored_bits<Half>(half) == bits, "a pattern of half");
  }
  expect(mhla::load(BFloat16{1}) == std::ldexp(1.0f, -133), "the smallest bfloat16");
  expect(mhla::load(Half{1}) == std::ldexp(1.0f, -24), "the smallest half");
  for (const int step : {8, 9, 11, 12}) {  // a half, or a quarter, of the last bit of 1
    const float above = 1 + std::ldexp(1.0f, -step);
    const float odd = 1 + 3 * std::ldexp(1.0f, -step);
    if (step <= 9) {
      expect(stored_bits<BFloat16>(above) == 0x3f80, "a bfloat16 tie goes to even");
      expect(stored_bits<BFloat16>(odd) == (step == 8 ? 0x3f82 : 0x3f81), "bfloat16 rounds up");
    } else {
      expect(stored_bits<Half>(above) == 0x3c00, "a half tie goes to even");
      expect(stored_bits<Half>(odd) == (step == 11 ? 0x3c02 : 0x3c01), "half rounds up");
    }
  }
  const float nan = -mhla::scalar_traits::reinterpret<float>(0x7fffffffu);
  expect(std::isnan(mhla::load(BFloat16{stored_bits<BFloat16>(nan)})), "NaN of bfloat16");
  expect(std::isnan(mhla::load(Half{stored_bits<Half>(nan)})), "NaN of half");
  expect(stored_bits<Half>(65520.0f) == 0x7c00 && stored_bits<Half>(65519.0f) == 0x7bff,
         "the largest half");
}

const mhla::Attention<mhla::Relu, mhla::Blocks1D> attention{.blocks = {.block = 3}};
constexpr Index heads = 2, tokens = 8, dim = 4, blocks = 3;

template <class Scalar, class Core>
void check_expressions() {
  using Tensor4 = Eigen::Tensor<Scalar, 4, Eigen::RowMajor>;
  using Tensor3 = Eigen::Tensor<float, 3, Eigen::RowMajor>;
  const auto random = [](std::uint64_t seed) {
    Tensor4 tensor(1, heads, tokens, dim);
    for (Index i = 0; i < tensor.size(); ++i)
      tensor.data()[i] =
          Scalar(static_cast<float>(mhla::testing::Normal{}(seed, static_cast<std::uint64_t>(i))));
    return tensor;
  };
  const auto copy = [](const Tensor4& tensor) {
    std::vector<Core> memory(static_cast<std::size_t>(tensor.size()));
    std::memcpy(memory.data(), tensor.data(), memory.size() * sizeof(Core));
    return memory;
  };
  const auto view = [](auto& memory) { return make_view(memory.data(), 1, heads, tokens, dim); };
  const auto same = [](const Tensor4& tensor, const std::vector<Core>& memory) {
    return std::memcmp(tensor.data(), memory.data(), memory.size() * sizeof(Core)) == 0;
  };
  const Tensor4 q = random(1), k = random(2), v = random(3), dy = random(4);
  Tensor3 mix(1, blocks, blocks);
  for (Index i = 0; i < mix.size(); ++i) mix.data()[i] = 0.1f * static_cast<float>(1 + i);

  // The core, from and to memory of its own.
  const auto q_core = copy(q), k_core = copy(k), v_core = copy(v), dy_core = copy(dy);
  auto y_core = copy(v), dq_core = copy(q), dk_core = copy(k), dv_core = copy(v);
  std::vector<float> dmix_core(blocks * blocks);
  const auto mix_view = make_view(mix.data(), 1, blocks, blocks);
  const mhla::SerialExecutor serial;
  const mhla::Shape shape = shape_of(view(q_core), view(k_core), view(v_core), mix_view);
  const mhla::Workspace workspace(mhla::backward_workspace_size<Core>(attention, shape, serial));
  const mhla::Workspace forward(mhla::forward_workspace_size<Core>(attention, shape, serial));
  mhla::forward_into(attention, serial, view(q_core), view(k_core), view(v_core), mix_view,
                     view(y_core), forward);
  const auto backward_core = [&](mhla::Update update) {
    mhla::backward_into(attention, serial, view(q_core), view(k_core), view(v_core), mix_view,
                        view(dy_core),
                        {view(dq_core), view(dk_core), view(dv_core),
                         make_view(dmix_core.data(), 1, blocks, blocks)},
                        update, workspace);
  };

  Tensor4 y = v;
  y = attention(q, k, y, mix);
  expect(same(y, y_core), "a 16-bit result over its operand");
  const Tensor4 lazy = attention(q * Scalar(1.0f), k, v, mix) * Scalar(1.0f);
  expect(same(lazy, y_core), "a 16-bit result in an expression");
  Tensor4 dq = q, dk = k, dv = v;
  Tensor3 dmix = mix;
  const auto check_gradients = [&] {
    expect(same(dq, dq_core) && same(dk, dk_core) && same(dv, dv_core), "16-bit gradients");
    expect(std::memcmp(dmix.data(), dmix_core.data(), dmix_core.size() * sizeof(float)) == 0,
           "dmix of 16-bit tensors");
  };
  backward_core(mhla::Update::overwrite);
  mhla::gradients(dq, dk, dv, dmix) = attention.backward(q, k, v, mix, dy);
  check_gradients();
  backward_core(mhla::Update::accumulate);
  mhla::gradients(dq, dk, dv, dmix) += attention.backward(q, k, v, mix, dy);
  check_gradients();

  // And one value, so that not both are wrong alike: a single token attends to itself.
  Tensor4 one(1, 1, 1, 1), value(1, 1, 1, 1);
  one.setConstant(Scalar(1.0f));
  value.setConstant(Scalar(-0.15625f));
  Tensor3 weight(1, 1, 1);
  weight.setConstant(1.0f);
  const Tensor4 got = attention(one, one, value, weight);
  expect(std::abs(static_cast<float>(got.data()[0]) + 0.15625f) < 1e-3f, "a token's own value");
}

}  // namespace

int main() {
  killer::run([] {
    check_scalars();
    check_expressions<Eigen::bfloat16, BFloat16>();
    check_expressions<Eigen::half, Half>();
  });
}
