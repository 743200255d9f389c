// SPDX-License-Identifier: MIT
// What holds of every call, of a packed or padded batch: any executor (any order of a kernel's
// threads), summaries saved or computed again, and any subset of the gradients give the same bits.
#pragma once

#include <cstdint>
#include <mhla/core/forward_state.hpp>
#include <mhla/core/gradient_views.hpp>

#include "tests/cpu/call.hpp"
#include "tests/cpu/executors.hpp"

namespace batches {

template <class V>
void check_requests(const V& variant, const call::Operands<double>& x) {
  using call::Gradients;
  using mhla::Index;
  const auto y = call::forward(variant, x);
  Gradients<double> all = call::backward(variant, x);
  for (const Index count : {1, 2, 3, 8, 40}) {
    CAPTURE(count);
#if defined(MHLA_TEST_CUDA)
    machine::context().seed = static_cast<std::uint64_t>(count);
    CHECK(call::bitwise_equal(call::forward(variant, x).view(), y.view()));
    Gradients<double> again = call::backward(variant, x);
    call::check_same_bits(again, all);
#else
    const auto same = [&](const auto& executor) {
      mhla::ForwardState<double> state;
      CHECK(call::bitwise_equal(call::forward(variant, x, executor, &state).view(), y.view()));
      Gradients<double> again = call::backward(variant, x, executor);
      call::check_same_bits(again, all);
      Gradients<double> from_saved = call::backward(variant, x, executor, &state);
      call::check_same_bits(from_saved, all);
    };
    if (count <= 8) same(executors::ThreadExecutor{count});
    same(executors::ShuffledExecutor{count});
#endif
  }
  for (int subset = 0; subset < 16; ++subset) {
    CAPTURE(subset);
    Gradients<double> expected(x);
    Gradients<double> some(x);
    auto views = some.views();
    const auto ask = [&](int part, auto& view, auto& wanted, const auto& gradient) {
      if ((subset & part) != 0) {
        wanted = gradient;
      } else {
        view = mhla::skip;
      }
    };
    ask(1, views.query, expected.query, all.query);
    ask(2, views.key, expected.key, all.key);
    ask(4, views.value, expected.value, all.value);
    ask(8, views.mix, expected.mix, all.mix);
    call::backward_to(views, mhla::Update::overwrite, variant, x);
    call::check_same_bits(some, expected);
  }
}

}  // namespace batches
