// SPDX-License-Identifier: MIT
// What a stage on some blocks takes does not grow with the sequence that they are of: only rows of
// mix have a column for every key block, and a backward stage that reads all summaries copies them.
#include "tests/stages/backend.hpp"
#include "tests/support/catch.hpp"

namespace {

using backend::Stages;
using namespace mhla;

constexpr Index block = 16;
constexpr Index few = 100;  // blocks
constexpr Index many = 100 * few;
constexpr BlockRange some{20, 5};
const auto executor = backend::shuffled_device(1);
constexpr Index num_slots = 3;  // of it

template <class V>
Stages<V, float> stages_of(Index blocks) {
  const Index tokens = blocks * block;
  return {V{.blocks = {.block = block}}, Shape{2, 4, 2, tokens, tokens, 32, 16, 4, blocks, blocks}};
}

template <class V>
void check() {
  const auto shorter = stages_of<V>(few);
  const auto longer = stages_of<V>(many);
  const auto growth = [&](Stage stage) {
    return longer.workspace_size(stage, executor, some, some) -
           shorter.workspace_size(stage, executor, some, some);
  };
  CHECK(growth(Stage::summarize) == 0);
  CHECK(growth(Stage::mix_gradient) == 0);
  CHECK(growth(Stage::summarize_gradient) <= 0);  // of a larger dmix, fewer partial sums are kept
  constexpr Index bytes = sizeof(float);
  constexpr Index matrices = 4;
  const Index rows = matrices * some.count * (many - few) * bytes;
  CHECK(growth(Stage::read_out) <= rows);
  // A copy of the summaries for every slot at most, and dmix of both items.
  constexpr Index padded = 32 * 16 + 16 + 32;
  CHECK(growth(Stage::read_out_gradient) <= 3 * rows + (many - few) * num_slots * padded * bytes);
}

}  // namespace

TEST_CASE("a stage's workspace does not grow with the sequence") {
  check<Attention<Relu, Blocks1D, Bidirectional, MixedKeySum, mhla::HalfSplitRotary>>();
  check<Attention<Relu, Blocks1D, Causal, MixedKeySum, mhla::AxialRotary>>();
  check<Attention<Relu, Blocks1D, BlockCausal, Unnormalized, mhla::HalfSplitRotary>>();
}

TEST_CASE("nor with the frames of a video, if its blocks are those of a few") {
  using V = Attention<Relu, Blocks3D, Bidirectional, MixedKeySum, mhla::AxialRotary>;
  const auto size = [](Index frames) {
    const Index blocks = frames / 2 * 4;
    const Index tokens = frames * 64;
    const V attention{.blocks = {.grid = {frames, 8, 8}, .block = {2, 4, 4}}};
    return backend::Stages<V, float>(attention,
                                     {1, 2, 2, tokens, tokens, 48, 16, 1, blocks, blocks})
        .workspace_size(Stage::summarize, executor, {8, 6});
  };
  CHECK(size(2000) == size(20));
}
