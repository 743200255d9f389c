// SPDX-License-Identifier: MIT
// Stages that cannot run: each throws the error that names the argument, and has written nothing.
#include <cstddef>
#include <string>
#include <utility>

#include "tests/stages/case.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;
using namespace staged;

template <class T, int Rank>
void shorten(TensorView<T, Rank>& view, int axis) {
  --view.extent[static_cast<std::size_t>(axis)];
}

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

#if !defined(MHLA_TEST_CUDA)  // which says so by CudaError
TEST_CASE("stages refuse elements without an address") {
  for (const auto stage : every_stage)
    CHECK(says(message<WorkspaceError>(stage, [](Case& c) { c.workspace.data = nullptr; }),
               "mhla: workspace: has ", " bytes but a null address"));
  const auto spoilt = [](void (Case::*stage)(), const auto& spoil) {
    return message<ShapeError>(stage, spoil);
  };
  const std::string rule = " elements but a null address";
  CHECK(says(spoilt(&Case::summarize, [](Case& c) { c.operands.k.data = nullptr; }),
             "mhla: k: has ", rule));
  CHECK(says(spoilt(&Case::read_out, [](Case& c) { c.y_view.data = nullptr; }), "mhla: y: has ",
             rule));
  CHECK(says(spoilt(&Case::read_out_gradient, [](Case& c) { c.dy.data = nullptr; }),
             "mhla: dy: has ", rule));
  CHECK(says(spoilt(&Case::mix_gradient, [](Case& c) { c.operands.mix.data = nullptr; }),
             "mhla: mix: has ", rule));
  CHECK(says(spoilt(&Case::summarize_gradient, [](Case& c) { c.to.key.view.data = nullptr; }),
             "mhla: dk: has ", rule));
}
#endif

TEST_CASE("stages need a shape that fits the variant") {
  Case c;
  mhla::Shape shape = c.x.shape();
  shape.mix_key_blocks = 3;
  CHECK(
      says(error_message<ShapeError>([&] { backend::Stages<Case::V, float>(c.attention, shape); }),
           "mhla: mix: axis key blocks is 3"));
}

TEST_CASE("stages refuse blocks whose tokens tensors do not hold") {
  Case c;
  const auto refusal = [&](const auto& call) { return error_message<ShapeError>(call); };
  CHECK(says(refusal([&] { c.stages.hold({1, 4}, {1, 4}); }), "queries: there are no blocks [1"));
  CHECK(says(refusal([&] { c.stages.hold({1, 2}, {0, 5}); }), "keys: there are no blocks [0"));
  CHECK(says(refusal([&] {
               c.stages.hold({1, 2}, {0, 2});
             }),
             "keys: under Causal, tensors of keys hold the blocks that those of queries do"));
  const auto short_by_a_block = [](Case& of) { of.stages.hold({2, 2}, {2, 2}); };
  for (const auto stage : {&Case::summarize, &Case::summarize_gradient})
    CHECK(says(message<ShapeError>(stage, short_by_a_block),
               "mhla: keys: tensors hold blocks [2, 4), not all of [1, 3)"));
  for (const auto stage : {&Case::read_out, &Case::read_out_gradient})
    CHECK(says(message<ShapeError>(stage, short_by_a_block),
               "mhla: queries: tensors hold blocks [2, 4), not all of [1, 3)"));
  CHECK(says(message<ShapeError>(&Case::read_out,
                                 [](Case& of) {
                                   of.stages.hold({0, 4}, {0, 4});
                                 }),
             "mhla: q: axis tokens is 8 but must be 14"));
}
