// SPDX-License-Identifier: MIT
// That the machine which stands in for a GPU's thread blocks can be trusted: it does what
// machine.cuh says, and whatever a kernel must not do makes it fail, in each case shown by a body
// that does it and by one that just does not.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mhla/cuda/chip/product.cuh>
#include <mhla/testing/random_tensor.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cuda/machine.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;
using namespace mhla::cuda::fused;
namespace kernel = mhla::cuda::machine;

constexpr std::uint64_t seeds = 12;

/// A body that has to wait for earlier kernels itself.
template <int Threads, int SharedBytes, class F>
struct OwnBody {
  static constexpr int threads = Threads;
  static constexpr int shared_bytes = SharedBytes;
  static constexpr int min_blocks_per_sm = 1;
  F f;
  void operator()(const Block& block) const { f(block); }
};
/// One that does so before anything else.
template <int Threads, int SharedBytes, class F>
struct Body : OwnBody<Threads, SharedBytes, F> {
  void operator()(const Block& block) const {
    kernel::wait_for_earlier_kernels();
    this->f(block);
  }
};

template <int Threads = 64, int SharedBytes = 4096, class F>
void run(std::uint64_t seed, Index blocks, const F& f) {
  machine::context().seed = seed;
  kernel::run(machine::device(), blocks, Body<Threads, SharedBytes, F>{{f}});
}

/// What the machine says of a body, "nothing was thrown" where it finds no fault.
template <int Threads = 64, int SharedBytes = 4096, class F>
std::string fault(const F& f, std::uint64_t seed = 1, Index blocks = 1) {
  return error_message<stand_in::KernelFault>([&] { run<Threads, SharedBytes>(seed, blocks, f); });
}
const std::string none = "nothing was thrown";

/// Whether a body is at fault with every seed, in these words.
template <int Threads = 64, int SharedBytes = 4096, class F, class... Words>
void check_fault(const F& f, const Words&... words) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const std::string message = fault<Threads, SharedBytes>(f, seed);
    CAPTURE(seed, message);
    CHECK(says(message, "thread block 0:", words...));
  }
}
template <int Threads = 64, int SharedBytes = 4096, class F>
void check_no_fault(const F& f) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    CHECK(fault<Threads, SharedBytes>(f, seed) == none);
  }
}

constexpr Shared at(int bytes) { return static_cast<Shared>(bytes); }

template <class T>
T of(float value) {
  T stored;
  store(stored, value);
  return stored;
}
std::uint32_t pair_of(std::uint32_t low, std::uint32_t high) { return low | high << 16; }
template <class T>
std::uint32_t pair_of(float low, float high) {
  return pair_of(of<T>(low).bits, of<T>(high).bits);
}

float random_value(std::uint64_t seed, int i) {
  return static_cast<float>(mhla::testing::random_index(seed, static_cast<std::uint64_t>(i), 9) -
                            4);
}

TEST_CASE("Shared memory is NaN in every format when a block begins") {
  int blocks = 0;
  run(1, 5, [&blocks](const Block& block) {
    if (block.thread == 0) ++blocks;
    for (int i = block.thread * 16; i < 4096; i += 64 * 16) {
      const auto chunk = kernel::read<Chunk>(at(i));
      const bool all = std::all_of(std::begin(chunk.word), std::end(chunk.word),
                                   [](std::uint32_t word) { return word == 0xffffffffu; });
      if (!all) throw std::runtime_error("not poisoned");
      kernel::write(at(i), Chunk{});
    }
  });
  CHECK(blocks == 5);
  const std::uint32_t poison = 0xffffffffu;
  CHECK(std::isnan(scalar_traits::reinterpret<float>(poison)));
  CHECK(std::isnan(load(BFloat16::from_bits(std::uint16_t{0xffff}))));
  CHECK(std::isnan(load(Half::from_bits(std::uint16_t{0xffff}))));
}

TEST_CASE("An access that no barrier parts from another thread's is a race") {
  // Reading what another thread has written, in the other warp or in the same.
  for (const int distance : {1, 32}) {
    CAPTURE(distance);
    const auto neighbour = [distance](const Block& block) { return block.thread ^ distance; };
    check_fault(
        [=](const Block& block) {
          kernel::write(at(block.thread * 2), std::uint16_t{1});
          kernel::read<std::uint16_t>(at(neighbour(block) * 2));
        },
        "a race at byte ", " by thread ", "without a barrier between them", "block_machine.cpp:");
    // Writing what another thread has read.
    check_fault(
        [=](const Block& block) {
          kernel::write(at(block.thread * 8), 1.0);
          block.sync();
          kernel::read<double>(at(neighbour(block) * 8));
          kernel::write(at(block.thread * 8), 2.0);
        },
        "a write by thread ", "a read by thread");
    check_no_fault([=](const Block& block) {
      kernel::write(at(block.thread * 8), 1.0);
      block.sync();
      kernel::read<double>(at(neighbour(block) * 8));
      block.sync();
      kernel::write(at(block.thread * 8), 2.0);
    });
  }
  // Everybody may read; who has written alone may go on reading and writing.
  check_no_fault([](const Block& block) {
    kernel::write(at(block.thread * 4), 1);
    kernel::read<int>(at(block.thread * 4));
    kernel::write(at(block.thread * 4), 2);
    block.sync();
    for (int i = 0; i < 64; ++i) kernel::read<int>(at(i * 4));
  });
  // A barrier of warps parts nothing across warps, whoever of them has read last.
  check_fault(
      [](const Block& block) {
        if (block.thread == 0) kernel::write(at(0), 1);
        block.sync_warp();
        if (block.thread == 32) kernel::read<int>(at(0));
      },
      "a race at byte 0");
  // An element knows all of its bytes.
  check_fault(
      [](const Block& block) {
        if (block.thread == 0) kernel::write(at(14), std::uint16_t{1});
        if (block.thread == 40) kernel::read<Chunk>(at(0));
      },
      "a race at byte 14");
  // Another thread block has another memory.
  CHECK(fault([](const Block& block) { kernel::write(at(block.thread * 4), 1); }, 1, 9) == none);
}

TEST_CASE("A matrix load hands out rows as defined, straight and transposed") {
  using Registers = std::array<std::array<std::uint32_t, 4>, 32>;
  Registers straight{}, transposed{};
  // Element (row, col) of matrix m is a number of its own; rows lie anywhere.
  const auto element = [](int m, int row, int col) {
    return static_cast<std::uint32_t>(m * 100 + row * 10 + col);
  };
  const auto place = [](int m, int row) { return at((m * 8 + row) * 11 % 32 * 48 + 16); };
  const auto load_both = [&](const Block& block) {
    const int m = block.lane() / 8, row = block.lane() % 8;
    for (int col = 0; col < 8; ++col)
      kernel::write(place(m, row) + at(col * 2), static_cast<std::uint16_t>(element(m, row, col)));
    block.sync_warp();
    const auto l = static_cast<std::size_t>(block.lane());
    std::uint32_t registers[4];
    kernel::load_matrices(registers, place(m, row));
    std::copy_n(registers, 4, straight[l].begin());
    kernel::load_matrices_transposed(registers, place(m, row));
    std::copy_n(registers, 4, transposed[l].begin());
  };
  run<32>(3, 1, load_both);
  for (int l = 0; l < 32; ++l)
    for (int m = 0; m < 4; ++m) {
      const auto lane = static_cast<std::size_t>(l);
      const auto matrix = static_cast<std::size_t>(m);
      const int row = l / 4, col = 2 * (l % 4);
      CHECK(straight[lane][matrix] == pair_of(element(m, row, col), element(m, row, col + 1)));
      CHECK(transposed[lane][matrix] == pair_of(element(m, col, row), element(m, col + 1, row)));
    }
}

/// A lane's registers, as machine.cuh defines them.
template <class T>
struct Fragments {
  std::array<std::array<float, 16>, 16> a{};
  std::array<std::array<float, 8>, 16> b{};
  std::array<std::array<float, 8>, 16> c{};

  explicit Fragments(std::uint64_t seed) {
    int i = 0;
    for (auto& row : a)
      for (float& x : row) x = random_value(seed, i++);
    for (auto& row : b)
      for (float& x : row) x = random_value(seed, i++);
    for (auto& row : c)
      for (float& x : row) x = random_value(seed, i++);
  }

  /// Runs the product of the first `k` columns of a, on one warp.
  void multiply(int k) {
    run<32>(9, 1, [this, k](const Block& block) {
      const auto g = static_cast<std::size_t>(block.lane() / 4);
      const auto t = static_cast<std::size_t>(2 * (block.lane() % 4));
      const std::uint32_t of_a[4] = {
          pair_of<T>(a[g][t], a[g][t + 1]), pair_of<T>(a[g + 8][t], a[g + 8][t + 1]),
          pair_of<T>(a[g][t + 8], a[g][t + 9]), pair_of<T>(a[g + 8][t + 8], a[g + 8][t + 9])};
      const std::uint32_t b0 = pair_of<T>(b[t][g], b[t + 1][g]);
      const std::uint32_t b1 = pair_of<T>(b[t + 8][g], b[t + 9][g]);
      float of_c[4] = {c[g][t], c[g][t + 1], c[g + 8][t], c[g + 8][t + 1]};
      if (k == 16)
        kernel::multiply_add<T>(of_c, of_a, b0, b1);
      else
        kernel::multiply_add<T>(of_c, of_a[0], of_a[1], b0);
      c[g][t] = of_c[0];
      c[g][t + 1] = of_c[1];
      c[g + 8][t] = of_c[2];
      c[g + 8][t + 1] = of_c[3];
    });
  }
};

TEMPLATE_TEST_CASE("A product of fragments is that of their matrices", "", BFloat16, Half) {
  for (const std::size_t k : {std::size_t{16}, std::size_t{8}}) {
    CAPTURE(k);
    Fragments<TestType> x(k);
    auto expected = x.c;
    for (std::size_t row = 0; row < 16; ++row)
      for (std::size_t col = 0; col < 8; ++col)
        for (std::size_t l = 0; l < k; ++l) expected[row][col] += x.a[row][l] * x.b[l][col];
    x.multiply(static_cast<int>(k));
    CHECK(x.c == expected);
  }
  SECTION("rounded once, and NaN goes where it must") {
    Fragments<TestType> x(1);
    for (auto& row : x.a) row.fill(0x1p-12f);
    for (auto& row : x.b) row.fill(0x1p-15f);
    for (auto& row : x.c) row.fill(1.0f);
    x.a[3][5] = std::numeric_limits<float>::quiet_NaN();
    x.b[2].fill(-0x1p-15f);
    x.multiply(16);
    for (std::size_t row = 0; row < 16; ++row)
      for (const float c : x.c[row]) {
        CAPTURE(row, c);
        // Fifteen products of 2^-27 and one of -2^-27: 14 * 2^-27, half of it below float's 2^-23.
        CHECK((row == 3 ? std::isnan(c) : c == 1.0f + 0x1p-23f));
      }
  }
}

/// Sixteen bytes that copies take, all the same.
struct Sources {
  alignas(16) std::array<Chunk, 64> chunks;

  Sources() {
    for (std::uint32_t i = 0; i < 64; ++i) chunks[i] = {{i, i + 100, i + 200, i + 300}};
  }
  const void* of(const Block& block) const {
    return &chunks[static_cast<std::size_t>(block.thread)];
  }
};
void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

TEST_CASE("What was copied is there after its group was waited for and a barrier") {
  const Sources from;
  check_no_fault([&from](const Block& block) {
    // Three groups, the last but one empty, the last not waited for until the end.
    kernel::copy_chunk(at(block.thread * 16), from.of(block), true);
    kernel::copy_chunk(at(1024 + block.thread * 16), nullptr, false);
    kernel::commit_copies();
    kernel::commit_copies();
    kernel::copy_chunk(at(2048 + block.thread * 16), from.of(block), true);
    kernel::commit_copies();
    kernel::wait_for_copies<3>();
    kernel::wait_for_copies<1>();
    const auto own = kernel::read<Chunk>(at(block.thread * 16));
    require(own.word[1] == static_cast<std::uint32_t>(block.thread) + 100, "own chunk");
    block.sync();
    const int other = 63 - block.thread;
    const auto chunk = kernel::read<Chunk>(at(other * 16));
    require(chunk.word[3] == static_cast<std::uint32_t>(other) + 300, "another's chunk");
    const auto zeros = kernel::read<Chunk>(at(1024 + other * 16));
    require((zeros.word[0] | zeros.word[1] | zeros.word[2] | zeros.word[3]) == 0, "zeros");
    kernel::wait_for_copies<0>();
    block.sync();
    require(kernel::read<Chunk>(at(2048 + other * 16)).word[0] == static_cast<std::uint32_t>(other),
            "the last group");
  });
}

TEST_CASE("Copies are not to be touched before they were waited for, and made known") {
  const Sources from;
  const char* const under_way = "that has not been waited for";
  // Its own thread, too early by a group.
  check_fault(
      [&from](const Block& block) {
        kernel::copy_chunk(at(block.thread * 16), from.of(block), true);
        kernel::commit_copies();
        kernel::wait_for_copies<1>();
        kernel::read<int>(at(block.thread * 16 + 12));
        kernel::wait_for_copies<0>();
      },
      "a read by thread ", "after a copy by thread ", under_way);
  // In no group at all.
  check_fault(
      [&from](const Block& block) {
        kernel::copy_chunk(at(block.thread * 16), from.of(block), true);
        kernel::wait_for_copies<0>();
        kernel::read<int>(at(block.thread * 16));
        kernel::commit_copies();
        kernel::wait_for_copies<0>();
      },
      under_way);
  check_no_fault([&from](const Block& block) {
    kernel::copy_chunk(at(block.thread * 16), from.of(block), true);
    kernel::commit_copies();
    kernel::wait_for_copies<0>();
    kernel::read<int>(at(block.thread * 16 + 12));
    kernel::write(at(block.thread * 16), 1);
  });
  // Others, after the wait, before the barrier: the wait is each thread's own.
  const auto without_barrier = [&from](const Block& block, int distance) {
    kernel::copy_chunk(at(block.thread * 16), from.of(block), true);
    kernel::commit_copies();
    kernel::wait_for_copies<0>();
    kernel::read<int>(at((block.thread ^ distance) * 16));
  };
  check_fault([&](const Block& block) { without_barrier(block, 1); }, "a race", "read", "copy");
  check_fault([&](const Block& block) { without_barrier(block, 32); }, "a race", "read", "copy");
  check_no_fault([&from](const Block& block) {
    kernel::copy_chunk(at(block.thread * 16), from.of(block), true);
    kernel::commit_copies();
    kernel::wait_for_copies<0>();
    block.sync_warp();
    kernel::read<int>(at((block.thread ^ 1) * 16));
  });
  // The next tile is fetched before all have read the last one.
  const auto ring = [&from](const Block& block, bool waits_for_readers) {
    const auto fetch = [&] {
      kernel::copy_chunk(at(block.thread * 16), from.of(block), true);
      kernel::commit_copies();
    };
    fetch();
    kernel::wait_for_copies<0>();
    block.sync();
    kernel::read<Chunk>(at((block.thread ^ 32) * 16));
    if (waits_for_readers) block.sync();
    fetch();
    kernel::wait_for_copies<0>();
  };
  check_fault([&](const Block& block) { ring(block, false); }, "a race", "read", "copy by thread");
  check_no_fault([&](const Block& block) { ring(block, true); });
  // Left over.
  check_fault(
      [&from](const Block& block) {
        if (block.thread == 7) kernel::copy_chunk(at(0), from.of(block), true);
        kernel::commit_copies();
      },
      "thread 7 has ended without waiting for its copies");
}

TEST_CASE("Shared memory has an end, and elements their alignment") {
  const char* const outside = "of shared memory, which has 4096";
  check_fault([](const Block&) { kernel::read<std::uint16_t>(at(4096)); }, "a read of 2 bytes",
              "at byte 4096", outside);
  check_fault([](const Block&) { kernel::write(at(4092), 1.0); }, "a write of 8 bytes",
              "at byte 4092", outside);
  check_fault([](const Block&) { kernel::copy_chunk(at(4096), nullptr, false); },
              "a copy of 16 bytes", outside);
  check_fault(
      [](const Block& block) {
        std::uint32_t registers[4];
        kernel::load_matrices(registers, at(block.lane() == 9 ? 4096 : 0));
      },
      "a matrix load of 16 bytes at byte 4096", outside);
  check_no_fault<32>([](const Block& block) {
    if (block.thread == 0) kernel::write(at(4094), std::uint16_t{1});
    if (block.thread == 1) kernel::write(at(4080), std::uint64_t{1});
  });

  const char* const misaligned = "is not a multiple of that";
  check_fault([](const Block&) { kernel::read<int>(at(2)); }, "a read of 4 bytes", misaligned);
  check_fault([](const Block&) { kernel::copy_chunk(at(8), nullptr, false); }, "a copy of 16",
              misaligned);
  check_fault(
      [](const Block& block) {
        std::uint32_t registers[4];
        kernel::load_matrices(registers, at(block.lane() == 9 ? 8 : 0));
      },
      "a matrix load of 16", misaligned);
}

TEST_CASE("Addresses in global memory are aligned to the element") {
  const char* const misaligned = "at an address that is not a multiple of that";
  alignas(16) std::array<unsigned char, 64> bytes{};
  unsigned char* const memory = bytes.data();
  const auto float_at = [memory](int i) { return reinterpret_cast<float*>(memory + i); };
  check_fault([=](const Block&) { kernel::load_from(float_at(2)); }, "a load of 4 bytes",
              misaligned);
  check_fault([=](const Block&) { kernel::store_to(float_at(2), 1.0f); }, "a store of 4 bytes",
              misaligned);
  check_fault([=](const Block&) { kernel::copy_chunk(0, memory + 8, true); }, "a copy of 16 bytes",
              misaligned);
  check_no_fault<32>([=](const Block& block) {
    if (block.thread != 0) return;
    kernel::store_to(float_at(4), 3.0f);
    require(kernel::load_from(float_at(4)) == 3.0f, "stored");
    kernel::copy_chunk(0, memory, true);
    kernel::commit_copies();
    kernel::wait_for_copies<0>();
  });
}

TEST_CASE("Blocks of a launch, and threads without a barrier, keep apart in global memory") {
  std::vector<float> memory(64);
  float* const data = memory.data();
  const auto blocks_fault = [](const auto& f) { return fault(f, 3, 4); };
  CHECK(says(blocks_fault([data](const Block& block) {
               if (block.thread == 0) kernel::store_to(data, 1.0f);
             }),
             "a race in global memory: a store by thread 0 after a store by thread 0",
             "of another thread block"));
  CHECK(says(blocks_fault([data](const Block& block) {
               if (block.thread == 0 && block.number == 0) kernel::store_to(data, 1.0f);
               if (block.thread == 0 && block.number != 0) kernel::load_from(data);
             }),
             "a race in global memory", "load", "store", "of another thread block"));
  CHECK(blocks_fault([data](const Block& block) {
          if (block.thread != 0) return;
          kernel::store_to(data + block.number, 1.0f);
          kernel::store_to(data + block.number, kernel::load_from(data + block.number));
          kernel::load_from(data + 60);
        }) == none);
  // The next launch may do what it likes with what the last one left.
  CHECK(blocks_fault([data](const Block& block) {
          if (block.thread == 0) kernel::load_from(data + 3 - block.number);
        }) == none);

  check_fault(
      [data](const Block& block) {
        kernel::store_to(data + block.thread, 1.0f);
        kernel::load_from(data + (block.thread ^ 32));
      },
      "a race in global memory", "without a barrier between them");
  check_no_fault([data](const Block& block) {
    kernel::store_to(data + block.thread, 1.0f);
    block.sync();
    kernel::load_from(data + (block.thread ^ 32));
  });
}

/// The fault of a call's next kernel, whose body waits for earlier kernels itself.
template <class F>
std::string fault_of_next_kernel(const F& f) {
  return error_message<stand_in::KernelFault>([&] {
    kernel::run({nullptr, &machine::context()}, 2, OwnBody<64, 4096, F>{f});
  });
}
/// Runs a kernel that writes to `data`, then such ones; returns the fault of the last.
template <class... Bodies>
std::string fault_behind_a_kernel(std::array<Chunk, 64>& data, const Bodies&... bodies) {
  run(1, 1, [&](const Block& block) { kernel::store_to(&data[at(block.thread)], Chunk{}); });
  std::string message = none;
  const auto run_next = [&](const auto& body) {
    CHECK(message == none);
    message = fault_of_next_kernel(body);
  };
  (run_next(bodies), ...);
  return message;
}

TEST_CASE("A kernel waits for those before it, and touches nothing before that they may be at") {
  std::array<Chunk, 64> data{};
  std::array<Chunk, 64> tokens{};
  std::array<Chunk, 128> result{};
  const auto load = [](const std::array<Chunk, 64>& from, const Block& block) {
    return kernel::load_from(&from[at(block.thread)]);
  };
  const auto copy = [](const std::array<Chunk, 64>& from, const Block& block) {
    kernel::copy_chunk(at(block.thread * 16), &from[at(block.thread)], true);
    kernel::commit_copies();
    kernel::wait_for_copies<0>();
  };
  const auto store = [&](const Block& block) {
    kernel::store_to(&result[static_cast<std::size_t>(block.number * 64 + block.thread)], Chunk{});
  };
  const std::string not_waited = "that does not wait for earlier kernels: ";

  CHECK(fault_behind_a_kernel(data, [&](const Block& block) {
          load(tokens, block);
          copy(tokens, block);
          kernel::wait_for_earlier_kernels();
          load(data, block);
          copy(data, block);
          store(block);
        }) == none);
  CHECK(says(fault_behind_a_kernel(data,
                                   [&](const Block& block) {
                                     load(data, block);
                                     kernel::wait_for_earlier_kernels();
                                   }),
             "a load by thread", not_waited + "the last one has written there",
             "block_machine.cpp:"));
  // Of one thread, that another has waited says nothing.
  CHECK(says(fault_behind_a_kernel(data,
                                   [&](const Block& block) {
                                     if (block.warp() == 0) kernel::wait_for_earlier_kernels();
                                     block.sync();
                                     if (block.thread == 40) load(data, block);
                                     if (block.warp() == 1) kernel::wait_for_earlier_kernels();
                                   }),
             "a load by thread 40 " + not_waited));
  // Whatever is under way may read anything.
  CHECK(says(fault_behind_a_kernel(data,
                                   [&](const Block& block) {
                                     store(block);
                                     kernel::wait_for_earlier_kernels();
                                   }),
             "a store by thread", not_waited + "they may be reading there"));
  // On every path, in every thread.
  for (const Index number : {0, 1})
    for (const int thread : {0, 63})
      CHECK(says(
          fault_behind_a_kernel(data,
                                [=](const Block& block) {
                                  if (block.number == number && block.thread == thread) return;
                                  kernel::wait_for_earlier_kernels();
                                }),
          "thread " + std::to_string(thread) + " has ended without waiting for earlier kernels"));
}

TEST_CASE("What a body throws is told, and the machine goes on") {
  check_fault(
      [](const Block& block) {
        block.sync();
        if (block.thread == 50) throw std::runtime_error("enough");
        block.sync();
      },
      "thread 50 has thrown: enough");
  std::vector<int> ran(2 * 256);
  run<256>(1, 2, [data = ran.data()](const Block& block) {
    block.sync();
    kernel::store_to(data + block.number * 256 + block.thread, 1);
  });
  CHECK(std::all_of(ran.begin(), ran.end(), [](int i) { return i == 1; }));
}

// The tiles and products that all fused kernels are made of.

}  // namespace
