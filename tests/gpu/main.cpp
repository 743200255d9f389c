// SPDX-License-Identifier: MIT
// The tests that need a GPU: mhla_gpu_tests [--leave-memory] GROUP..., of the groups below. Exits
// with 77 where there is no GPU.
#include <cstdio>
#include <cstring>
#include <exception>

#include "call.hpp"
#include "cuda_resources.hpp"
#include "groups.hpp"

namespace {

constexpr const char* leave_memory = "--leave-memory";

bool is_group(const char* name) {
  for (const gpu::Group& group : gpu::groups())
    if (std::strcmp(group.name, name) == 0) return true;
  return false;
}

int usage() {
  std::fprintf(stderr,
               "usage: mhla_gpu_tests [--leave-memory] GROUP...\n"
               "Groups: parity paths large_paths states determinism graphs etiquette pointers\n"
               "small small_paths\n"
               "--leave-memory: memory that a call writes is not poisoned before\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string missing = gpu::why_no_gpu();
  if (argc < 2) return usage();
  for (int i = 1; i < argc; ++i)
    if (std::strcmp(argv[i], leave_memory) != 0 && !is_group(argv[i])) return usage();
  if (!missing.empty()) {
    std::printf("Skipped: no GPU: %s\n", missing.c_str());
    return gpu::exit_without_gpu;
  }
  gpu::Report report;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], leave_memory) == 0) gpu::poisons = false;
    for (const gpu::Group& group : gpu::groups())
      if (std::strcmp(group.name, argv[i]) == 0) group.check(report);
  }
  return report.finish();
} catch (const std::exception& error) {
  std::printf("FAIL  %s\n", error.what());
  return 1;
}
