// SPDX-License-Identifier: MIT
// mhla_figures [--out DIR] [--small] [NAME...]: the pictures of this folder, drawn anew.
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "figures.hpp"

namespace {

struct Figure {
  const char* name;
  void (*draw)(const figures::Request&);
};
constexpr Figure all_figures[] = {{"initial_matrices", figures::draw_initial_matrices},
                                  {"attention_maps", figures::draw_attention_maps},
                                  {"rank_and_entropy", figures::draw_rank_and_entropy},
                                  {"time", figures::draw_time},
                                  {"choice_of_blocks", figures::draw_choice_of_blocks}};

constexpr const char* usage =
    R"(usage: mhla_figures [--out DIR] [--small] [NAME...]
Draws the named pictures, or all: initial_matrices, attention_maps, rank_and_entropy, time,
choice_of_blocks. Each is written as NAME.svg, and its numbers as NAME.csv.

  --out DIR  where to, a folder that is made if it is missing (.)
  --small    few sizes, in seconds: to see that it works
  --help

Exit status: 0 drawn, 1 not, 2 the command line cannot be followed.
)";

int refuse(const std::string& why) {
  std::fprintf(stderr, "mhla_figures: %s\n\n%s", why.c_str(), usage);
  return 2;
}

const Figure* figure_named(const std::string& name) {
  for (const Figure& figure : all_figures)
    if (name == figure.name) return &figure;
  return nullptr;
}

void draw(const Figure& figure, const figures::Request& request) {
  const auto begun = std::chrono::steady_clock::now();
  figure.draw(request);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  std::printf("%s.svg and .csv, %.1f s\n", figure.name, took.count());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  figures::Request request;
  std::vector<const Figure*> chosen;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help") {
      std::fputs(usage, stdout);
      return 0;
    }
    if (argument == "--small") {
      request.small = true;
    } else if (argument == "--out") {
      if (++i == argc) return refuse("--out needs a folder");
      request.folder = argv[i];
    } else if (const Figure* figure = figure_named(argument)) {
      chosen.push_back(figure);
    } else {
      return refuse("there is no picture " + argument);
    }
  }
  if (chosen.empty())
    for (const Figure& figure : all_figures) chosen.push_back(&figure);
  try {
    std::filesystem::create_directories(request.folder);
    for (const Figure* figure : chosen) draw(*figure, request);
    return 0;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "mhla_figures: %s\n", problem.what());
    return 1;
  }
}
