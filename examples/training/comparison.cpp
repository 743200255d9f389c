// SPDX-License-Identifier: MIT
#include "comparison.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <utility>

#include "../drawing/csv.hpp"
#include "../drawing/loss_curve.hpp"
#include "progress.hpp"

namespace training {

void Options::add_to(CommandLine& line) {
  line.number("--steps", schedule.steps, Index{1}, Index{1} << 30, "updates of the parameters");
  line.number("--batch", schedule.batch, Index{1}, Index{1} << 16, "examples in each");
  line.number("--rate", schedule.rate, 1e-9, 1.0, "largest learning rate");
  line.number("--seed", schedule.seed, std::uint64_t{0}, ~std::uint64_t{0},
              "of the first parameters and of the examples");
  line.number("--threads", threads, 0, 1024, "0: as many as the machine runs at once");
  line.text("--svg", "FILE", svg, "draws " + drawn);
  line.text("--csv", "FILE", csv, "writes them as numbers");
  line.flag("--help", help, "");
}

Result train(const std::string& name, Trainer& trainer, const Task& task, const Schedule& schedule,
             Index tokens_per_example) {
  Progress progress(name, schedule.steps, schedule.batch * tokens_per_example);
  Result result{.name = name, .parameters = task.parameters().size()};
  for (Index step = 0; step < schedule.steps; ++step) {
    result.losses.push_back(trainer.step());
    progress.done(result.losses.back());
  }
  result.seconds = progress.seconds();
  result.validation = trainer.validate();
  return result;
}
Result train(const std::string& name, const Task& task, const Schedule& schedule,
             Index tokens_per_example, const mhla::ForkJoin& threads) {
  Trainer trainer(task, schedule, threads);
  return train(name, trainer, task, schedule, tokens_per_example);
}

void print_table(const std::vector<Result>& results) {
  std::size_t longest = 9;
  for (const Result& result : results) longest = std::max(longest, result.name.size());
  const int width = static_cast<int>(longest);
  std::printf("\n  %-*s  %8s %9s %11s %8s\n", width, "attention", "loss", "right", "parameters",
              "seconds");
  for (const Result& result : results)
    std::printf("  %-*s  %8.3f %7.1f %% %11td %8.0f\n", width, result.name.c_str(),
                result.validation.mean_loss(), 100 * result.validation.accuracy(),
                result.parameters, result.seconds);
}

std::vector<drawing::LineChart> loss_charts(const std::vector<Result>& results,
                                            const std::string& title, const std::string& loss) {
  std::vector<drawing::LineChart> charts;
  for (const Result& result : results) {
    const std::size_t comma = result.name.find(", ");
    const std::string kind = result.name.substr(0, comma);
    const std::string form = comma == std::string::npos ? "" : result.name.substr(comma);
    auto chart = std::find_if(charts.begin(), charts.end(),
                              [&](const auto& other) { return other.title == title + form; });
    if (chart == charts.end())
      chart = charts.insert(chart, {.title = title + form,
                                    .x = {.label = "step"},
                                    .y = {.label = loss + "; at the right: validation"}});
    chart->series.push_back(drawing::loss_curve(
        kind + " " + drawing::fixed_point(result.validation.mean_loss(), 2), result.losses));
  }
  return charts;
}

void write_losses(const Options& options, const std::vector<Result>& results,
                  const std::string& title, const std::string& loss) {
  if (!options.svg.empty()) drawing::write_svg(options.svg, loss_charts(results, title, loss));
  if (options.csv.empty()) return;
  drawing::LineChart numbers{.title = title, .x = {.label = "step"}, .y = {.label = loss}};
  for (const Result& result : results) {
    drawing::Series steps{.name = result.name, .y = result.losses};
    for (std::size_t i = 1; i <= result.losses.size(); ++i)
      steps.x.push_back(static_cast<double>(i));
    numbers.series.push_back(std::move(steps));
  }
  drawing::write_csv(options.csv, numbers);
}

int run_program(const char* name, int argc, char** argv, const CommandLine& line,
                const Options& options, const std::function<int()>& body) {
  try {
    line.parse({argv + 1, argv + argc});
    if (!options.help) return body();
    std::fputs(line.usage().c_str(), stdout);
    return trained;
  } catch (const UsageError& problem) {
    std::fprintf(stderr, "%s: %s\n\n%s", name, problem.what(), line.usage().c_str());
    return bad_command_line;
  } catch (const InputError& problem) {
    std::fprintf(stderr, "%s: %s\n", name, problem.what());
    return bad_input;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s: %s\n", name, problem.what());
    return disagrees;
  }
}

}  // namespace training
