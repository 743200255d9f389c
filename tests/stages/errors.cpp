// SPDX-License-Identifier: MIT
// Stages that cannot run: each throws the error that names the argument, and has written nothing.
#include <cstddef>
#include <string>
#include <utility>

#include "tests/cpu/call.hpp"
#include "tests/stages/backend.hpp"
#include "tests/support/error_message.hpp"

namespace {

using mhla::Attention;
using mhla::BlockRange;
using mhla::Blocks1D;
using mhla::Causal;
using mhla::Index;
using mhla::Relu;
using mhla::ShapeError;
using mhla::skip;
using mhla::Stage;
using mhla::TensorView;
using mhla::Update;
using mhla::WorkspaceError;

// Blocks [1, 3) of 4, the last of which is ragged, with all that their stages take.
struct Case {
  using V = Attention<Relu, Blocks1D, Causal>;
  static constexpr float untouched = -7;

  V attention{.blocks = {.block = 4}};
  call::Operands<float> x = call::operands<float>(attention, {2, 4, 2, 14, 14, 3, 5});
  backend::Stages<V, float> stages{attention, x.shape()};
  backend::Device executor = backend::device();
  BlockRange blocks{1, 2};
  call::Operands<float> part = call::operands<float>(attention, {2, 4, 2, 8, 8, 3, 5, 1, 2, 4});
  call::HostTensor<float, 4> y = part.dy;
  call::Gradients<float> gradients{part};
  call::HostTensor<float, 2> summary_memory{4, stages.summary_size()};
  call::HostTensor<float, 2> gradient_memory{2, stages.summary_size()};
  call::HostTensor<float, 2> mixture_memory{2, stages.mixture_size()};
  call::HostTensor<float, 2> denominator_memory{2, stages.denominator_size()};
  mhla::Workspace memory{
      std::max({size(Stage::summarize), size(Stage::read_out), size(Stage::read_out_gradient),
                size(Stage::mix_gradient), size(Stage::summarize_gradient)})};

  mhla::OperandViews<float> operands{part.q.view(), part.k.view(), part.v.view(), part.mix.view()};
  TensorView<const float, 4> dy = part.dy.view();
  TensorView<float, 4> y_view = y.view();
  TensorView<float, 2> summaries = summary_memory.view();
  TensorView<float, 2> summary_gradients = gradient_memory.view();
  mhla::QueryRows<float> left{mixture_memory.view(), denominator_memory.view()};
  mhla::GradientViews<float> to = gradients.views();
  mhla::WorkspaceView workspace = memory;

  Case() {
    const auto fill = [](const auto& view) {
      for (Index i = 0; i < view.size(); ++i) view.element(i) = untouched;
    };
    fill(y_view);
    fill(to.query.view);
    fill(to.key.view);
    fill(to.value.view);
    fill(to.mix.view);
    for (auto* rows : {&summary_memory, &gradient_memory, &mixture_memory, &denominator_memory})
      fill(rows->view());
  }
  Index size(Stage stage) const { return stages.workspace_size(stage, executor, blocks, blocks); }

  void summarize() {
    stages.summarize(executor, blocks, operands.k, operands.v, rows_of(summaries, {0, 2}),
                     workspace);
  }
  void read_out() { stages.read_out(executor, blocks, operands, summaries, y_view, workspace); }
  void read_out_gradient() {
    stages.read_out_gradient(executor, blocks, operands, summaries, dy, to, Update::overwrite, left,
                             workspace);
  }
  void mix_gradient() {
    stages.mix_gradient(executor, blocks, blocks, columns_of(operands.mix, blocks), left.mixtures,
                        summary_gradients, workspace);
  }
  void summarize_gradient() {
    stages.summarize_gradient(executor, blocks, operands, summary_gradients, dy, left.denominators,
                              to, Update::overwrite, workspace);
  }

  bool wrote() const {
    bool any = false;
    const auto look = [&](const auto& view) {
      for (Index i = 0; i < view.size(); ++i) any = any || view.element(i) != untouched;
    };
    look(y.view());
    look(gradients.query.view());
    look(gradients.key.view());
    look(gradients.value.view());
    look(gradients.mix.view());
    look(summary_memory.view());
    look(gradient_memory.view());
    look(mixture_memory.view());
    look(denominator_memory.view());
    return any;
  }
};

// What a stage says of a case that was spoilt.
template <class Error, class Spoil>
std::string message(void (Case::*stage)(), const Spoil& spoil) {
  Case c;
  spoil(c);
  const std::string text = error_message<Error>([&] { (c.*stage)(); });
  CHECK_FALSE(c.wrote());
  return text;
}

template <class T, int Rank>
void shorten(TensorView<T, Rank>& view, int axis) {
  --view.extent[static_cast<std::size_t>(axis)];
}

constexpr auto every_stage = {&Case::summarize, &Case::read_out, &Case::read_out_gradient,
                              &Case::mix_gradient, &Case::summarize_gradient};

}  // namespace

TEST_CASE("the stages of the case run as they are") {
  for (const auto stage : every_stage) {
    Case c;
    (c.*stage)();
    CHECK(c.wrote());
  }
}

TEST_CASE("stages refuse blocks that are not there") {
  for (const BlockRange& blocks : {BlockRange{3, 2}, BlockRange{-1, 2}, BlockRange{1, -1}})
    for (const auto stage : every_stage)
      CHECK(says(message<ShapeError>(stage, [&](Case& c) { c.blocks = blocks; }),
                 "there are no blocks [", "the sequence has 4"));
}

TEST_CASE("stages refuse tensors of other tokens") {
  const auto spoilt = [](void (Case::*stage)(), const auto& spoil) {
    return message<ShapeError>(stage, spoil);
  };
  CHECK(says(spoilt(&Case::summarize, [](Case& c) { shorten(c.operands.k, 2); }),
             "mhla: k: axis tokens is 7 but must be 8"));
  CHECK(says(spoilt(&Case::summarize, [](Case& c) { shorten(c.operands.v, 3); }),
             "mhla: v: axis dim is 4 but must be 5"));
  CHECK(says(spoilt(&Case::read_out, [](Case& c) { shorten(c.operands.q, 2); }),
             "mhla: q: axis tokens is 7 but must be 8"));
  CHECK(says(spoilt(&Case::read_out, [](Case& c) { shorten(c.operands.k, 1); }),
             "mhla: k: axis heads is 1 but must be 2"));
  CHECK(says(spoilt(&Case::read_out, [](Case& c) { shorten(c.operands.mix, 1); }),
             "mhla: mix: axis query blocks is 1 but must be 2"));
  CHECK(says(spoilt(&Case::read_out, [](Case& c) { shorten(c.y_view, 2); }),
             "mhla: y: axis tokens is 7 but must be 8"));
  CHECK(says(spoilt(&Case::read_out_gradient, [](Case& c) { shorten(c.dy, 0); }),
             "mhla: dy: axis batch is 1 but must be 2"));
  CHECK(says(spoilt(&Case::read_out_gradient, [](Case& c) { shorten(c.to.query.view, 2); }),
             "mhla: dq: axis tokens is 7 but must be 8"));
  CHECK(says(spoilt(&Case::read_out_gradient, [](Case& c) { shorten(c.to.mix.view, 2); }),
             "mhla: dmix: axis key blocks is 3 but must be 4"));
  CHECK(says(spoilt(&Case::summarize_gradient, [](Case& c) { shorten(c.operands.q, 2); }),
             "mhla: q: axis tokens is 7 but must be 8"));
  CHECK(says(spoilt(&Case::summarize_gradient, [](Case& c) { shorten(c.to.key.view, 2); }),
             "mhla: dk: axis tokens is 7 but must be 8"));
  CHECK(says(spoilt(&Case::summarize_gradient, [](Case& c) { shorten(c.to.value.view, 2); }),
             "mhla: dv: axis tokens is 7 but must be 8"));
}

TEST_CASE("stages refuse rows of other blocks") {
  const auto spoilt = [](void (Case::*stage)(), const auto& spoil) {
    return message<ShapeError>(stage, spoil);
  };
  CHECK(says(spoilt(&Case::read_out, [](Case& c) { c.summaries.extent[0] = 1; }),
             "mhla: summaries: axis blocks is 1 but must be 2 or more", "at most 4"));
  CHECK(says(spoilt(&Case::read_out, [](Case& c) { c.summaries.extent[0] = 5; }),
             "mhla: summaries: axis blocks is 5 but must be 2 or more", "at most 4"));
  CHECK(says(spoilt(&Case::summarize, [](Case& c) { shorten(c.summaries, 1); }),
             "mhla: summaries: axis elements is"));
  CHECK(says(spoilt(&Case::summarize, [](Case& c) { c.summaries.stride[1] = 2; }),
             "mhla: summaries: axis elements' stride is 2 but must be 1"));
  CHECK(says(spoilt(&Case::read_out_gradient, [](Case& c) { shorten(c.left.mixtures, 0); }),
             "mhla: mixtures: axis blocks is 1 but must be 2"));
  CHECK(says(spoilt(&Case::mix_gradient, [](Case& c) { shorten(c.left.mixtures, 1); }),
             "mhla: mixtures: axis elements is"));
  CHECK(says(spoilt(&Case::mix_gradient, [](Case& c) { shorten(c.summary_gradients, 0); }),
             "mhla: summary_gradients: axis blocks is 1 but must be 2"));
  CHECK(says(spoilt(&Case::summarize_gradient, [](Case& c) { shorten(c.left.denominators, 0); }),
             "mhla: denominators: axis blocks is 1 but must be 2"));
}

TEST_CASE("stages refuse results that share memory") {
  CHECK(says(
      message<ShapeError>(&Case::summarize, [](Case& c) { c.operands.k.data = c.summaries.data; }),
      "mhla: summaries: shares memory with k"));
  CHECK(
      says(message<ShapeError>(&Case::read_out, [](Case& c) { c.summaries.data = c.y_view.data; }),
           "mhla: y: shares memory with summaries"));
  CHECK(says(message<ShapeError>(&Case::read_out_gradient,
                                 [](Case& c) { c.left.denominators.data = c.left.mixtures.data; }),
             "mhla: mixtures: shares memory with denominators"));
  CHECK(says(message<ShapeError>(&Case::mix_gradient,
                                 [](Case& c) { c.left.mixtures.data = c.summary_gradients.data; }),
             "mhla: summary_gradients: shares memory with mixtures"));
  CHECK(says(message<ShapeError>(&Case::summarize_gradient,
                                 [](Case& c) { c.to.key.view.data = c.to.value.view.data; }),
             "mhla: dk: shares memory with dv"));
}

TEST_CASE("stages refuse workspaces that are too small") {
  const std::pair<void (Case::*)(), Stage> stages[] = {
      {&Case::summarize, Stage::summarize},
      {&Case::read_out, Stage::read_out},
      {&Case::read_out_gradient, Stage::read_out_gradient},
      {&Case::mix_gradient, Stage::mix_gradient},
      {&Case::summarize_gradient, Stage::summarize_gradient}};
  for (const auto& [call, stage] : stages)
    CHECK(says(
        message<WorkspaceError>(call, [of = stage](Case& c) { c.workspace.size = c.size(of) - 1; }),
        std::string("mhla::") + backend::name_of_stages + ": workspace: ",
        "Stages::workspace_size says how many"));
}

TEST_CASE("stages need a shape that fits the variant") {
  Case c;
  mhla::Shape shape = c.x.shape();
  shape.mix_key_blocks = 3;
  CHECK(
      says(error_message<ShapeError>([&] { backend::Stages<Case::V, float>(c.attention, shape); }),
           "mhla: mix: axis key blocks is 3"));
}
