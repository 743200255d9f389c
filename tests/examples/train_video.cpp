// SPDX-License-Identifier: MIT
// train_video: its videos against what they stand for, and the program as its user runs it.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "examples/train_video/moving_pattern.hpp"
#include "tests/examples/run_program.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace test;
using namespace train_video;
using training::TokenBatch;

Run train_video_run(const std::string& arguments) {
  return run_program("'" MHLA_TRAIN_VIDEO "' " + arguments);
}

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

/// The loss of each kind in a CSV at a step.
double loss_at(const std::string& csv, const std::string& kind, const std::string& step) {
  const std::string point = "\n" + kind + "," + step + ",";
  const std::size_t line = csv.find(point);
  REQUIRE(line != std::string::npos);
  return std::stod(csv.substr(line + point.size()));
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
  for (const char* arguments : {"--heads 5", "--masked 513", "--frames", "what"}) {
    const Run run = train_video_run(arguments);
    INFO(run.output);
    CHECK(run.status == 2);
    CHECK(run.output.find("train_video: ") != std::string::npos);
  }
}

TEST_CASE("train_video: a short training lowers every loss", "[train_video]") {
  const TemporaryFolder temporary;
  const std::string csv = (temporary / "losses.csv").string();
  const std::string svg = (temporary / "losses.svg").string();
  const Run run = train_video_run(
      "--frames 4 --rows 4 --columns 4 --masked 32 --steps 60 --batch 16 --layers 1 --width 24 "
      "--csv '" +
      csv + "' --svg '" + svg + "'");
  INFO(run.output);
  REQUIRE(run.status == 0);
  CHECK(text_of(svg).find("<svg") != std::string::npos);
  const std::string losses = text_of(csv);
  for (const char* form : {"", ", CPE"})
    for (const char* kind : {"linear", "softmax", "MHLA"}) {
      const std::string name = std::string(kind) + form;
      CHECK(run.output.find("\n  " + name + " ") != std::string::npos);
      const std::string field = *form == '\0' ? name : '"' + name + '"';
      CHECK(loss_at(losses, field, "60") < loss_at(losses, field, "1") - 0.2);
    }
}
