// SPDX-License-Identifier: MIT
// How far training has come: a bar that moves on a terminal, and otherwise a line now and then.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "../layers/parameters.hpp"

namespace training {

using layers::Index;

class Progress {
  using Clock = std::chrono::steady_clock;

 public:
  Progress(std::string name, Index steps, Index tokens_per_step)
      : name_(std::move(name)),
        steps_(steps),
        tokens_per_step_(tokens_per_step),
        terminal_(isatty(fileno(stdout)) != 0) {}

  /// A step is done. What is shown is the loss of the latest steps, earlier ones fading.
  void done(double loss) {
    ++step_;
    loss_ = step_ == 1 ? loss : 0.9 * loss_ + 0.1 * loss;
    const bool last = step_ == steps_;
    if (terminal_) {
      if (!last && seconds_since(shown_) < 0.1) return;
      shown_ = Clock::now();
      constexpr Index length = 24;
      const auto filled = static_cast<std::size_t>(length * step_ / steps_);
      const std::string bar =
          std::string(filled, '#') + std::string(static_cast<std::size_t>(length) - filled, '.');
      std::printf("\r%-7s [%s] %s%s", name_.c_str(), bar.c_str(), status().c_str(),
                  last ? "\n" : "");
    } else if (last || step_ == 1 || step_ * 10 / steps_ != (step_ - 1) * 10 / steps_) {
      std::printf("%-7s %s\n", name_.c_str(), status().c_str());
    }
    std::fflush(stdout);
  }

  double seconds() const { return seconds_since(begun_); }

 private:
  static double seconds_since(Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  }

  std::string status() const {
    const double elapsed = seconds();
    const auto done = static_cast<double>(step_);
    const double left = elapsed / done * static_cast<double>(steps_ - step_);
    char line[160];
    std::snprintf(line, sizeof(line), "step %*td/%td  loss %6.3f  %8.0f tokens/s  %s %3.0f s",
                  static_cast<int>(std::to_string(steps_).size()), step_, steps_, loss_,
                  done * static_cast<double>(tokens_per_step_) / elapsed,
                  step_ == steps_ ? "took" : "left", step_ == steps_ ? elapsed : left);
    return line;
  }

  std::string name_;
  Index steps_;
  Index tokens_per_step_;
  bool terminal_;
  Clock::time_point begun_ = Clock::now();
  Clock::time_point shown_ = begun_;
  Index step_ = 0;
  double loss_ = 0;
};

}  // namespace training
