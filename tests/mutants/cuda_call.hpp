// SPDX-License-Identifier: MIT
// Calls of fused kernels in killers: operands, and what a forward pass should give.
#pragma once

#include <limits>
#include <mhla/core/shape.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/policy/variant.hpp>
#include <mhla/reference/mhla.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>

#include "killer.hpp"

namespace cuda_call {

using mhla::BFloat16;
using mhla::Half;
using mhla::Index;
using mhla::testing::HostTensor;

inline constexpr Index dim = 32;

template <class T>
struct Call {
  HostTensor<T, 4> q, k, v;
  HostTensor<float, 3> mix;

  mhla::Shape shape() const { return mhla::shape_of(q.view(), k.view(), v.view(), mix.view()); }
};

template <class T>
Call<T> random_call(Index heads, Index kv_heads, Index tokens, Index mix_heads, Index blocks,
                    Index of_dim = dim) {
  using mhla::testing::random_tensor;
  const mhla::testing::ExactInBFloat16<mhla::testing::Normal> normal;
  Call<T> call{
      random_tensor<T>(normal, 1, 1, heads, tokens, of_dim),
      random_tensor<T>(normal, 2, 1, kv_heads, tokens, of_dim),
      random_tensor<T>(normal, 3, 1, kv_heads, tokens, of_dim),
      random_tensor<float>(mhla::testing::Uniform{0.1f, 1.0f}, 4, mix_heads, blocks, blocks)};
  for (T& v : call.v.elements()) store(v, load(v) + 1.0f);
  return call;
}
template <class T>
Call<T> empty_call(Index tokens, Index blocks) {
  const HostTensor<T, 4> x(1, 1, tokens, dim);
  return {x, x, x, HostTensor<float, 3>(1, blocks, blocks)};
}

/// The result, full of NaN before.
template <class T>
HostTensor<T, 4> poisoned_result(const Call<T>& call) {
  HostTensor<T, 4> y = call.q;
  for (T& e : y.elements()) store(e, std::numeric_limits<float>::quiet_NaN());
  return y;
}

/// Expects the oracle's y, as relative RMS error.
template <class V, class T>
void expect_near(const std::string& name, const V& attention, const Call<T>& call,
                 const HostTensor<T, 4>& y, double bound) {
  const auto wide = [](const auto& from) { return mhla::testing::converted<double>(from); };
  const auto q = wide(call.q), k = wide(call.k), v = wide(call.v);
  const auto mix = wide(call.mix);
  auto expected = q;
  mhla::reference::mhla_forward(attention, q, k, v, mix, expected.view());
  const auto result = mhla::testing::compare(y.view(), expected.view());
  killer::expect(result.rms_ratio <= bound, name + ": " + result.report());
}

/// Without a feature map.
using Plain = mhla::Attention<mhla::Identity, mhla::Blocks1D>;

/// A block of 257 tokens: the summary of 257 ones rounds, so one value is 0; the key sum may not
/// round.
inline Call<BFloat16> call_of_float_key_sums() {
  auto call = empty_call<BFloat16>(257, 1);
  for (Index t = 0; t < 257; ++t) {
    mhla::store(call.q(0, 0, t, 0), 1.0f);
    mhla::store(call.k(0, 0, t, 0), 1.0f);
    for (Index c = 0; c < dim; ++c) mhla::store(call.v(0, 0, t, c), t == 0 ? 0.0f : 1.0f);
  }
  call.mix(0, 0, 0) = 1;
  return call;
}

/// Two blocks of 4 tokens: 1 + 3/512 rounds to 1 + 4/512, and 256 (1 + 3/512) - 256 to 2.
inline Call<BFloat16> call_of_float_matrices() {
  auto call = empty_call<BFloat16>(8, 2);
  for (Index t = 0; t < 8; ++t) {
    mhla::store(call.q(0, 0, t, 0), 1.0f);
    mhla::store(call.k(0, 0, t, 0), 1.0f);
    for (Index c = 0; c < dim; ++c)
      mhla::store(call.v(0, 0, t, c), t == 0 ? 256.0f : t == 4 ? -256.0f : 0.0f);
  }
  for (Index i = 0; i < 2; ++i) {
    call.mix(0, i, 0) = 1 + 3.0f / 512;
    call.mix(0, i, 1) = 1;
  }
  return call;
}

}  // namespace cuda_call
