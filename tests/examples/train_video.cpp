// SPDX-License-Identifier: MIT
// train_video: its videos against what they stand for, and the program as its user runs it.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "examples/train_video/moving_pattern.hpp"
#include "tests/examples/run_program.hpp"

namespace {

using namespace test;
using namespace train_video;
using training::TokenBatch;

const Program program{MHLA_TRAIN_VIDEO};

constexpr VideoShape shape{.frames = 4, .height = 6, .width = 5, .masked = 70};

/// The colors of a video without its mask.
std::vector<int> unmasked(const TokenBatch& batch) {
  std::vector<int> video = batch.symbols[0];
  for (const auto& [row, target] : batch.predictions) {
    REQUIRE(video[static_cast<std::size_t>(row)] == MovingPattern::mask);  // and no token twice
    video[static_cast<std::size_t>(row)] = target;
  }
  for (const int color : video) REQUIRE(color < MovingPattern::colors);
  return video;
}

/// Whether each frame is the one before, moved.
bool moves(const std::vector<int>& video, Index down, Index right) {
  const auto at = [&](Index frame, Index y, Index x) {
    y = (y + shape.height) % shape.height;
    x = (x + shape.width) % shape.width;
    return video[static_cast<std::size_t>((frame * shape.height + y) * shape.width + x)];
  };
  for (Index frame = 1; frame < shape.frames; ++frame)
    for (Index y = 0; y < shape.height; ++y)
      for (Index x = 0; x < shape.width; ++x)
        if (at(frame, y, x) != at(frame - 1, y - down, x - right)) return false;
  return true;
}

}  // namespace

TEST_CASE("train_video: a pattern moves over a torus", "[train_video]") {
  const MovingPattern videos(shape, 3);
  std::set<std::pair<Index, Index>> velocities;
  for (Index number = 0; number < 60; ++number) {
    TokenBatch batch;
    videos.append(training::Part::training, number, batch);
    REQUIRE(batch.tokens() == shape.tokens());
    REQUIRE(static_cast<Index>(batch.predictions.size()) == shape.masked);
    const std::vector<int> video = unmasked(batch);
    bool moved = false;
    for (Index down = -1; down <= 1; ++down)
      for (Index right = -1; right <= 1; ++right)
        if (moves(video, down, right)) moved = true, velocities.insert({down, right});
    REQUIRE(moved);
  }
  CHECK(velocities.size() == 9);
  TokenBatch two, other;
  videos.append(training::Part::training, 0, two);
  videos.append(training::Part::training, 1, two);
  CHECK(two.tokens() == 2 * shape.tokens());
  CHECK(unmasked(two).size() == two.symbols[0].size());
  videos.append(training::Part::validation, 0, other);
  CHECK(!std::equal(other.symbols[0].begin(), other.symbols[0].end(), two.symbols[0].begin()));
}

TEST_CASE("train_video: what cannot be done", "[train_video]") {
  for (const char* arguments : {"--heads 5", "--masked 513", "--frames", "what"})
    program.check(arguments, 2, {"train_video: "});
}

TEST_CASE("train_video: a short training lowers every loss", "[train_video]") {
  const TemporaryFolder temporary;
  const fs::path csv = temporary / "losses.csv", svg = temporary / "losses.svg";
  const std::string output = program.check(
      "--frames 4 --rows 4 --columns 4 --masked 32 --steps 40 --batch 16 --layers 1 --width 24 "
      "--csv" +
          quoted(csv) + "--svg" + quoted(svg),
      0);
  CHECK(says(text_of(svg), "<svg"));
  for (const std::string form : {"", ", CPE"})
    for (const std::string kind : {"linear", "softmax", "MHLA"}) {
      CHECK(says(output, "\n  " + kind + form + " "));
      const std::string field = "\n" + (form.empty() ? kind : '"' + kind + form + '"');
      CHECK(figure_after(text_of(csv), field + ",40,") <
            figure_after(text_of(csv), field + ",1,") - 0.2);
    }
}
