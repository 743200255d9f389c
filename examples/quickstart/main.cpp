// SPDX-License-Identifier: MIT
// quickstart [FILE]: Multi-Head Linear Attention on tokens of a real file, the project's own README
// unless another text or image is named: is it right, how fast is it, and what does it do?
#include <algorithm>
#include <cstdio>
#include <exception>
#include <mhla/version.hpp>
#include <thread>

#include "reports.hpp"

int main(int argc, char** argv) {
  if (argc > 2) {
    std::fprintf(stderr,
                 "usage: quickstart [FILE]\nFILE is a text, or a binary PPM or PGM image.\n");
    return 64;
  }
  try {
    const quickstart::TokenSource source(argc == 2 ? argv[1] : MHLA_SOURCE_DIR "/README.md");
    const int num_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    Eigen::ThreadPool threads(num_threads);
    const Eigen::ThreadPoolDevice pool(&threads, num_threads);
    std::printf("mhla %d.%d.%d on tokens of %s; float, %d thread%s\n", MHLA_VERSION_MAJOR,
                MHLA_VERSION_MINOR, MHLA_VERSION_PATCH, source.description().c_str(), num_threads,
                num_threads == 1 ? "" : "s");

    const bool agrees = quickstart::report_agreement(source, pool);
    quickstart::report_growth(source, pool);
    quickstart::report_matrices(source);
    return agrees ? 0 : 1;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "quickstart: %s\n", problem.what());
    return 2;
  }
}
