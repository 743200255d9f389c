// SPDX-License-Identifier: MIT
// Device memory that a program owns, on a stand-in for CUDA's runtime.
#include <mhla/cuda/workspace.cuh>
#include <utility>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

using mhla::CudaWorkspace;
using mhla::Index;

TEST_CASE("cuda workspace: owns its memory, moves, and frees it", "[cuda]") {
  const auto& allocated = stand_in::runtime().allocated;
  {
    CudaWorkspace one(1000), none(0);
    CHECK(allocated.size() == 1);
    CHECK(one.size() == 1000);
    const mhla::WorkspaceView view = one;
    CHECK((view.size == 1000 && view.data == allocated[0].begin));
    CudaWorkspace other(std::move(one));
    CHECK((one.size() == 0 && other.size() == 1000 && allocated.size() == 1));
    none = std::move(other);
    CHECK((none.size() == 1000 && mhla::WorkspaceView(none).data == view.data));
    CHECK(allocated.size() == 1);
  }
  CHECK(allocated.empty());
}

TEST_CASE("cuda workspace: says what it could not allocate", "[cuda]") {
  CHECK_THROWS_AS(CudaWorkspace(Index{-1}), mhla::WorkspaceError);
  const auto refused = [] { CudaWorkspace(Index{1} << 62); };
  CHECK(says(error_message<mhla::CudaError>(refused), "cudaMalloc of 4611686018427387904 bytes: "));
  CHECK(cudaGetLastError() == cudaSuccess);
}
