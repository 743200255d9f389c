// SPDX-License-Identifier: MIT
// The library's own launch, which the other tests replace: every element once, on the device's
// stream, and whose error is reported.
#include "include/mhla/cuda/launch.cuh"

#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

namespace {

using mhla::CudaError;
using mhla::Index;

struct CountVisits {
  int* visits;
  void operator()(Index i) const { ++visits[i]; }
};

// The stand-ins as they were, when it ends.
struct Restored {
  Restored() = default;
  ~Restored() {
    stand_in::runtime() = {};
    stand_in::launches() = {};
  }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;
};

// Whether a launch of so many elements met each of them once.
bool launches(const mhla::CudaDevice& device, Index count) {
  std::vector<int> visits(static_cast<std::size_t>(count));
  mhla::cuda::launch(device, count, CountVisits{visits.data()});
  return visits == std::vector<int>(visits.size(), 1);
}

}  // namespace

TEST_CASE("launch: meets every element once, on the device's stream", "[cuda]") {
  const Restored restored;
  char memory = 0;
  const mhla::CudaDevice device(reinterpret_cast<cudaStream_t>(&memory), nullptr);
  for (const Index count : {1, 255, 256, 257, 1000}) {
    CAPTURE(count);
    CHECK(launches(device, count));
    CHECK(stand_in::launches().threads.x == mhla::cuda::threads_of_block);
    CHECK(stand_in::launches().blocks.x == static_cast<unsigned>((count + 255) / 256));
    CHECK(stand_in::launches().stream == device.stream());
  }
  const long made = stand_in::launches().made;
  CHECK(launches(device, 0));
  CHECK(stand_in::launches().made == made);
}

TEST_CASE("launch: an error is reported to whom it belongs", "[cuda]") {
  const Restored restored;
  const mhla::CudaDevice device(nullptr, nullptr);
  const auto message = [&] { return error_message<CudaError>([&] { launches(device, 5); }); };

  // The caller's.
  stand_in::runtime().last_error = cudaErrorMemoryAllocation;
  CHECK(launches(device, 5));
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);

  // Its own.
  stand_in::launches().refuse_with = cudaErrorInvalidConfiguration;
  CHECK(message() == "mhla: a kernel could not be launched: invalid configuration argument");
  CHECK(cudaPeekAtLastError() == cudaSuccess);
  stand_in::launches().refuse_with = cudaErrorNoKernelImageForDevice;
  CHECK(says(message(), "mhla: a kernel could not be launched: no kernel image",
             "MHLA_INSTANTIATE_CUDA has to be compiled for compute capability 9.0"));
}
