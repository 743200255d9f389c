// SPDX-License-Identifier: MIT
// Masks that do not fit a stage's tokens, or what other stages were told of them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/stages/case.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;
using staged::Case;

template <class T, int Rank>
void shorten(TensorView<T, Rank>& view, int axis) {
  --view.extent[static_cast<std::size_t>(axis)];
}

// The case with masks [2, 8], which every stage is given.
struct PaddedCase : Case {
  call::HostTensor<std::uint8_t, 2> mask{2, 8};
  std::vector<Index> used{0, 0};
  mhla::StageMasks masks{{mask.view(), mask.view()}, {}, {}};
  mhla::Workspace padded_memory;

  PaddedCase() {
    for (Index t = 0; t < 6; ++t) mask(1, t) = 1;  // block 1, and a half of 2
    stages.count_used_queries(blocks, mask.view(), {used.data(), 2});
    masks.query_blocks = masks.key_blocks = {used.data(), 2};
    Index bytes = 0;
    for (const Stage stage : {Stage::summarize, Stage::read_out, Stage::read_out_gradient,
                              Stage::mix_gradient, Stage::summarize_gradient})
      bytes = std::max(bytes, stages.padded(masks).workspace_size(stage, executor, blocks, blocks));
    padded_memory = mhla::Workspace(bytes);
    workspace = padded_memory;
  }
  void run(Stage stage) {
    const auto padded = stages.padded(masks);
    if (stage == Stage::summarize)
      padded.summarize(executor, blocks, operands.k, operands.v, rows_of(summaries, {0, 2}),
                       workspace);
    if (stage == Stage::read_out)
      padded.read_out(executor, blocks, operands, summaries, y_view, workspace);
    if (stage == Stage::read_out_gradient)
      padded.read_out_gradient(executor, blocks, operands, summaries, dy, to, Update::overwrite,
                               left, workspace);
    if (stage == Stage::mix_gradient)
      padded.mix_gradient(executor, blocks, blocks, columns_of(operands.mix, blocks), left.mixtures,
                          summary_gradients, workspace);
    if (stage == Stage::summarize_gradient)
      padded.summarize_gradient(executor, blocks, operands, summary_gradients, dy,
                                left.denominators, to, Update::overwrite, workspace);
  }
};

template <class Spoil>
std::string padded_message(Stage stage, const Spoil& spoil) {
  PaddedCase c;
  spoil(c);
  const std::string text = error_message<ShapeError>([&] { c.run(stage); });
  CHECK_FALSE(c.wrote());
  return text;
}

}  // namespace

TEST_CASE("stages of a padded batch refuse masks of other tokens") {
  for (const Stage stage : {Stage::read_out, Stage::read_out_gradient, Stage::summarize_gradient}) {
    PaddedCase c;
    c.run(stage);
    CHECK(c.wrote());
    CHECK(says(padded_message(stage, [](PaddedCase& p) { shorten(p.masks.tokens.query, 1); }),
               "mhla: masks.query: axis tokens is 7 but must be 8", "a mask is [batch, tokens]"));
    CHECK(says(padded_message(stage, [](PaddedCase& p) { p.masks.tokens.key = {}; }),
               "queries and keys need one mask"));
  }
  CHECK(
      says(padded_message(Stage::summarize, [](PaddedCase& p) { shorten(p.masks.tokens.key, 0); }),
           "mhla: masks.key: axis batch is 1 but must be 2"));
  for (const Stage stage : {Stage::summarize, Stage::read_out, Stage::read_out_gradient,
                            Stage::mix_gradient, Stage::summarize_gradient}) {
    CHECK(says(padded_message(stage, [](PaddedCase& p) { p.masks.query_blocks = {}; }),
               "mhla: masks.query_blocks: axis batch is 0 but must be 2"));
    CHECK(says(padded_message(stage, [](PaddedCase& p) { p.used[0] = 5; }),
               "mhla: masks.query_blocks[0] is 5 but must be at least 0", "at most 4"));
    const bool tokens = stage != Stage::mix_gradient;
    CHECK(says(padded_message(stage, [&](PaddedCase& p) { p.used[1] = tokens ? 2 : -1; }),
               "blocks[1] is ",
               tokens ? "must be at least 3, by the mask of blocks [1, 3)" : "must be at least 0"));
  }
}

TEST_CASE("counting the blocks that a mask keeps needs its tokens") {
  PaddedCase c;
  const auto counting = [&](const BlockRange& blocks, Index items) {
    return error_message<ShapeError>([&] {
      c.stages.count_used_keys(blocks, c.mask.view(), {c.used.data(), items});
    });
  };
  CHECK(says(counting({1, 1}, 2), "mhla: mask: axis tokens is 8 but must be 4"));
  CHECK(says(counting({1, 2}, 1), "mhla: used: axis batch is 1 but must be 2"));
  CHECK(says(counting({3, 2}, 2), "mhla: blocks: there are no blocks [3, 3 + 2)"));
  CHECK(c.used == std::vector<Index>{0, 3});
}
