// SPDX-License-Identifier: MIT
// Calls of fused kernels in tests: their operands, memory that they find full of NaN, and what
// their results are compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <type_traits>
#include <utility>

#include "tests/cpu/call.hpp"
#include "tests/cuda/machine.hpp"

namespace fused_call {

using namespace mhla;
using mhla::testing::HostTensor;

// What kernels of whole forward passes are tried with.
template <class Causality = mhla::Bidirectional, class Normalizer = mhla::MixedKeySum,
          class Rotation = mhla::NoRotation, class Map = mhla::EluPlusOne>
using Line = mhla::Attention<Map, mhla::Blocks1D, Causality, Normalizer, Rotation>;
template <class Normalizer = mhla::MixedKeySum, class Rotation = mhla::NoRotation,
          class Map = mhla::Relu>
using Image = mhla::Attention<Map, mhla::Blocks2D, mhla::Bidirectional, Normalizer, Rotation>;
template <class Normalizer = mhla::MixedKeySum, class Rotation = mhla::NoRotation,
          class Map = mhla::EluPlusOne>
using Video = mhla::Attention<Map, mhla::Blocks3D, mhla::Bidirectional, Normalizer, Rotation>;
using Language = Line<mhla::Causal, mhla::Unnormalized, mhla::HalfSplitRotary, mhla::Identity>;

// Relative RMS errors of y: mostly those of rounding it, 1.7e-3 and 2e-4.
template <class T>
inline constexpr double bound_of_y = std::is_same_v<T, BFloat16> ? 4e-3 : 1e-3;

/// Values whose mean is not 0.
template <class T, class V>
call::Operands<T> operands_of(const V& attention, const Shape& shape, std::uint64_t seed = 1) {
  call::Operands<T> x = call::operands<T>(attention, shape, seed);
  mhla::testing::for_each_element([](T& v) { mhla::store(v, mhla::load(v) + 1.0f); }, x.v.view());
  return x;
}

/// Keys that are nearly alike, and values of alternating signs: terms nearly cancel, so that sums
/// in another order differ after rounding to 16 bits, too.
template <class T, class V>
call::Operands<T> cancelling_operands_of(const V& attention, const Shape& shape) {
  call::Operands<T> x = operands_of<T>(attention, shape);
  for (Index t = 0; t < shape.key_tokens; ++t) {
    for (Index c = 0; c < shape.key_dim; ++c)
      mhla::store(x.k(0, 0, t, c), mhla::load(x.k(0, 0, t, c)) / 64);
    for (Index c = 0; c < shape.value_dim && t / 4 % 2 == 1; ++c)
      mhla::store(x.v(0, 0, t, c), -mhla::load(x.v(0, 0, t - 4, c)));
  }
  return x;
}

/// Whether a check runs its call once more, and has the same bits however the machine's warps take
/// turns: one call in three, as the machine finds races in every one.
inline bool runs_again() {
  static int calls = 0;
  machine::context().seed += 1000;
#if defined(MHLA_FULL_PRODUCT)
  return true;
#else
  return calls++ % 3 == 0;
#endif
}

template <class T, int Rank>
void poison(HostTensor<T, Rank>& tensor) {
  mhla::testing::for_each_element(
      [](T& e) { mhla::store(e, std::numeric_limits<float>::quiet_NaN()); }, tensor.view());
}
/// A workspace of so many bytes.
inline Workspace poisoned_workspace(Index bytes) {
  Workspace workspace(bytes);
  std::fill_n(static_cast<unsigned char*>(static_cast<void*>(workspace.data())), workspace.size(),
              static_cast<unsigned char>(0xff));
  return workspace;
}

/// The oracle's y; of packed and padded batches, which it does not know, the CPU backend's.
template <class V>
HostTensor<double, 4> expected_forward(const V& attention, const call::Operands<double>& x) {
  if constexpr (
      requires { attention.offsets; } || requires { attention.masks; }) {
    HostTensor<double, 4> y = x.dy;
    const mhla::SerialExecutor serial;
    const Workspace workspace(forward_workspace_size<double>(attention, x.shape(), serial));
    forward_into(attention, serial, x.q, x.k, x.v, x.mix, y.view(), workspace);
    return y;
  } else {
    return call::oracle_forward(attention, x);
  }
}

/// Key sums and mixing matrices have more than 16 bits: two calls that come out otherwise where
/// they are rounded. `run(attention, operands)` is the y of a sequence, of 64 dimensions.
template <class Run>
void check_key_sums_and_matrices_are_not_rounded(const Run& run) {
  using mhla::store;
  const auto ones = [](Index tokens, Index block) {
    const mhla::Attention<mhla::Relu, mhla::Blocks1D> attention{.feature_map = {.epsilon = 0},
                                                                .blocks = {.block = block}};
    auto x = operands_of<BFloat16>(attention, {1, 1, 1, tokens, tokens, 64, 64});
    for (auto* const tensor : {&x.q, &x.k, &x.v})
      mhla::testing::for_each_element([](BFloat16& e) { store(e, 0.0f); }, tensor->view());
    for (Index t = 0; t < tokens; ++t) {
      store(x.q(0, 0, t, 0), 1.0f);
      store(x.k(0, 0, t, 0), 1.0f);
    }
    return std::pair(attention, x);
  };
  const auto expect = [&](const auto& attention, const call::Operands<BFloat16>& x, float value) {
    BFloat16 rounded;
    store(rounded, value);
    CHECK((run(attention, x)(0, 0, 5, 7).bits == rounded.bits));
  };
  {
    // 257 ones: the key sum, 257, would be rounded to 256, as what is read out of 256 values.
    auto [attention, x] = ones(257, 257);
    for (Index t = 1; t < 257; ++t) store(x.v(0, 0, t, 7), 1.0f);
    x.mix(0, 0, 0) = 1;
    expect(attention, x, 256.0f / 257);
  }
  {
    // 256 m - 256 is 1.5; with m rounded, it would be 2.
    const float m = 1 + 3.0f / 512;
    auto [attention, x] = ones(8, 4);
    store(x.v(0, 0, 0, 7), 256.0f);
    store(x.v(0, 0, 4, 7), -256.0f);
    for (Index i = 0; i < 2; ++i) {
      x.mix(0, i, 0) = m;
      x.mix(0, i, 1) = 1;
    }
    expect(attention, x, 1.5f / (4 * m + 4));
  }
}

/// No bit of y changes before a token of 50 that is spoilt. `run(attention, operands)` is the y of
/// a causal sequence, of `dim` dimensions.
template <class T, class V, class Run>
void check_later_tokens_reach_nothing(const V& attention, Index dim,
                                      std::initializer_list<Index> tokens, const Run& run,
                                      Index seen_at_once = 1) {
  const auto x = cancelling_operands_of<T>(attention, {1, 1, 1, 50, 50, dim, dim});
  const auto y = run(attention, x);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const Index token : tokens)
      for (const bool in_value : {false, true}) {
        auto spoilt = x;
        mhla::store((in_value ? spoilt.v : spoilt.k)(0, 0, token, 3), bad);
        const auto z = run(attention, spoilt);
        CAPTURE(bad, token, in_value);
        Index different = 0, finite = 0;
        for (Index t = 0; t < 50; ++t)
          for (Index c = 0; c < dim; ++c) {
            const bool later = t >= token / seen_at_once * seen_at_once;
            const bool reached = later && (!in_value || c == 3);
            if (!reached) different += z(0, 0, t, c).bits != y(0, 0, t, c).bits;
            if (reached) finite += std::isfinite(mhla::load(z(0, 0, t, c)));
          }
        CHECK(different == 0);
        if (in_value || std::isnan(bad)) CHECK(finite == 0);
      }
}

}  // namespace fused_call
