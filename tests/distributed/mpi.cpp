// SPDX-License-Identifier: MIT
// Under mpirun, what threads show in equal_one_process.cpp. The first rank prints what it has run;
// a difference ends all.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mhla/mpi.hpp>

#include "tests/distributed/cases.hpp"

namespace {

int run(const mhla::MpiCommunicator& ranks, const char* split,
        const std::vector<distributed_calls::Case>& cases) {
  int calls = 0;
  for (const auto& of : cases)
    for (const std::uint64_t seed : {0u, 3u}) {
      if (ranks.rank() == 0) std::printf("%s, %s\n", split, of.name);
      of.run(ranks, seed);
      ++calls;
    }
  return calls;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    const mhla::MpiCommunicator ranks(MPI_COMM_WORLD, std::chrono::milliseconds::max());
    const int calls = run(ranks, "by sequence", distributed_calls::cases_by_sequence()) +
                      run(ranks, "by heads", distributed_calls::cases_by_heads());
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
