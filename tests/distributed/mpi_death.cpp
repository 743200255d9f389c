// SPDX-License-Identifier: MIT
// One rank dies or throws in its n-th exchange of a forward and backward pass, or calls with
// something else: every other rank throws, in time, an error that names it, and has written
// nothing. Each prints one line; mpi_death.cmake reads them.
//   mpirun --enable-recovery -n RANKS mpi_death dies EXCHANGE
//   mpirun -n RANKS mpi_death throws EXCHANGE
//   mpirun -n RANKS mpi_death disagrees
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mhla/distributed.hpp>
#include <mhla/mpi.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/distributed/mortal.hpp"

namespace {

using distributed_calls::victim;
using mhla::Index;

constexpr std::chrono::milliseconds timeout(1000);

// Of a rank that comes late, so that another still waits for its messages.
struct Late {
  bool late;
  static constexpr Index num_slots() { return 1; }
  template <class Task>
  void parallel_for(Index tasks, const Task& task) const {
    if (late) std::this_thread::sleep_for(timeout / 100);
    mhla::SerialExecutor::parallel_for(tasks, task);
  }
};

// Whether a rank that has thrown can do what it likes with the memory of its call, and must not go
// on with the communicator.
bool has_left(const mhla::MpiCommunicator& ranks, const mhla::Workspace& memory) {
  std::fill_n(memory.data(), memory.size(), std::byte{5});
  const auto end = std::chrono::steady_clock::now() + timeout / 2;
  while (std::chrono::steady_clock::now() < end) {
    int arrived = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &arrived, MPI_STATUS_IGNORE);
  }
  if (std::any_of(memory.data(), memory.data() + memory.size(),
                  [](std::byte x) { return x != std::byte{5}; }))
    return false;
  try {
    mhla::confirm(ranks);
  } catch (const mhla::CommunicationError&) {
    return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const std::string mode = argc > 1 ? argv[1] : "";
  const mhla::MpiCommunicator ranks(MPI_COMM_WORLD, timeout);
  const distributed_calls::Mortal<mhla::MpiCommunicator> mortal{
      &ranks, argc > 2 ? std::atoi(argv[2]) : -1,
      mode == "dies" ? [] { std::raise(SIGKILL); } : [] { throw std::runtime_error("thrown"); }};
  const Late executor{mode == "throws" && ranks.rank() != victim};
  using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
  const Attention attention{.blocks = {.block = 4}};
  constexpr Index tokens = 40, heads = 2, dim = 8, blocks = 10;
  const Index key_dim = mode == "disagrees" && ranks.rank() == victim ? dim / 2 : dim;
  const mhla::Shape shape{1, heads, heads, tokens, tokens, key_dim, dim, 1, blocks, blocks};
  std::vector<float> x(heads * tokens * dim, 1), mix(blocks * blocks, 1);
  constexpr float untouched = 5;
  std::vector<float> y(x.size(), untouched), dq = y, dk = y, dv = y, dmix(mix.size(), untouched);
  bool written = false;
  std::string message;
  mhla::Workspace memory;
  auto begin = std::chrono::steady_clock::now();
  try {
    const auto layer = mhla::sequence_parallel<float>(attention, shape, mortal,
                                                      mhla::equal_shares(blocks, ranks.size()));
    const Index own = layer.local_shape().query_tokens;
    const auto view = [&](std::vector<float>& of) {
      return mhla::make_view(of.data(), Index{1}, heads, own, dim);
    };
    const mhla::OperandViews<float> operands{view(x), view(x), view(x),
                                             mhla::make_view(mix.data(), 1, blocks, blocks)};
    begin = std::chrono::steady_clock::now();
    memory = mhla::Workspace(layer.forward_workspace_size(executor));
    layer.forward(executor, operands, view(y), memory);
    std::fill(y.begin(), y.end(), untouched);  // as that pass has succeeded
    begin = std::chrono::steady_clock::now();
    layer.backward(executor, operands, view(x),
                   {view(dq), view(dk), view(dv), mhla::make_view(dmix.data(), blocks, blocks)},
                   mhla::Update::overwrite,
                   mhla::Workspace(layer.backward_workspace_size(executor)));
    std::printf("rank %d: finished\n", static_cast<int>(ranks.rank()));
    MPI_Finalize();
    return 0;
  } catch (const mhla::Error& failure) {
    message = failure.what();
  } catch (const std::runtime_error& failure) {
    message = failure.what();
    message += has_left(ranks, memory) ? " and gone" : " and still there";
  }
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  for (const auto* result : {&y, &dq, &dk, &dv, &dmix})
    for (const float element : *result) written = written || element != untouched;
  std::printf("rank %d: after %d ms, %s: %s\n", static_cast<int>(ranks.rank()),
              static_cast<int>(took.count()), written ? "something was written" : "nothing written",
              message.c_str());
  std::fflush(stdout);
  _exit(0);  // MPI_Finalize would wait for the dead
}
