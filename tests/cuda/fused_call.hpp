// SPDX-License-Identifier: MIT
// Calls of fused kernels in tests: their operands, memory that they find full of NaN, and what
// their results are compared with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <type_traits>

#include "tests/cpu/call.hpp"

namespace fused_call {

using mhla::BFloat16;
using mhla::Index;
using mhla::Shape;
using mhla::Workspace;
using mhla::testing::HostTensor;

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

}  // namespace fused_call
