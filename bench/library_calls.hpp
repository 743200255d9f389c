// SPDX-License-Identifier: MIT
// The template after library.hpp, for the sources that compile it.
#pragma once

#include <memory>
#include <mhla/core/forward_state.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>

#include "library.hpp"
#include "variants.hpp"

namespace bench {

template <class T>
LibraryCalls library_calls(const Shape& shape, Tensors<T>& t, const mhla::ExecutorRef& executor,
                           mhla::Precision precision) {
  using A = mhla::Accumulator<T>;
  return with_variant<T>(shape, [&](auto attention) {
    attention.precision = precision;
    const auto bytes = [](Index count) { return static_cast<double>(count); };
    const Index forward_bytes = mhla::forward_workspace_size<T>(attention, t.shape(), executor);
    const Index backward_bytes = mhla::backward_workspace_size<T>(attention, t.shape(), executor);
    const auto workspace =
        std::make_shared<mhla::Workspace>(std::max(forward_bytes, backward_bytes));
    const auto state = std::make_shared<mhla::ForwardState<A>>();
    const auto forward = [=, &t](mhla::ForwardState<A>* save) {
      mhla::forward_into(attention, executor, t.q.view(), t.k.view(), t.v.view(), t.mix.view(),
                         t.y.view(), *workspace, save);
    };
    const auto backward = [=, &t](const mhla::ForwardState<A>* saved) {
      mhla::backward_into(attention, executor, t.q.view(), t.k.view(), t.v.view(), t.mix.view(),
                          t.dy.view(), {t.dq.view(), t.dk.view(), t.dv.view(), t.dmix.view()},
                          mhla::Update::overwrite, *workspace, saved);
    };
    return LibraryCalls{.forward = [=] { forward(nullptr); },
                        .forward_saving = [=] { forward(state.get()); },
                        .backward = [=] { backward(nullptr); },
                        .backward_saved = [=] { backward(state.get()); },
                        .forward_workspace = bytes(forward_bytes),
                        .backward_workspace = bytes(backward_bytes),
                        .state = bytes(mhla::forward_state_size(attention, t.shape())) * sizeof(A)};
  });
}

}  // namespace bench
