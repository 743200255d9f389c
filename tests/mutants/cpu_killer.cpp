// SPDX-License-Identifier: MIT
// The CPU backend against the oracle: forward and backward pass of every normalizer, on shapes
// whose extents are pairwise distinct and on tensors without one contiguous axis.
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
#include <vector>

#include "killer.hpp"

namespace {

using killer::expect;
using mhla::Index;
using mhla::Shape;
using mhla::Update;
using mhla::testing::HostTensor;

constexpr double tolerance = 2e-14;  // of the RMS of what the oracle says

/// Runs its tasks backwards, with slots in turn.
struct BackwardsExecutor {
  Index count;

  Index slots() const { return count; }
  template <class Task>
  void parallel_for(Index tasks, Task&& f) const {
    for (Index task = tasks - 1; task >= 0; --task) f(task, task % count);
  }
};

/// A tensor [batch, heads, tokens, dim] that lies in memory as [batch, tokens, heads, dim], with
/// every second element left out.
class Scattered {
 public:
  Scattered(Index batch, Index heads, Index tokens, Index dim)
      : memory_(batch, tokens, heads, 2 * dim), extent_{batch, heads, tokens, dim} {
    for (double& element : memory_.elements()) element = canary;
  }
  mhla::TensorView<double, 4> view() {
    const auto& m = memory_.view();
    return {m.data,
            {extent_[0], extent_[1], extent_[2], extent_[3]},
            {m.stride[0], m.stride[2], m.stride[1], 2}};
  }
  /// Whether nothing was written between the elements.
  bool gaps_untouched() const {
    for (std::size_t i = 1; i < memory_.elements().size(); i += 2)
      if (memory_.elements()[i] != canary) return false;
    return true;
  }

 private:
  static constexpr double canary = 12345;
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

/// Operands, and memory for the results, of one call.
struct Call {
  Scattered q, k, v, dy, y, dq, dk, dv;
  HostTensor<double, 3> mix, dmix;

  explicit Call(const Shape& s)
      : q(s.batch, s.heads, s.query_tokens, s.key_dim),
        k(s.batch, s.kv_heads, s.key_tokens, s.key_dim),
        v(s.batch, s.kv_heads, s.key_tokens, s.value_dim),
        dy(s.batch, s.heads, s.query_tokens, s.value_dim),
        y(s.batch, s.heads, s.query_tokens, s.value_dim),
        dq(s.batch, s.heads, s.query_tokens, s.key_dim),
        dk(s.batch, s.kv_heads, s.key_tokens, s.key_dim),
        dv(s.batch, s.kv_heads, s.key_tokens, s.value_dim),
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

void expect_close(Call& actual, Call& oracle, const std::string& what) {
  expect_close(actual.dq.view(), oracle.dq.view(), what + ": dq");
  expect_close(actual.dk.view(), oracle.dk.view(), what + ": dk");
  expect_close(actual.dv.view(), oracle.dv.view(), what + ": dv");
  expect_close(actual.dmix.view(), oracle.dmix.view(), what + ": dmix");
}

bool same_gradients(Call& a, Call& b) {
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
  forward(attention, serial, shape, call, &state);
  expect_close(call.y.view(), oracle.y.view(), name + ": y");
  forward(attention, many, shape, other);
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
  expect(call.gaps_untouched() && other.gaps_untouched(), name + ": gaps are not written");
}

template <class Normalizer>
using Image =
    mhla::Attention<mhla::Relu, mhla::Blocks2D, mhla::Bidirectional, Normalizer, mhla::AxialRotary>;
template <class Normalizer>
using Sequence = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional, Normalizer>;

/// Blocks of one size, which every normalizer takes.
template <class Normalizer>
void check_even(const std::string& name, const Normalizer& normalizer) {
  const Image<Normalizer> image{
      .blocks = {.grid = {8, 18}, .block = {2, 2}}, .normalizer = normalizer, .scale = 0.7};
  // 36 blocks: two groups of rows of the mixing matrix.
  check(name + ", image, grouped heads, a matrix per head", image,
        Shape{2, 6, 3, 144, 144, 4, 5, 6, 36, 36});

  Sequence<Normalizer> sequence{.blocks = {.block = 133}, .normalizer = normalizer};
  check(name + ", two tiles per block, a matrix larger than needed", sequence,
        Shape{1, 1, 1, 266, 266, 4, 3, 1, 4, 3});
  sequence.blocks.block = 2;
  check(name + ", more sequences than partial sums", sequence,
        Shape{67, 2, 1, 6, 6, 3, 4, 1, 3, 3});
  if constexpr (!std::is_same_v<Normalizer, mhla::Unnormalized>) {
    sequence.blocks.block = 4;
    sequence.feature_map.epsilon = 0;
    sequence.normalizer.epsilon = 0;
    check(name + ", zero denominators", sequence, Shape{1, 1, 1, 16, 16, 6, 5, 1, 4, 4},
          [](Call& call) {
            for (Index b = 0; b < 4; ++b) call.mix(0, 1, b) = 0;
            for (Index d = 0; d < 6; ++d) call.q.view()(0, 0, 7, d) = -1;
          });
  }
}

/// Blocks of different sizes, and keys of another geometry than the queries.
template <class Normalizer>
void check_uneven(const std::string& name, const Normalizer& normalizer) {
  check(name + ", ragged image",
        Image<Normalizer>{
            .blocks = {.grid = {7, 5}, .block = {3, 2}}, .normalizer = normalizer, .scale = 0.5},
        Shape{2, 3, 3, 35, 35, 4, 3, 3, 9, 9});
  // Sums over more than 256 blocks, which the products cut.
  check(name + ", blocks of one token",
        Sequence<Normalizer>{.blocks = {.block = 1}, .normalizer = normalizer},
        Shape{1, 1, 1, 259, 259, 3, 2, 1, 259, 259});
}

void check_cross_attention() {
  using Attention = mhla::Attention<mhla::Relu, mhla::Blocks3D, mhla::Bidirectional,
                                    mhla::MixedKeySum, mhla::AxialRotary>;
  check("ragged videos, cross-attention",
        Attention{.blocks = {.grid = {3, 4, 5}, .block = {1, 2, 2}},
                  .key_blocks = {.grid = {2, 5, 3}, .block = {1, 1, 2}}},
        Shape{1, 2, 2, 60, 30, 12, 11, 1, 18, 20});
}

void check_half_split_rotary() {
  using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Bidirectional,
                                    mhla::Unnormalized, mhla::HalfSplitRotary>;
  check("rotated sequence", Attention{.blocks = {.block = 5}, .scale = 0.5},
        Shape{1, 1, 1, 17, 17, 6, 5, 1, 4, 4});
}

void check_errors() {
  using mhla::ShapeError, mhla::WorkspaceError;
  using Attention = mhla::Attention<mhla::Relu, mhla::Blocks2D>;
  const Attention attention{.blocks = {.grid = {2, 3}, .block = {1, 3}}};
  const mhla::SerialExecutor serial;
  const Shape shape{1, 2, 1, 6, 6, 3, 3, 1, 2, 2};
  Call call(shape);
  const Index bytes = mhla::forward_workspace_size<double>(attention, shape, serial);
  const mhla::Workspace workspace(bytes);
  const auto run = [&](const Attention& variant, const auto& k, const auto& y,
                       mhla::WorkspaceView memory) {
    mhla::forward_into(variant, serial, call.q.view(), k, call.v.view(), call.mix.view(), y,
                       memory);
  };
  run(attention, call.k.view(), call.y.view(), workspace);
  killer::expect_throw<WorkspaceError>(
      [&] {
        run(attention, call.k.view(), call.y.view(), {workspace.data(), bytes - 1});
      },
      "a workspace that is a byte short");
  killer::expect_throw<ShapeError>([&] { run(attention, call.k.view(), call.q.view(), workspace); },
                                   "a result that overlaps an operand");
  auto narrow = call.k.view();
  narrow.extent[3] = 2;
  killer::expect_throw<ShapeError>([&] { run(attention, narrow, call.y.view(), workspace); },
                                   "keys of another dim");
  const Attention other_grid{.blocks = {.grid = {2, 2}, .block = {1, 2}}};
  killer::expect_throw<ShapeError>(
      [&] { run(other_grid, call.k.view(), call.y.view(), workspace); }, "a grid of another size");
}

}  // namespace

int main() {
  killer::run([] {
    check_even("MixedKeySum", mhla::MixedKeySum{});
    check_even("MixedKeySum, large epsilon", mhla::MixedKeySum{.epsilon = 0.25});
    check_even("MixedProduct", mhla::MixedProduct{});
    check_even("MixedProduct, large epsilon", mhla::MixedProduct{.epsilon = 0.25});
    check_even("Unnormalized", mhla::Unnormalized{});
    check_uneven("MixedKeySum", mhla::MixedKeySum{});
    check_uneven("Unnormalized", mhla::Unnormalized{});
    check_cross_attention();
    check_half_split_rotary();
    check_errors();
  });
}
