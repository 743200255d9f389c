// SPDX-License-Identifier: MIT
// The library's own launch, which the other tests replace: every element once, on the device's
// stream, and whose error is reported.
#include "include/mhla/cuda/chip/launch.cuh"

#include <cstdint>
#include <mhla/cuda/chip/divisor.hpp>
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

struct CountUnits {
  int* visits;
  std::uint32_t units;
  void operator()(std::uint32_t row, const mhla::cuda::RowShare& share) const {
    for (std::uint32_t n = share.first; n < units; n += share.step) ++visits[row * units + n];
  }
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

TEST_CASE("launch: kernels get all shared memory that there is, or an error", "[cuda]") {
  const Restored restored;
  const char kernel = 0, other = 0;
  const auto set_for = [](const char& of, cudaFuncAttribute attribute) {
    return stand_in::runtime().attributes.at({&of, attribute});
  };
  // Whatever each asks for, so that the SMs need not change between them.
  mhla::cuda::give_shared_memory(&kernel, 100000);
  mhla::cuda::give_shared_memory(&other, 0);
  mhla::cuda::give_shared_memory(&kernel, 10);
  for (const char* const of : {&kernel, &other}) {
    CHECK(set_for(*of, cudaFuncAttributeMaxDynamicSharedMemorySize) == 227 * 1024);
    CHECK(set_for(*of, cudaFuncAttributePreferredSharedMemoryCarveout) ==
          cudaSharedmemCarveoutMaxShared);
  }
  stand_in::runtime().shared_bytes = 99 * 1024;
  CHECK(error_message<CudaError>([&] { mhla::cuda::give_shared_memory(&kernel, 110000); }) ==
        "mhla: a kernel needs 110000 bytes of shared memory, of which the device has 101376 for a "
        "thread block");
}

TEST_CASE("launch_rows: meets every unit of every row once, on the device's stream", "[cuda]") {
  const Restored restored;
  char memory = 0;
  const mhla::CudaDevice device(reinterpret_cast<cudaStream_t>(&memory), nullptr);
  const auto run = [&](Index rows, Index units) {
    std::vector<int> visits(static_cast<std::size_t>(rows * units));
    mhla::cuda::launch_rows(device, rows, units,
                            CountUnits{visits.data(), static_cast<std::uint32_t>(units)});
    return visits == std::vector<int>(visits.size(), 1);
  };
  for (const Index rows : {1, 7, 256, 300})
    for (const Index units : {1, 2, 3, 9, 31, 32, 33, 300}) {
      CAPTURE(rows, units);
      CHECK(run(rows, units));
      CHECK(stand_in::launches().stream == device.stream());
    }
  // With rows enough, a thread takes eight units.
  CHECK(run(100000, 32));
  CHECK(stand_in::launches().blocks.x == 100000 / 64 + 1);
  CHECK(run(300000, 9));
  CHECK(stand_in::launches().blocks.x == 300000 / 128 + 1);

  const long made = stand_in::launches().made;
  CHECK(run(0, 5));
  CHECK(run(5, 0));
  CHECK_THROWS_AS(mhla::cuda::launch_rows(device, Index{1} << 31, 1, CountUnits{nullptr, 1}),
                  mhla::ShapeError);
  CHECK(stand_in::launches().made == made);
}

TEST_CASE("divisor: quotients and remainders of 31 bits", "[cuda]") {
  constexpr std::uint32_t last = 0x7fffffff;
  const auto check = [](std::uint32_t divisor, std::uint32_t n) {
    const mhla::cuda::Divisor by(divisor);
    std::uint32_t quotient = n;
    const std::uint32_t rest = by.divide(quotient);
    if (by.quotient(n) != n / divisor || quotient != n / divisor || rest != n % divisor)
      FAIL(n << " / " << divisor);
  };
  for (std::uint32_t divisor = 1; divisor <= 400; ++divisor)
    for (std::uint32_t n = 0; n < 2000; ++n) check(divisor, n);
  // An error would show first where a quotient begins or ends, and at large numbers.
  const auto check_edges = [&](std::uint32_t divisor) {
    const std::uint32_t quotients = last / divisor;
    for (const std::uint32_t near : {0u, quotients / 3, quotients / 2, quotients})
      for (std::uint32_t q = near < 50 ? 0 : near - 50; q <= quotients && q < near + 50; ++q) {
        check(divisor, q * divisor);
        if (q > 0) check(divisor, q * divisor - 1);
      }
    check(divisor, last);
  };
  for (int shift = 0; shift < 31; ++shift)
    for (std::uint32_t offset = 0; offset < 40; ++offset) {
      const std::uint32_t power = 1u << shift;
      if (power + offset <= last) check_edges(power + offset);
      if (power > offset) check_edges(power - offset);
    }
  for (std::uint32_t divisor = last; divisor > last - 100; --divisor) check_edges(divisor);
  std::uint32_t divisor = 12345;
  for (int i = 0; i < 2000; ++i, divisor = divisor * 1664525u + 1013904223u)
    check_edges(divisor % last + 1);
  CHECK(mhla::cuda::Divisor(7).quotient(last) == last / 7);
  // Of an empty tensor an extent may be any.
  for (int shift = 31; shift <= 56; ++shift)
    CHECK(mhla::cuda::Divisor(Index{1} << shift).quotient(last) == 0);
}
