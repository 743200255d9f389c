// SPDX-License-Identifier: MIT
// The tests that need a GPU: mhla_gpu_tests [options] GROUP..., of the groups below. Exits with 77
// where there is no GPU.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "call.hpp"
#include "cuda_resources.hpp"
#include "groups.hpp"

namespace {

constexpr const char* usage =
    "usage: mhla_gpu_tests [options] GROUP...\n"
    "Groups: parity paths large_paths states determinism graphs etiquette pointers\n"
    "decoding small small_paths\n"
    "  --scalar S      double, float, BFloat16 or Half alone\n"
    "  --path P        of the cases that fused kernels run, those on path P alone\n"
    "  --leave-memory  memory that a call writes is not poisoned before\n"
    "  --probe         only says whether there is a GPU, and which\n";

struct Options {
  std::vector<std::string> names;
  std::string scalar;
  bool probe = false;
  bool understood = true;
};

bool is_group(const std::string& name) {
  for (const gpu::Group& group : gpu::groups())
    if (name == group.name) return true;
  return false;
}

Options parsed(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const bool has_value = i + 1 < arguments.size();
    if (argument == "--leave-memory")
      gpu::poisons = false;
    else if (argument == "--probe")
      options.probe = true;
    else if (argument == "--scalar" && has_value)
      options.scalar = arguments[++i];
    else if (argument == "--path" && has_value)
      gpu::only_path = arguments[++i];
    else if (is_group(argument))
      options.names.push_back(argument);
    else
      options.understood = false;
  }
  options.understood = options.understood && (options.probe || !options.names.empty());
  return options;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options options = parsed({argv + 1, argv + argc});
  if (!options.understood) {
    std::fputs(usage, stderr);
    return 2;
  }
  const std::string missing = gpu::why_no_gpu();
  if (!missing.empty()) {
    std::printf("Skipped: no GPU: %s\n", missing.c_str());
    return gpu::exit_without_gpu;
  }
  if (options.probe) {
    std::printf("%s\n", gpu::device_name().c_str());
    return 0;
  }
  gpu::Report report;
  for (const std::string& name : options.names)
    for (const gpu::Group& group : gpu::groups())
      if (name == group.name && (options.scalar.empty() || options.scalar == group.scalar))
        group.check(report);
  return report.finish();
} catch (const std::exception& error) {
  std::printf("FAIL  %s\n", error.what());
  return 1;
}
