// SPDX-License-Identifier: MIT
// The same model trained with several kinds of attention: progress, one table, and the losses of
// every step as numbers and as a picture.
#pragma once

#include <functional>
#include <mhla/fork_join.hpp>
#include <string>
#include <vector>

#include "../drawing/line_chart.hpp"
#include "command_line.hpp"
#include "trainer.hpp"

namespace training {

/// What every training program can be told.
struct Options {
  Schedule schedule;
  int threads = 0;  ///< 0: as many as the machine runs at once
  std::string drawn = "the losses of every step";
  std::string svg;
  std::string csv;
  bool help = false;

  void add_to(CommandLine& line);
  int thread_count() const { return threads > 0 ? threads : mhla::ForkJoin::hardware_threads(); }
};

/// One model, trained and judged.
struct Result {
  std::string name;
  std::vector<double> losses{};  ///< of every step
  Score validation{};
  Index parameters = 0;
  double seconds = 0;
};

/// Trains; `tokens_per_example` is for the progress shown.
Result train(const std::string& name, Trainer& trainer, const Task& task, const Schedule& schedule,
             Index tokens_per_example);
Result train(const std::string& name, const Task& task, const Schedule& schedule,
             Index tokens_per_example, const mhla::ForkJoin& threads);

void print_table(const std::vector<Result>& results);

/// Curves of the losses, whose names end with the validation loss: a chart for those of each text
/// after the first comma of a name.
std::vector<drawing::LineChart> loss_charts(const std::vector<Result>& results,
                                            const std::string& title, const std::string& loss);

/// Writes the losses where the options say: of every step as numbers, and as curves.
void write_losses(const Options& options, const std::vector<Result>& results,
                  const std::string& title, const std::string& loss);

/// What a program ends with.
enum Status { trained = 0, disagrees = 1, bad_command_line = 2, bad_input = 3 };

/// Reads the command line, runs `body`, and says in one line what went wrong.
int run_program(const char* name, int argc, char** argv, const CommandLine& line,
                const Options& options, const std::function<int()>& body);
/// main()
template <class ProgramOptions>
int run_program(const char* name, const char* about, int argc, char** argv,
                int (*run)(const ProgramOptions&)) {
  ProgramOptions options;
  CommandLine line(about);
  options.add_to(line);
  return run_program(name, argc, argv, line, options, [&] { return run(options); });
}

}  // namespace training
