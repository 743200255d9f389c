// SPDX-License-Identifier: MIT
// Stages by a recurrence that cannot run, and the memory that they take.
#include <algorithm>
#include <cstdint>
#include <mhla/packed.hpp>
#include <mhla/stages.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cpu/executors.hpp"
#include "tests/stages/case.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;
using staged::message;

// Blocks [16, 48) of 50 by a recurrence of two states.
struct RecurrentCase {
  using V =
      Attention<Relu, Blocks1D, Causal, mhla::MixedKeySum, mhla::NoRotation, mhla::RecurrentMixing>;
  using Rows = call::HostTensor<float, 2>;
  static constexpr float untouched = -7;

  V attention{.blocks = {.block = 2}, .mixing = {.states = 2}};
  mhla::Stages<V, float> stages{attention, call::fitted(attention, {1, 2, 1, 100, 100, 4, 3})};
  mhla::SerialExecutor executor;
  BlockRange blocks{16, 32};
  call::Operands<float> part = call::operands<float>(attention, {1, 2, 1, 64, 64, 4, 3, 1, 33, 7});
  Rows summary_memory{32, stages.summary_size()};
  Rows mixture_memory{32, stages.mixture_size()};
  Rows state_memory{2, stages.mixture_size()};
  Rows behind_memory = untouched_rows(2, stages.mixture_size());
  Rows before_memory = untouched_rows(2, stages.mixture_size());
  Rows gradient_memory = untouched_rows(32, stages.summary_size());
  call::HostTensor<float, 4> y = part.dy;
  call::HostTensor<float, 3> dmix_memory = part.mix;
  mhla::Workspace memory{
      std::max({size(Stage::read_out), size(Stage::advance), size(Stage::advance_gradient)})};

  TensorView<const float, 3> mix = part.mix.view();
  TensorView<const float, 2> summaries = summary_memory.view();
  TensorView<const float, 2> states = state_memory.view();
  TensorView<const float, 2> mixtures = mixture_memory.view();
  TensorView<float, 2> after = behind_memory.view();
  TensorView<float, 2> before = before_memory.view();
  TensorView<float, 2> summary_gradients = gradient_memory.view();
  TensorView<float, 3> dmix = dmix_memory.view();
  mhla::WorkspaceView workspace = memory;

  RecurrentCase() {
    for (Index i = 0; i < y.view().size(); ++i) y.view().element(i) = untouched;
    for (Index i = 0; i < dmix.size(); ++i) dmix.element(i) = untouched;
  }
  static Rows untouched_rows(Index rows, Index columns) {
    Rows all(rows, columns);
    for (Index i = 0; i < all.view().size(); ++i) all.view().element(i) = untouched;
    return all;
  }
  Index size(Stage stage) const { return stages.workspace_size(stage, executor, blocks); }

  void advance() { stages.advance(executor, blocks, mix, {summaries, states}, after, workspace); }
  void read_out() {
    stages.read_out(executor, blocks, {part.q.view(), part.k.view(), part.v.view(), mix},
                    {summaries, states}, y.view(), workspace);
  }
  void advance_gradient() {
    stages.advance_gradient(executor, blocks, mix, {summaries, states}, mixtures, {after, before},
                            summary_gradients, dmix, Update::overwrite, workspace);
  }
  bool wrote() const {
    bool any = false;
    const auto look = [&](const auto& view) {
      for (Index i = 0; i < view.size(); ++i) any = any || view.element(i) != untouched;
    };
    look(y.view());
    look(behind_memory.view());
    look(before_memory.view());
    look(gradient_memory.view());
    look(dmix_memory.view());
    return any;
  }
};

template <class T, int Rank>
void shorten(TensorView<T, Rank>& view, int axis) {
  --view.extent[static_cast<std::size_t>(axis)];
}

}  // namespace

TEST_CASE("stages of a recurrence refuse what does not fit") {
  using R = RecurrentCase;
  const auto spoilt = [](void (R::*stage)(), const auto& spoil) {
    return message<ShapeError>(stage, spoil);
  };
  for (const auto stage : {&R::advance, &R::read_out, &R::advance_gradient}) {
    R c;
    (c.*stage)();
    CHECK(c.wrote());
    CHECK(says(spoilt(stage, [](R& r) { r.blocks.first = 15; }),
               "mhla: blocks: RecurrentMixing takes 16 blocks at a time: [15, 47) must begin at a "
               "multiple of 16, and end at one or with the sequence"));
    CHECK(says(spoilt(stage, [](R& r) { shorten(r.mix, 1); }),
               "mhla: mix: axis query blocks is 32 but must be 33"));
    CHECK(says(spoilt(stage, [](R& r) { shorten(r.mix, 2); }),
               "mhla: mix: axis key blocks is 6 but must be 7"));
    CHECK(says(spoilt(stage, [](R& r) { shorten(r.summaries, 0); }),
               "mhla: summaries: axis blocks is 31 but must be 32"));
    CHECK(says(spoilt(stage, [](R& r) { shorten(r.states, 0); }),
               "mhla: states: axis states is 1 but must be 2"));
    CHECK(
        says(spoilt(stage, [](R& r) { shorten(r.states, 1); }), "mhla: states: axis elements is"));
    CHECK(says(message<WorkspaceError>(stage, [](R& r) { r.workspace.size = 64; }),
               "mhla::Stages: workspace: "));
  }
  CHECK(says(spoilt(&R::advance, [](R& r) { shorten(r.after, 0); }),
             "mhla: after: axis states is 1 but must be 2"));
  CHECK(says(spoilt(&R::advance, [](R& r) { r.states.data = r.after.data; }),
             "mhla: after: shares memory with states"));
  CHECK(says(spoilt(&R::advance,
                    [](R& r) {
                      r.blocks = {48, 2};
                      r.mix.extent[1] = r.summaries.extent[0] = 2;
                    }),
             "mhla: blocks: [48, 50) ends the sequence: no blocks follow that receive states"));
  CHECK(says(spoilt(&R::advance_gradient, [](R& r) { shorten(r.after, 0); }),
             "mhla: after: axis states is 1 but must be 2"));
  CHECK(says(spoilt(&R::advance_gradient, [](R& r) { shorten(r.before, 0); }),
             "mhla: before: axis states is 1 but must be 2"));
  CHECK(says(spoilt(&R::advance_gradient, [](R& r) { shorten(r.mixtures, 0); }),
             "mhla: mixtures: axis blocks is 31 but must be 32"));
  CHECK(says(spoilt(&R::advance_gradient, [](R& r) { shorten(r.dmix, 1); }),
             "mhla: dmix: axis query blocks is 32 but must be 33"));
  CHECK(says(spoilt(&R::advance_gradient, [](R& r) { r.before.data = r.after.data; }),
             "mhla: before: shares memory with after"));
}

TEST_CASE("parts of a recurrence are whole chunks") {
  const RecurrentCase c;
  const auto sizing = [&](const BlockRange& blocks) {
    return error_message<ShapeError>(
        [&] { c.stages.workspace_size(Stage::advance, c.executor, blocks); });
  };
  CHECK(says(sizing({15, 33}), "[15, 48) must begin at a multiple of 16"));
  CHECK(says(sizing({16, 31}), "[16, 47) must begin at a multiple of 16, and end at one"));
  CHECK(c.stages.workspace_size(Stage::advance, c.executor, {16, 34}) > 0);
  CHECK(c.stages.workspace_size(Stage::advance, c.executor, {50, 0}) > 0);
}

TEST_CASE("of packed sequences, whole chunks of each") {
  const std::vector<std::int32_t> offsets{0, 10, 10, 110};  // 5, 0 and 50 blocks
  const auto attention = mhla::packed(RecurrentCase::V{.blocks = {.block = 2}}, offsets);
  const Stages<std::remove_cv_t<decltype(attention)>, float> stages(
      attention, {1, 2, 1, 110, 110, 4, 3, 1, 50, 4});
  const auto sizing = [&](const BlockRange& blocks) {
    return error_message<ShapeError>(
        [&] { stages.workspace_size(Stage::advance, mhla::SerialExecutor(), blocks); });
  };
  CHECK(says(sizing({4, 1}), "[4, 5) must begin at a multiple of 16"));
  CHECK(says(sizing({0, 20}), "[0, 15) must begin at a multiple of 16, and end at one"));
  for (const BlockRange& blocks : {BlockRange{0, 5}, BlockRange{5, 16}, BlockRange{21, 34}})
    CHECK(says(sizing(blocks), "nothing was thrown"));
}
