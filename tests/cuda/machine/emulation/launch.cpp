// SPDX-License-Identifier: MIT
#include "launch.hpp"

#include <algorithm>
#include <deque>
#include <mhla/core/error.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "../cublas_v2.h"
#include "../cuda_runtime_api.h"
#include "thread_block.hpp"

namespace stand_in {

using mhla::CudaDevice;
using mhla::CudaError;
using mhla::Index;
using mhla::ShapeError;

namespace {

/// One launch of a kernel.
class Launch {
 public:
  Launch(const CudaDevice& device, Index blocks, const Kernel& kernel, bool in_turns)
      : kernel_(kernel), context_(*device.cublas()), blocks_(blocks) {
    if (blocks > max_blocks)
      throw ShapeError("mhla: " + std::to_string(blocks) +
                       " thread blocks are more than a CUDA launch can have");
    if (kernel.shared_bytes > runtime().shared_bytes)
      throw CudaError("mhla: a kernel could not be launched: invalid argument");
    ++context_.launches;
    context_.last_launch_stream = device.stream();
    Chip::chip().begin_launch(std::exchange(context_.under_way, UnderWay::last_kernel),
                              std::exchange(context_.written_since_kernel, {}),
                              in_turns ? static_cast<std::size_t>(blocks) : 0);
    step_ = 1 + random_below(blocks);  // meets every block once
    while (std::gcd(step_, blocks) != 1) ++step_;
    next_ = random_below(blocks);
  }

  Index random_below(Index count) {
    return static_cast<Index>(context_.next_random() % static_cast<std::uint64_t>(count));
  }
  bool any_left() const { return begun_ < blocks_; }
  /// The next block begins, in an order that no kernel may count on.
  void begin(ThreadBlock& threads) {
    arguments_.push_back({kernel_, next_, blocks_});
    const auto run_thread = [](const void* argument, int thread) {
      const auto& of = *static_cast<const Argument*>(argument);
      of.kernel.run(of.kernel.body, of.number, of.blocks, thread);
    };
    threads.begin(next_, kernel_.threads, static_cast<std::size_t>(kernel_.shared_bytes),
                  context_.next_random(), run_thread, &arguments_.back());
    next_ = (next_ + step_) % blocks_;
    ++begun_;
  }
  /// All have ended.
  void end() {
    const GlobalMemory& memory = ThreadBlock::global_memory();
    context_.last_kernel_bytes_read = memory.bytes_read;
    context_.last_kernel_bytes_written = memory.bytes_written;
    context_.last_kernel_bytes_read_early = memory.bytes_read_early;
    context_.kernel_bytes_read += context_.last_kernel_bytes_read;
    context_.kernel_bytes_written += context_.last_kernel_bytes_written;
  }

 private:
  struct Argument {
    const Kernel& kernel;
    Index number;
    Index blocks;
  };
  const Kernel& kernel_;
  cublasContext& context_;
  Index blocks_;
  Index step_ = 1;
  Index next_ = 0;
  Index begun_ = 0;
  std::deque<Argument> arguments_;
};

}  // namespace

void run(const CudaDevice& device, Index blocks, const Kernel& kernel) {
  if (blocks == 0) return;
  Launch launch(device, blocks, kernel, false);
  ThreadBlock& threads = blocks_of_chip()[0];
  while (launch.any_left()) {
    launch.begin(threads);
    if (!threads.go_on()) {
      const std::string fault = threads.awaited();
      threads.give_up();
      throw KernelFault(fault);
    }
  }
  launch.end();
}

void run_together(const CudaDevice& device, Index most, const Kernel& kernel) {
  if (most == 0) return;
  cublasContext& context = *device.cublas();
  const auto up_to = [&](std::size_t count) {
    return 1 + static_cast<std::size_t>(context.next_random() % count);
  };
  const Index blocks = std::min(most, static_cast<Index>(up_to(7)));
  const std::size_t together = up_to(static_cast<std::size_t>(blocks));
  Launch launch(device, blocks, kernel, true);
  std::vector<ThreadBlock*> in_flight;
  const auto begin = [&](ThreadBlock& threads) {
    launch.begin(threads);
    in_flight.push_back(&threads);
  };
  const auto fail = [&](const std::string& fault) {
    for (ThreadBlock* const threads : in_flight) threads->give_up();
    throw KernelFault(fault);
  };
  for (std::size_t n = 0; n < together; ++n) begin(blocks_of_chip()[n]);
  while (!in_flight.empty()) {
    // Those that can go on come first.
    const auto ready = std::partition(in_flight.begin(), in_flight.end(),
                                      [](const auto* threads) { return !threads->waits(); });
    if (ready == in_flight.begin()) {
      std::string fault = "all thread blocks that have begun wait for others";
      for (const ThreadBlock* const threads : in_flight) fault += "\n  " + threads->awaited();
      fail(fault);
    }
    const auto chosen =
        in_flight.begin() + launch.random_below(static_cast<Index>(ready - in_flight.begin()));
    ThreadBlock& threads = **chosen;
    try {
      if (!threads.go_on()) continue;
    } catch (const KernelFault& fault) {
      in_flight.erase(chosen);
      fail(fault.what());
    }
    in_flight.erase(chosen);
    if (launch.any_left()) begin(threads);
  }
  launch.end();
}

}  // namespace stand_in
