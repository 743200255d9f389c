// SPDX-License-Identifier: MIT
// Under mpirun, what threads show in sequence_parallel.cpp and head_parallel.cpp. The first rank
// prints what it has run; a difference ends all.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mhla/mpi.hpp>

#include "tests/distributed/head_call.hpp"

namespace {

int run(const mhla::MpiCommunicator& ranks) {
  int calls = 0;
  for (const std::uint64_t seed : {0u, 3u})
    distributed_calls::for_each_call(
        [&](const char* name, auto scalar, const auto& attention, const mhla::Shape& shape) {
          if (ranks.rank() == 0) std::printf("by sequence, %s\n", name);
          distributed_calls::run_by_sequence<decltype(scalar)>(ranks, attention, shape, seed);
          ++calls;
        });
  for (const std::uint64_t seed : {0u, 3u})
    distributed_calls::for_each_call_by_heads(
        [&](const char* name, auto scalar, const auto& attention, const mhla::Shape& shape) {
          if (ranks.rank() == 0) std::printf("by heads, %s\n", name);
          distributed_calls::run_by_heads<decltype(scalar)>(ranks, attention, shape, seed);
          ++calls;
        });
  return calls;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    const mhla::MpiCommunicator ranks(MPI_COMM_WORLD);
    const int calls = run(ranks);
    if (ranks.rank() == 0)
      std::printf("%d calls, the bits of one process on %d ranks\n", calls,
                  static_cast<int>(ranks.size()));
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
