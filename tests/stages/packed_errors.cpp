// SPDX-License-Identifier: MIT
// Stages of packed sequences refuse, before any of the sequences writes, what one would refuse.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "tests/stages/case.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;
using namespace staged;
using C = PackedCase;

constexpr Index most = std::numeric_limits<Index>::max();

}  // namespace

TEST_CASE("the stages of the packed case run as they are") {
  for (const auto stage : every_stage_of<C>) {
    C c;
    (c.*stage)();
    CHECK(c.wrote());
  }
}

TEST_CASE("packed stages refuse blocks that are not there") {
  for (const BlockRange& blocks : {BlockRange{3, 2}, BlockRange{-1, 2}, BlockRange{1, -1}})
    for (const auto stage : every_stage_of<C>)
      CHECK(says(message<ShapeError>(stage, [&](C& c) { c.blocks = blocks; }),
                 "there are no blocks [", "the sequence has 4"));
  const C c;
  for (const BlockRange& blocks :
       {BlockRange{5, 2}, BlockRange{-1, 2}, BlockRange{most, most}, BlockRange{1, -1}}) {
    const auto refused = [](const auto& run) {
      CHECK(says(error_message<ShapeError>(run), "there are no blocks [", "the sequence has 4"));
    };
    refused([&] { c.stages.query_blocks(blocks); });
    refused([&] { c.stages.key_blocks(blocks); });
    if (blocks.count > 0) refused([&] { c.stages.block_in_sequence(blocks.first); });
  }
  CHECK(says(error_message<ShapeError>([&] { c.size(Stage::read_out); }), "nothing was thrown"));
  for (const Stage stage : {Stage::summarize, Stage::mix_gradient}) {
    const auto size = [&](const BlockRange& blocks, const BlockRange& keys) {
      return error_message<ShapeError>(
          [&] { c.stages.workspace_size(stage, c.executor, blocks, keys); });
    };
    CHECK(says(size({2, 3}, {0, 1}), "there are no blocks [2, 2 + 3)"));
    if (stage == Stage::mix_gradient)
      CHECK(says(size({0, 1}, {4, 1}), "there are no blocks [4, 4 + 1)"));
  }
}

TEST_CASE("packed stages refuse tensors of other tokens and parts of mix") {
  const auto spoilt = [](void (C::*stage)(), const auto& spoil) {
    return message<ShapeError>(stage, spoil);
  };
  CHECK(says(spoilt(&C::summarize, [](C& c) { --c.operands.k.extent[2]; }),
             "mhla: k: axis tokens is 7 but must be 8"));
  CHECK(says(spoilt(&C::read_out, [](C& c) { --c.y_view.extent[2]; }),
             "mhla: y: axis tokens is 7 but must be 8"));
  CHECK(says(spoilt(&C::read_out_gradient, [](C& c) { --c.to.query.view.extent[2]; }),
             "mhla: dq: axis tokens is 7 but must be 8"));
  CHECK(says(spoilt(&C::summarize_gradient, [](C& c) { --c.to.value.view.extent[2]; }),
             "mhla: dv: axis tokens is 7 but must be 8"));
  for (const auto stage : {&C::read_out, &C::mix_gradient, &C::summarize_gradient})
    CHECK(says(spoilt(stage, [](C& c) { --c.operands.mix.extent[1]; }),
               "mhla: mix: axis query blocks is 1 but must be 2"));
  CHECK(says(spoilt(&C::read_out_gradient, [](C& c) { --c.to.mix.view.extent[2]; }),
             "mhla: dmix: axis key blocks is 1 but must be 2"));
}

TEST_CASE("packed stages refuse rows of other blocks") {
  const auto spoilt = [](void (C::*stage)(), const auto& spoil) {
    return message<ShapeError>(stage, spoil);
  };
  // From the first block of the first sequence on, to the last that queries see, or its sequence's.
  CHECK(says(spoilt(&C::read_out, [](C& c) { c.summaries.extent[0] = 1; }),
             "mhla: summaries: axis blocks is 1 but must be 2 or more", "at most 4"));
  CHECK(says(spoilt(&C::read_out, [](C& c) { c.summaries.extent[0] = 5; }),
             "mhla: summaries: axis blocks is 5 but must be 2 or more", "at most 4"));
  CHECK(says(spoilt(&C::read_out_gradient, [](C& c) { --c.left.denominators.extent[0]; }),
             "mhla: denominators: axis blocks is 1 but must be 2"));
  CHECK(says(spoilt(&C::mix_gradient, [](C& c) { --c.left.mixtures.extent[0]; }),
             "mhla: mixtures: axis blocks is 1 but must be 2"));
  CHECK(says(spoilt(&C::summarize_gradient, [](C& c) { --c.summary_gradients.extent[0]; }),
             "mhla: summary_gradients: axis blocks is 1 but must be 2"));
}

TEST_CASE("packed stages refuse results that share memory") {
  // y of one sequence, summaries of the other.
  CHECK(says(
      message<ShapeError>(&C::read_out,
                          [](C& c) { c.summaries.data = c.y_view.data + 5 * c.y_view.stride[2]; }),
      "mhla: y: shares memory with summaries"));
  CHECK(says(message<ShapeError>(
                 &C::summarize,
                 [](C& c) { c.summaries.data = reinterpret_cast<float*>(c.offsets.data()) - 3; }),
             "mhla: summaries: shares memory with offsets"));
}

TEST_CASE("packed stages refuse workspaces that are too small") {
  const std::pair<void (C::*)(), Stage> stages[] = {
      {&C::summarize, Stage::summarize},
      {&C::read_out, Stage::read_out},
      {&C::read_out_gradient, Stage::read_out_gradient},
      {&C::mix_gradient, Stage::mix_gradient},
      {&C::summarize_gradient, Stage::summarize_gradient}};
  for (const auto& [call, stage] : stages)
    CHECK(says(
        message<WorkspaceError>(call, [of = stage](C& c) { c.workspace.size = c.size(of) - 1; }),
        std::string("mhla::") + backend::name_of_stages + ": workspace: ",
        "Stages::workspace_size says how many"));
}

TEST_CASE("packed stages need offsets that fit") {
  C c;
  const auto text = [&] {
    return error_message<ShapeError>(
        [&] { backend::Stages<C::V, float>(c.attention, c.x.shape()); });
  };
  c.offsets.back() = 13;
  CHECK(says(text(), "mhla: offsets[3] is 13 but must be 14"));
  c.offsets[1] = 14;
  CHECK(says(text(), "mhla: offsets[2] is 8, less than the 14 before it"));
}
