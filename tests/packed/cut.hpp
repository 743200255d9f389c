// SPDX-License-Identifier: MIT
// Single sequences cut out of a batch's tensors, and put back.
#pragma once

#include <mhla/testing/host_tensor.hpp>
#include <type_traits>

#include "tests/cpu/call.hpp"

namespace batches {

using call::HostTensor;
using call::Operands;
using mhla::Index;
using mhla::TensorView;

/// Tokens [first, first + count) of one batch item, in place.
template <class T>
TensorView<T, 4> tokens_of(TensorView<T, 4> view, Index item, Index first, Index count) {
  if (view.data != nullptr)  // an empty tensor may have none
    view.data += item * view.stride[0] + first * view.stride[2];
  view.extent[0] = 1;
  view.extent[2] = count;
  return view;
}

template <class T>
void copy(const TensorView<T, 4>& to, const std::type_identity_t<TensorView<const T, 4>>& from) {
  mhla::testing::for_each_element([](T& target, const T& source) { target = source; }, to, from);
}

/// A call on tokens [first, first + count) of one batch item alone, with the whole mixing matrix.
template <class T>
Operands<T> cut(const Operands<T>& x, Index item, Index first, Index count) {
  const auto part = [&](const HostTensor<T, 4>& tensor) {
    const auto tokens = tokens_of(tensor.view(), item, first, count);
    auto alone = HostTensor<T, 4>::like(tokens);
    copy(alone.view(), tokens);
    return alone;
  };
  return {part(x.q), part(x.k), part(x.v), x.mix, part(x.dy)};
}

}  // namespace batches
