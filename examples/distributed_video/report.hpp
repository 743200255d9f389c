// SPDX-License-Identifier: MIT
// What passes took, as a table on the screen and as JSON, and whether all was right.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "video_layer.hpp"

namespace distributed_video {

class Report {
 public:
  static void print_heading() {
    std::printf("%-38s %19s %19s %39s\n", "", "MB, busiest rank", "ms, mean of ranks",
                "MB in memory, fullest rank");
    std::printf("%-29s %-8s %9s %9s %9s %9s %9s %9s %9s %9s\n", "", "", "said", "moved", "moving",
                "computing", "said", "tensors", "workspace", "peak");
  }

  void add(const char* split, const std::vector<Passes>& ranks) {
    add(split, "forward", ranks, &Passes::forward);
    add(split, "backward", ranks, &Passes::backward);
  }
  void require(bool holds, const char* split, const char* otherwise) {
    if (holds) return;
    std::printf("WRONG: %s: %s\n", split, otherwise);
    right_ = false;
  }
  bool right() const { return right_; }
  /// Passes of all ranks, as elements of an array.
  const std::string& json() const { return json_; }

 private:
  void add(const char* split, const char* name, const std::vector<Passes>& ranks,
           Pass Passes::*pass) {
    Pass most{};
    double moving = 0, computing = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const Pass& of = ranks[r].*pass;
      require(of.metered.sent == of.said.sent && of.metered.received == of.said.received, split,
              "a rank has moved other bytes than said");
      const auto take_up = [&](Index Pass::*size) { most.*size = std::max(most.*size, of.*size); };
      take_up(&Pass::tensors), take_up(&Pass::workspace), take_up(&Pass::peak);
      most.said.sent = std::max(most.said.sent, of.said.busy());
      most.said.held = std::max(most.said.held, of.said.held);
      most.metered.sent = std::max({most.metered.sent, of.metered.sent, of.metered.received});
      moving += of.metered.milliseconds / static_cast<double>(ranks.size());
      computing += (of.milliseconds - of.metered.milliseconds) / static_cast<double>(ranks.size());
      add_json(split, name, r, of);
    }
    const auto mega = [](Index bytes) { return 1e-6 * static_cast<double>(bytes); };
    std::printf("%-29s %-8s %9.2f %9.2f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f\n", split, name,
                mega(most.said.sent), mega(most.metered.sent), moving, computing,
                mega(most.said.held), mega(most.tensors), mega(most.workspace), mega(most.peak));
  }
  void add_json(const char* split, const char* name, std::size_t rank, const Pass& of) {
    json_ += std::string(json_.empty() ? "" : ",") + "\n  {\"split\": \"" + split +
             "\", \"pass\": \"" + name + "\"";
    const auto field = [&](const char* key, auto value) {
      json_ += std::string(", \"") + key + "\": " + std::to_string(value);
    };
    field("rank", rank);
    field("said_sent", of.said.sent), field("sent", of.metered.sent);
    field("said_received", of.said.received), field("received", of.metered.received);
    field("ms", of.milliseconds), field("ms_moving", of.metered.milliseconds);
    field("tensors", of.tensors), field("workspace", of.workspace);
    field("said_held", of.said.held), field("peak", of.peak);
    json_ += "}";
  }

  std::string json_;
  bool right_ = true;
};

}  // namespace distributed_video
