// SPDX-License-Identifier: MIT
// Speed of the library at the paper's shapes, beside what the machine could do and what a user
// would have instead. Everything, with tables and plots, by one command (10 minutes):
//   cmake --build build/release --target bench_report
// and a part of it, for example
//   bench_attention --benchmark_filter='^(forward|backward)/.*/float/serial/'
//   bench_attention --benchmark_filter=-Wan --benchmark_out=attention.json
// Names are WHAT/SHAPE/SCALAR/EXECUTOR[/WORKING_SET]; benchmarks.hpp lists them with their sources,
// where the columns are explained, tensors.hpp the working sets. Results are milliseconds per image
// or sequence with all its heads (one head at /one_head), medians of at least three runs.
//   bench_attention --shapes        prints the shapes as JSON
#define EIGEN_USE_THREADS
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <memory>
#include <mhla/core/executor.hpp>
#include <mhla/cpu/describe.hpp>
#include <mhla/eigen/thread_pool_executor.hpp>
#include <string>
#include <thread>
#include <unsupported/Eigen/CXX11/Tensor>
#include <vector>
#if __has_include(<mhla/fork_join.hpp>)
#include <mhla/fork_join.hpp>
#endif

#include "benchmarks.hpp"
#include "library.hpp"

namespace {

using bench::NamedExecutor;
using bench::Shape;
using bench::WorkingSet;

/// The executors of this machine; they live as long as the program.
class Executors {
 public:
  explicit Executors(int threads) : pool_(threads), device_(&pool_, threads), shared_(device_) {
    // 1, 2, 4, ... and all.
    for (int count = 1; count < threads; count *= 2) add_count(count);
    add_count(threads);
  }

  NamedExecutor serial() const { return {"serial", serial_, bench::Clock::thread}; }
  /// Those of as many threads as the machine has.
  std::vector<NamedExecutor> parallel() const {
    std::vector<NamedExecutor> executors{{"pool", shared_, bench::Clock::wall}};
#if __has_include(<mhla/fork_join.hpp>)
    executors.push_back({"fork_join", fork_join_, bench::Clock::wall});
#endif
    return executors;
  }
  /// One of 1, 2, 4, ... threads each, named by their number.
  std::vector<NamedExecutor> thread_counts() const {
    std::vector<NamedExecutor> executors;
    for (std::size_t i = 0; i < counts_.size(); ++i)
      executors.push_back(
          {std::to_string(counts_[i].num_slots()), counts_[i],
           counts_[i].num_slots() == 1 ? bench::Clock::thread : bench::Clock::wall});
    return executors;
  }

 private:
  void add_count(int count) {
    devices_.push_back(std::make_unique<Eigen::ThreadPoolDevice>(&pool_, count));
    counts_.emplace_back(*devices_.back());
  }

  mhla::SerialExecutor serial_;
  Eigen::ThreadPool pool_;
  Eigen::ThreadPoolDevice device_;
  mhla::ThreadPoolExecutor shared_;
  std::vector<std::unique_ptr<Eigen::ThreadPoolDevice>> devices_;
  std::vector<mhla::ThreadPoolExecutor> counts_;
#if __has_include(<mhla/fork_join.hpp>)
  mhla::ForkJoin fork_join_{static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))};
#endif
};

/// Whether a shape is among those that a benchmark is limited to.
bool is_one_of(const Shape& shape, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), shape.name) != names.end();
}

void add_shape(const Shape& shape, const Executors& executors) {
  const NamedExecutor serial = executors.serial();
  bench::add_passes<float>(shape, "float", serial, WorkingSet::L3);
  bench::add_peers(shape, serial);
  for (const NamedExecutor& parallel : executors.parallel())
    bench::add_speedup(shape, parallel, WorkingSet::L3);
  if (is_one_of(shape, {"DeiT-T", "VLT-T_stage1", "DiT-XL/2_512", "Tab14_N4096_M64",
                        "NLP_N2048_M32", "Wan_M105"})) {
    bench::add_pieces(shape, serial);
    bench::add_passes<float>(shape, "float", serial, WorkingSet::one_head);
    for (const NamedExecutor& parallel : executors.parallel())
      bench::add_speedup(shape, parallel, WorkingSet::one_head);
  }
  if (is_one_of(shape, {"DeiT-T", "Tab14_N4096_M64"}))
    bench::add_passes<float>(shape, "float", serial, WorkingSet::DRAM);
  bench::add_storage(shape, serial);
  if (is_one_of(shape, {"DeiT-T", "DeiT-S", "DiT-S/2_512", "DiT-XL/2_512", "Tab14_N4096_M64",
                        "NLP_N2048_M32", "Wan_M105", "Wan_M150"}))
    for (const NamedExecutor& parallel : executors.parallel()) bench::add_storage(shape, parallel);
  if (is_one_of(shape, {"DeiT-T", "DiT-XL/2_512", "Tab14_N4096_M64", "NLP_N2048_M32"}))
    bench::add_passes<double>(shape, "double", serial, WorkingSet::L3);
}

/// For programs that run others at the same shapes.
void print_shapes() {
  const char* models[] = {"key_sum", "product", "video", "language"};
  const char* between = "[\n";
  for (const Shape& shape : bench::paper_shapes()) {
    const bench::Batch b = bench::batch(shape, WorkingSet::L3, sizeof(float));
    std::cout.precision(15);
    std::cout << between << R"({"name": ")" << shape.name << R"(", "model": ")"
              << models[static_cast<int>(shape.model)] << R"(", "batch": )" << b.items
              << R"(, "heads": )" << shape.heads << R"(, "key_dim": )" << shape.key_dim
              << R"(, "value_dim": )" << shape.value_dim << R"(, "grid": [)" << shape.grid[0]
              << ", " << shape.grid[1] << ", " << shape.grid[2] << R"(], "block": [)"
              << shape.block[0] << ", " << shape.block[1] << ", " << shape.block[2]
              << R"(], "useful_forward_flops": )" << shape.useful_forward_flops()
              << R"(, "useful_backward_flops": )" << shape.useful_backward_flops() << "}";
    between = ",\n";
  }
  std::cout << "\n]\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--shapes") == 0) {
    print_shapes();
    return 0;
  }
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const Executors executors(threads);

  // Seconds for each benchmark, unless the caller says otherwise: there are hundreds.
  std::string min_time = "--benchmark_min_time=0.1";
  std::vector<char*> arguments(argv, argv + argc);
  arguments.insert(arguments.begin() + 1, min_time.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 1;
  benchmark::AddCustomContext("vectors", bench::vector_isa);
  benchmark::AddCustomContext("library", mhla::cpu::describe());
  benchmark::AddCustomContext("compiler", __VERSION__);
  benchmark::AddCustomContext("threads", std::to_string(threads));

  bench::add_ceilings(executors.thread_counts());
  bench::add_products(executors.serial());
  for (const Shape& shape : bench::paper_shapes()) add_shape(shape, executors);
  bench::add_layouts(executors.serial());
  bench::add_lengths(executors.serial());
  bench::add_decoding(bench::language(2048, 64), executors.serial());
  bench::add_decoding(bench::language(32768, 64), executors.serial());
  for (const NamedExecutor& parallel : executors.parallel()) {
    bench::add_lengths(parallel);
    bench::add_decoding(bench::language(2048, 64), parallel);
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
