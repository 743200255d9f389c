// SPDX-License-Identifier: MIT
#include "launch.hpp"

#include <mhla/core/error.hpp>
#include <numeric>
#include <string>
#include <utility>

#include "../cublas_v2.h"
#include "../cuda_runtime_api.h"
#include "thread_block.hpp"

namespace stand_in {

using mhla::CudaDevice;
using mhla::CudaError;
using mhla::Index;
using mhla::ShapeError;

void run(const CudaDevice& device, Index blocks, const Kernel& kernel) {
  if (blocks == 0) return;
  if (blocks > max_blocks)
    throw ShapeError("mhla: " + std::to_string(blocks) +
                     " thread blocks are more than a CUDA launch can have");
  if (kernel.shared_bytes > runtime().shared_bytes)
    throw CudaError("mhla: a kernel could not be launched: invalid argument");
  cublasContext& context = *device.cublas();
  ++context.launches;
  context.last_launch_stream = device.stream();
  ThreadBlock& threads = ThreadBlock::current();
  threads.begin_launch(std::exchange(context.under_way, UnderWay::last_kernel),
                       std::exchange(context.written_since_kernel, {}), &context.watched);
  // In an order that no kernel may count on.
  const auto random_below = [&](Index count) {
    return static_cast<Index>(context.next_random() % static_cast<std::uint64_t>(count));
  };
  Index step = 1 + random_below(blocks);  // meets every block once
  while (std::gcd(step, blocks) != 1) ++step;
  Index next = random_below(blocks);
  struct Argument {
    const Kernel& kernel;
    Index number;
    Index blocks;
  };
  const auto run_thread = [](const void* argument, int thread) {
    const auto& of = *static_cast<const Argument*>(argument);
    of.kernel.run(of.kernel.body, of.number, of.blocks, thread);
  };
  for (Index n = 0; n < blocks; ++n, next = (next + step) % blocks) {
    const Argument argument{kernel, next, blocks};
    threads.run(next, kernel.threads, static_cast<std::size_t>(kernel.shared_bytes),
                context.next_random(), run_thread, &argument);
  }
  const GlobalMemory& memory = threads.global_memory();
  context.last_kernel_bytes_read = memory.bytes_read;
  context.last_kernel_bytes_written = memory.bytes_written;
  context.last_kernel_bytes_read_early = memory.bytes_read_early;
  context.kernel_bytes_read += context.last_kernel_bytes_read;
  context.kernel_bytes_written += context.last_kernel_bytes_written;
}

}  // namespace stand_in
