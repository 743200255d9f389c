// SPDX-License-Identifier: MIT
// The command line.
#pragma once

#include <mhla/core/index.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <string>
#include <vector>

#include "../training/command_line.hpp"

namespace distributed_video {

using mhla::Index;

inline constexpr const char* about = R"(usage: mpirun -n P distributed_video [options]
Forward and backward of the attention of a video model's layer in bfloat16, shared out over P
processes: by sequence, with exact summaries, with rounded ones and by Precision::fast, and by heads. Says what moves,
how long it takes and what a process holds, and compares with one process, bit by bit. Wan's own:
  --frames 21 --rows 30 --columns 50
Exit status: 0 bytes and bits are as they should be, 1 they are not, 2 the command line cannot be
followed.

)";

struct Options {
  mhla::Blocks3D blocks{.grid = {9, 20, 20}, .block = {3, 10, 10}};
  Index heads = 12, dim = 128;
  int threads = 1, repeats = 3;
  int link = 0;
  bool shared_only = false;
  std::string json;

  Index tokens() const { return blocks.grid[0] * blocks.grid[1] * blocks.grid[2]; }
  void parse(const std::vector<std::string>& arguments) {
    training::CommandLine line(about);
    const auto extent = [&](const char* name, Index& value, const char* meaning) {
      line.number(name, value, Index{1}, Index{1} << 20, meaning);
    };
    extent("--frames", blocks.grid[0], "of the video");
    extent("--rows", blocks.grid[1], "tokens of a frame's column");
    extent("--columns", blocks.grid[2], "and of its row");
    extent("--block-frames", blocks.block[0], "of a block");
    extent("--block-rows", blocks.block[1], "tokens of its column");
    extent("--block-columns", blocks.block[2], "and of its row");
    extent("--heads", heads, "of attention");
    extent("--dim", dim, "of a head");
    line.number("--threads", threads, 1, 1024, "of a process");
    line.number("--repeats", repeats, 1, 1000, "of a pass, the fastest counts");
    line.number("--link", link, 0, 1 << 20, "MB/s each way of a slower network; 0: as it is");
    line.flag("--shared-only", shared_only, "do not run the whole call in one process");
    line.text("--json", "FILE", json, "all processes' numbers");
    try {
      line.parse(arguments);
    } catch (const training::UsageError& error) {
      throw training::UsageError(error.what() + std::string("\n\n") + line.usage());
    }
  }
};

}  // namespace distributed_video
