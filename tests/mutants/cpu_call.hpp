// SPDX-License-Identifier: MIT
// Calls of the CPU backend in a killer: on tensors without one contiguous axis and in fenced
// workspaces, against the oracle, on several executors, with every choice of what is asked for.
#pragma once

#include <cstdint>
#include <limits>
#include <mhla/core/executor.hpp>
#include <mhla/core/forward_state.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/policy/variant.hpp>
#include <mhla/reference/mhla.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>

#include "killer.hpp"

namespace killer {

using mhla::Index;
using mhla::Shape;
using mhla::Update;
using mhla::testing::HostTensor;

inline constexpr double tolerance = 2e-14;  // of the RMS of what the oracle says

/// Runs its tasks backwards, with slots in turn.
struct BackwardsExecutor {
  Index count;

  Index slots() const { return count; }
  template <class Task>
  void parallel_for(Index tasks, Task&& f) const {
    for (Index task = tasks - 1; task >= 0; --task) f(task, task % count);
  }
};

/// A tensor [batch, heads, tokens, dim] that lies in memory as [batch, tokens, heads, dim], of
/// which every `step`th element belongs to it.
class Scattered {
 public:
  Scattered(Index step, Index batch, Index heads, Index tokens, Index dim)
      : step_(step), memory_(batch, tokens, heads, step * dim), extent_{batch, heads, tokens, dim} {
    for (double& element : memory_.elements()) element = canary;
  }
  mhla::TensorView<double, 4> view() {
    const auto& m = memory_.view();
    return {m.data,
            {extent_[0], extent_[1], extent_[2], extent_[3]},
            {m.stride[0], m.stride[2], m.stride[1], step_}};
  }
  /// Whether nothing was written between the elements.
  bool gaps_untouched() const {
    for (std::size_t i = 0; i < memory_.elements().size(); ++i)
      if (i % static_cast<std::size_t>(step_) != 0 && memory_.elements()[i] != canary) return false;
    return true;
  }

 private:
  static constexpr double canary = 12345;
  Index step_;
  HostTensor<double, 4> memory_;
  Index extent_[4];
};

/// Memory of exactly `bytes`, full of NaNs, with a fence behind it.
class FencedWorkspace {
 public:
  explicit FencedWorkspace(Index bytes) : memory_(bytes + fence_bytes), bytes_(bytes) {
    auto* words = reinterpret_cast<double*>(memory_.data());
    for (Index i = 0; i < memory_.size() / Index{sizeof(double)}; ++i)
      words[i] = std::numeric_limits<double>::quiet_NaN();
    for (Index i = bytes; i < memory_.size(); ++i) memory_.data()[i] = std::byte{0x5a};
  }
  mhla::WorkspaceView view() const { return {memory_.data(), bytes_}; }
  bool fence_untouched() const {
    for (Index i = bytes_; i < memory_.size(); ++i)
      if (memory_.data()[i] != std::byte{0x5a}) return false;
    return true;
  }

 private:
  static constexpr Index fence_bytes = 4096;
  mhla::Workspace memory_;
  Index bytes_;
};

/// Operands, and memory for the results, of one call. With a `step` of 1 rows have no gaps, and are
/// read and written where they lie.
struct Call {
  Scattered q, k, v, dy, y, dq, dk, dv;
  HostTensor<double, 3> mix, dmix;

  explicit Call(const Shape& s, Index step = 2)
      : q(step, s.batch, s.heads, s.query_tokens, s.key_dim),
        k(step, s.batch, s.kv_heads, s.key_tokens, s.key_dim),
        v(step, s.batch, s.kv_heads, s.key_tokens, s.value_dim),
        dy(step, s.batch, s.heads, s.query_tokens, s.value_dim),
        y(step, s.batch, s.heads, s.query_tokens, s.value_dim),
        dq(step, s.batch, s.heads, s.query_tokens, s.key_dim),
        dk(step, s.batch, s.kv_heads, s.key_tokens, s.key_dim),
        dv(step, s.batch, s.kv_heads, s.key_tokens, s.value_dim),
        mix(mhla::testing::random_tensor<double>(mhla::testing::Uniform{0, 1}, 5, s.mix_heads,
                                                 s.mix_query_blocks, s.mix_key_blocks)),
        dmix(s.mix_heads, s.mix_query_blocks, s.mix_key_blocks) {
    const mhla::testing::Normal normal;
    fill_random(normal, 1, q.view());
    fill_random(normal, 2, k.view());
    fill_random(normal, 3, v.view());
    fill_random(normal, 4, dy.view());
  }
  mhla::GradientViews<double> gradients() { return {dq.view(), dk.view(), dv.view(), dmix.view()}; }
  /// What the gradients hold before a pass.
  void fill_gradients(double value) {
    const auto fill = [&](const auto& view) {
      mhla::testing::for_each_element([&](double& element) { element = value; }, view);
    };
    fill(dq.view());
    fill(dk.view());
    fill(dv.view());
    fill(dmix.view());
  }
  bool gaps_untouched() const {
    return q.gaps_untouched() && k.gaps_untouched() && v.gaps_untouched() && dy.gaps_untouched() &&
           y.gaps_untouched() && dq.gaps_untouched() && dk.gaps_untouched() && dv.gaps_untouched();
  }
};

template <int Rank>
void expect_close(const mhla::TensorView<double, Rank>& actual,
                  const mhla::TensorView<double, Rank>& expected, const std::string& what) {
  const auto comparison = mhla::testing::compare(actual, expected);
  expect(comparison.rms_ratio <= tolerance, what + " " + comparison.report());
}

inline void expect_close(Call& actual, Call& oracle, const std::string& what) {
  expect_close(actual.dq.view(), oracle.dq.view(), what + ": dq");
  expect_close(actual.dk.view(), oracle.dk.view(), what + ": dk");
  expect_close(actual.dv.view(), oracle.dv.view(), what + ": dv");
  expect_close(actual.dmix.view(), oracle.dmix.view(), what + ": dmix");
}

inline bool same_gradients(Call& a, Call& b) {
  using mhla::testing::bitwise_equal;
  return bitwise_equal(a.dq.view(), b.dq.view()) && bitwise_equal(a.dk.view(), b.dk.view()) &&
         bitwise_equal(a.dv.view(), b.dv.view()) && bitwise_equal(a.dmix.view(), b.dmix.view());
}

template <class V>
void forward(const V& attention, const mhla::ExecutorRef& executor, const Shape& shape, Call& call,
             mhla::ForwardState<double>* save = nullptr) {
  const FencedWorkspace workspace(mhla::forward_workspace_size<double>(attention, shape, executor));
  mhla::forward_into(attention, executor, call.q.view(), call.k.view(), call.v.view(),
                     call.mix.view(), call.y.view(), workspace.view(), save);
  expect(workspace.fence_untouched(), "forward stays within its workspace");
}

template <class V>
void backward(const V& attention, const mhla::ExecutorRef& executor, const Shape& shape, Call& call,
              Update update, const mhla::GradientViews<double>& gradients,
              const mhla::ForwardState<double>* saved = nullptr) {
  const FencedWorkspace workspace(
      mhla::backward_workspace_size<double>(attention, shape, executor));
  mhla::backward_into(attention, executor, call.q.view(), call.k.view(), call.v.view(),
                      call.mix.view(), call.dy.view(), gradients, update, workspace.view(), saved);
  expect(workspace.fence_untouched(), "backward stays within its workspace");
}

/// Both passes of one variant and shape: oracle, executors, saved state, accumulation, omission.
/// `change` edits the random operands.
template <class V>
void check(
    const std::string& name, const V& attention, const Shape& shape,
    void (*change)(Call&) = [](Call&) {}) {
  const mhla::SerialExecutor serial;
  const BackwardsExecutor many{7};
  Call oracle(shape), call(shape), other(shape);
  for (Call* c : {&oracle, &call, &other}) change(*c);

  mhla::reference::mhla_forward(attention, oracle.q.view(), oracle.k.view(), oracle.v.view(),
                                oracle.mix.view(), oracle.y.view());
  mhla::ForwardState<double> state;
  forward(attention, serial, shape, call);
  expect_close(call.y.view(), oracle.y.view(), name + ": y");
  forward(attention, many, shape, other, &state);
  expect(mhla::testing::bitwise_equal(call.y.view(), other.y.view()),
         name + ": y has the same bits on another executor");

  const auto oracle_backward = [&](Update update) {
    mhla::reference::mhla_backward(attention, oracle.q.view(), oracle.k.view(), oracle.v.view(),
                                   oracle.mix.view(), oracle.dy.view(), oracle.gradients(), update);
  };
  oracle_backward(Update::overwrite);
  call.fill_gradients(std::numeric_limits<double>::quiet_NaN());
  backward(attention, serial, shape, call, Update::overwrite, call.gradients());
  expect_close(call, oracle, name);

  backward(attention, many, shape, other, Update::overwrite, other.gradients());
  expect(same_gradients(call, other),
         name + ": the gradients have the same bits on another executor");
  other.fill_gradients(7);
  backward(attention, serial, shape, other, Update::overwrite, other.gradients(), &state);
  expect(same_gradients(call, other),
         name + ": the gradients have the same bits from a saved state");
  other.fill_gradients(7);
  for (int wanted = 0; wanted < 4; ++wanted) {
    mhla::GradientViews<double> one = other.gradients();
    one.query.wanted = wanted == 0;
    one.key.wanted = wanted == 1;
    one.value.wanted = wanted == 2;
    one.mix.wanted = wanted == 3;
    backward(attention, serial, shape, other, Update::overwrite, one);
  }
  expect(same_gradients(call, other), name + ": the gradients have the same bits one by one");

  for (Call* c : {&oracle, &call}) c->fill_gradients(0.5);
  oracle_backward(Update::accumulate);
  backward(attention, serial, shape, call, Update::accumulate, call.gradients());
  expect_close(call, oracle, name + ": accumulated");
  Call dense(shape, 1);
  change(dense);
  forward(attention, serial, shape, dense);
  expect(mhla::testing::bitwise_equal(other.y.view(), dense.y.view()),
         name + ": y has the same bits where rows have no gaps");
  backward(attention, serial, shape, dense, Update::overwrite, dense.gradients());
  expect(same_gradients(other, dense),
         name + ": the gradients have the same bits where rows have no gaps");
  dense.fill_gradients(0.5);
  backward(attention, serial, shape, dense, Update::accumulate, dense.gradients());
  expect(same_gradients(call, dense),
         name + ": the accumulated gradients have the same bits where rows have no gaps");
  expect(call.gaps_untouched() && other.gaps_untouched(), name + ": gaps are not written");
}

}  // namespace killer
