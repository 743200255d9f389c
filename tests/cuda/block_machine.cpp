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

TEST_CASE("Every thread of every block runs once, in an order that depends on the seed") {
  using Met = std::vector<std::array<Index, 5>>;
  const auto order = [](std::uint64_t seed) {
    Met met;
    run<96>(seed, 7, [&met](const Block& block) {
      met.push_back({block.number, block.blocks, block.thread, block.warp(), block.lane()});
      block.sync();
      block.sync_warp();
    });
    return met;
  };
  const Met first = order(5);
  CHECK(order(5) == first);
  CHECK(order(6) != first);
  std::set<std::array<Index, 5>> expected;
  for (Index number = 0; number < 7; ++number)
    for (Index thread = 0; thread < 96; ++thread)
      expected.insert({number, 7, thread, thread / 32, thread % 32});
  CHECK(first.size() == expected.size());
  CHECK(std::set(first.begin(), first.end()) == expected);

  const long launches = machine::context().launches;
  run(1, 0, [](const Block&) { throw std::runtime_error("no block is to run"); });
  CHECK(machine::context().launches == launches);
  run(1, 2, [](const Block&) {});
  CHECK(machine::context().launches == launches + 1);
  CHECK(says(error_message<ShapeError>([] { run(1, kernel::max_blocks + 1, [](const Block&) {}); }),
             "2147483648 thread blocks"));
}

TEST_CASE("Warps starve each other, lanes of a warp go on in any order") {
  int longest_lead = 0;
  bool was_even = false;
  std::set<int> first_lanes;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    std::array<int, 4> steps{};
    int lead = 0;
    int lanes = 0;
    run<128>(seed, 1, [&](const Block& block) {
      if (lanes++ == 0) first_lanes.insert(block.lane());
      for (int i = 0; i < 500; ++i) {
        block.sync_warp();
        if (block.lane() != 0) continue;
        ++steps[static_cast<std::size_t>(block.warp())];
        const auto [least, most] = std::minmax_element(steps.begin(), steps.end());
        lead = std::max(lead, *most - *least);
      }
    });
    longest_lead = std::max(longest_lead, lead);
    was_even = was_even || lead < 500;
  }
  CHECK(longest_lead == 500);
  CHECK(was_even);
  CHECK(first_lanes.size() > 8);
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

TEST_CASE("Lanes exchange values with the lane that differs by the mask") {
  for (const int mask : {1, 2, 4, 8, 16, 31, 0}) {
    std::array<float, 64> got{};
    run(1, 1, [&got, mask](const Block& block) {
      const float value = static_cast<float>(block.thread);
      const float once = kernel::exchange(value, mask);
      got[static_cast<std::size_t>(block.thread)] = once + 100 * kernel::exchange(once, mask);
    });
    for (int t = 0; t < 64; ++t)
      CHECK(got[static_cast<std::size_t>(t)] ==
            static_cast<float>(t / 32 * 32 + (t % 32 ^ mask) + 100 * t));
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
  // Left behind.
  check_fault(
      [&from](const Block& block) {
        if (block.thread == 7) kernel::copy_chunk(at(0), from.of(block), true);
        kernel::commit_copies();
      },
      "thread 7 has ended without waiting for its copies");
}

TEST_CASE("A matrix load reads for the whole warp") {
  const auto load_after = [](const Block& block, bool meets) {
    kernel::write(at(block.thread * 16), Chunk{});
    if (meets) block.sync_warp();
    std::uint32_t registers[4];
    kernel::load_matrices(registers, at(block.thread * 16));
  };
  check_fault([&](const Block& block) { load_after(block, false); }, "a matrix load by warp ",
              "after a write by thread ");
  check_no_fault([&](const Block& block) { load_after(block, true); });
  const auto write_after = [](const Block& block, bool meets) {
    std::uint32_t registers[4];
    kernel::load_matrices_transposed(registers, at(block.thread * 16));
    if (meets) block.sync_warp();
    kernel::write(at(block.thread * 16), Chunk{});
  };
  check_fault([&](const Block& block) { write_after(block, false); }, "a write by thread ",
              "after a matrix load by warp ");
  check_no_fault([&](const Block& block) { write_after(block, true); });
}

TEST_CASE("The threads of a warp come to one place") {
  const char* const apart = "does not meet";
  const auto half = [](const Block& block) { return block.lane() < 16; };
  check_fault(
      [half](const Block& block) {
        if (half(block)) block.sync_warp();
        kernel::exchange(1, 1);
        if (!half(block)) block.sync_warp();
      },
      apart, "exchange at block_machine.cpp:", "sync_warp at block_machine.cpp:");
  check_fault(
      [half](const Block& block) {
        std::uint32_t registers[4];
        half(block) ? kernel::load_matrices(registers, 0)
                    : kernel::load_matrices_transposed(registers, 0);
      },
      apart, "load_matrices_transposed at ");
  check_fault(
      [half](const Block& block) {
        float c[4] = {};
        const std::uint32_t a[4] = {};
        half(block) ? kernel::multiply_add<Half>(c, a, 0u, 0u)
                    : kernel::multiply_add<BFloat16>(c, a, 0u, 0u);
      },
      apart, "multiply_add<Half>", "multiply_add<BFloat16>");
  check_fault([half](const Block& block) { kernel::exchange(1, half(block) ? 1 : 2); },
              "exchanges by masks ");
  // Warps may go ways of their own, as long as all threads come to the block's barriers.
  check_no_fault([](const Block& block) {
    if (block.warp() == 0) {
      kernel::exchange(1, 1);
      block.sync();
    } else {
      block.sync();
      block.sync_warp();
    }
  });
}

TEST_CASE("Nobody waits for threads that have ended") {
  check_fault(
      [](const Block& block) {
        if (block.thread != 37) block.sync();
      },
      "warp 1 waits for lanes that have ended", "threads 37 to 37 have ended",
      "wait in sync at block_machine.cpp:");
  check_fault(
      [](const Block& block) {
        if (block.warp() == 1) block.sync();
      },
      "threads wait for others that have ended", "Threads 0 to 31 have ended",
      "threads 32 to 63 wait in sync at ");
  check_no_fault([](const Block& block) {
    block.sync();
    if (block.warp() == 1) return;
    block.sync_warp();
  });
}

TEST_CASE("Waiting for what nobody can write is no hang") {
  const std::string message = fault([](const Block& block) {
    if (block.warp() == 0)
      while (kernel::read<int>(at(0)) != 1) {
      }
    block.sync();
    if (block.thread == 40) kernel::write(at(0), 1);
  });
  CAPTURE(message);
  CHECK(says(message, "times without meeting anyone"));
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

/// As a Body, with as much shared memory as a call takes.
template <class F>
struct SizedBody {
  static constexpr int threads = 32;
  static constexpr int min_blocks_per_sm = 1;
  F f;
  int bytes;
  int shared_bytes() const { return bytes; }
  void operator()(const Block& block) const {
    kernel::wait_for_earlier_kernels();
    f(block);
  }
};

TEST_CASE("Shared memory may depend on the call, up to what the chip has") {
  const auto message = [](int bytes, int place) {
    auto f = [place](const Block& block) {
      if (block.thread == 0) kernel::write(at(place), std::uint16_t{1});
    };
    return error_message<std::runtime_error>([&] {
      kernel::run(machine::device(), 1, SizedBody<decltype(f)>{f, bytes});
    });
  };
  const int most = stand_in::runtime().shared_bytes;
  REQUIRE(most > kernel::max_shared_bytes);
  for (const int bytes : {64, 6000, most}) {
    CAPTURE(bytes);
    CHECK(message(bytes, bytes - 2) == none);
    CHECK(says(message(bytes, bytes), "at byte " + std::to_string(bytes),
               "of shared memory, which has " + std::to_string(bytes)));
  }
  auto nothing = [](const Block&) {};
  CHECK(says(error_message<CudaError>([&] {
               kernel::run(machine::device(), 1, SizedBody<decltype(nothing)>{nothing, most + 1});
             }),
             "could not be launched"));
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

TEST_CASE("Of a call's first kernel, and of products, it is known what may be under way") {
  std::array<Chunk, 64> data{};
  std::array<Chunk, 64> tokens{};
  const auto load = [&](const std::array<Chunk, 64>& from, bool before_waiting) {
    return fault_of_next_kernel([&](const Block& block) {
      if (!before_waiting) kernel::wait_for_earlier_kernels();
      kernel::load_from(&from[at(block.thread)]);
      if (before_waiting) kernel::wait_for_earlier_kernels();
    });
  };
  const auto write = [&] {
    run(1, 1, [&](const Block& block) { kernel::store_to(&data[at(block.thread)], Chunk{}); });
  };
  const std::string unknown =
      "does not wait for earlier kernels: nothing is known of those before a call";
  machine::device();
  CHECK(says(load(tokens, true), "a load by thread", unknown));
  machine::device();
  CHECK(load(tokens, false) == none);
  CHECK(load(tokens, true) == none);  // the second kernel of the call
  write();
  machine::device_within_a_call();
  CHECK(load(data, true) == none);
  write();
  CHECK(says(load(data, true), "the last one has written there"));

  // A product of 2 x 2 in a matrix whose columns are 4 apart.
  const auto multiply = [&] {
    const float one = 1, zero = 0;
    const std::array<float, 4> factor{};
    cublasGemmStridedBatchedEx(&machine::context(), CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one,
                               factor.data(), CUDA_R_32F, 2, 0, factor.data(), CUDA_R_32F, 2, 0,
                               &zero, &data[1], CUDA_R_32F, 4, 0, 1, CUBLAS_COMPUTE_32F_PEDANTIC,
                               CUBLAS_GEMM_DEFAULT);
  };
  for (const bool before_waiting : {true, false}) {
    machine::device_within_a_call();
    load(tokens, true);
    multiply();
    const std::string message = load(data, before_waiting);
    CAPTURE(message);
    CHECK((message == none) != before_waiting);
    CHECK(says(message, "a load by thread 1 ") == before_waiting);
    CHECK(says(message, "a load by thread 2 ") == before_waiting);
    CHECK_FALSE(says(message, "a load by thread 0 "));
    CHECK_FALSE(says(message, "a load by thread 3 "));
  }
  CHECK(load(data, true) == none);  // the product is in front of the kernel before
}

TEST_CASE("Bytes of global memory are counted, of the last launch and of all") {
  cublasContext& context = machine::context();
  const auto read = context.kernel_bytes_read;
  const auto written = context.kernel_bytes_written;
  std::vector<double> memory(3 * 64);
  const Sources from;
  const auto body = [&from, data = memory.data()](const Block& block) {
    double* const own = data + block.number * 64 + block.thread;
    kernel::store_to(own, 1.0);
    kernel::load_from(reinterpret_cast<const std::uint16_t*>(own));
    kernel::copy_chunk(at(block.thread * 16), from.of(block), block.thread < 10);
    kernel::commit_copies();
    kernel::wait_for_copies<0>();
    kernel::write(at(block.thread * 16), kernel::read<double>(at(block.thread * 16)));
  };
  run(1, 3, body);
  CHECK(context.last_kernel_bytes_read == 3 * (64 * 2 + 10 * 16));
  CHECK(context.last_kernel_bytes_written == 3 * 64 * 8);
  run(2, 1, body);
  CHECK(context.last_kernel_bytes_read == 64 * 2 + 10 * 16);
  CHECK(context.kernel_bytes_read - read == 4 * (64 * 2 + 10 * 16));
  CHECK(context.kernel_bytes_written - written == 4 * 64 * 8);
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

template <class T>
std::vector<T> random_elements(std::uint64_t seed, int count) {
  std::vector<T> elements;
  for (int i = 0; i < count; ++i) elements.push_back(of<T>(random_value(seed, i)));
  return elements;
}
template <class T>
TensorRow<T> row_of(T* data, int row, int cols, int col) {
  return {data + row * cols + col, true};
}

/// c = 1 + a b through tiles, small integers that no order of the sums can round.
template <class T, int M, int N, int K, Stored a_stored, Stored b_stored, int WarpsM, int WarpsN>
void check_product() {
  CAPTURE(M, N, K, a_stored, b_stored, WarpsM, WarpsN);
  constexpr int threads = 32 * WarpsM * WarpsN;
  constexpr bool a_straight = a_stored == Stored::straight;
  constexpr bool b_straight = b_stored == Stored::straight;
  using TileA = std::conditional_t<a_straight, Tile<M, K>, Tile<K, M>>;
  using TileB = std::conditional_t<b_straight, Tile<K, N>, Tile<N, K>>;
  const auto a = random_elements<T>(1, M * K);
  const auto b = random_elements<T>(2, K * N);
  std::vector<float> c(M * N, std::numeric_limits<float>::quiet_NaN());
  run<threads, TileA::bytes + TileB::bytes>(
      M + N + K, 1, [from_a = a.data(), from_b = b.data(), to = c.data()](const Block& block) {
        const TileA tile_a{0};
        const TileB tile_b{TileA::bytes};
        const auto row_a = [from_a](int r, int col) { return row_of(from_a, r, TileA::cols, col); };
        const auto row_b = [from_b](int r, int col) { return row_of(from_b, r, TileB::cols, col); };
        copy_rows<threads, T>(block, tile_a, row_a);
        copy_elements<threads, T>(block, tile_b, row_b);
        kernel::commit_copies();
        Accumulators<M, N, WarpsM, WarpsN> sum;
        sum.for_each_pair(block, [](int, int, float& first, float& second) { first = second = 1; });
        kernel::wait_for_copies<0>();
        block.sync();
        multiply_add<T, K, a_stored, b_stored>(block, sum, tile_a, tile_b);
        sum.for_each_pair(block, [to](int row, int col, float first, float second) {
          kernel::store_to(to + row * N + col, first);
          kernel::store_to(to + row * N + col + 1, second);
        });
      });
  std::vector<float> expected(M * N, 1.0f);
  for (int row = 0; row < M; ++row)
    for (int col = 0; col < N; ++col)
      for (int k = 0; k < K; ++k)
        expected[static_cast<std::size_t>(row * N + col)] +=
            load(a[static_cast<std::size_t>(a_straight ? row * K + k : k * M + row)]) *
            load(b[static_cast<std::size_t>(b_straight ? k * N + col : col * K + k)]);
  CHECK(c == expected);
  CHECK(machine::context().last_kernel_bytes_read == 2 * (M * K + K * N));
}

template <Stored a_stored, Stored b_stored>
void check_products() {
  check_product<BFloat16, 72, 72, 72, a_stored, b_stored, 4, 2>();
  check_product<Half, 32, 40, 72, a_stored, b_stored, 2, 4>();
  check_product<Half, 96, 72, 32, a_stored, b_stored, 8, 1>();
}

TEST_CASE("Products of tiles, stored either way") {
  check_products<Stored::straight, Stored::straight>();
  check_products<Stored::straight, Stored::transposed>();
  check_products<Stored::transposed, Stored::straight>();
  check_products<Stored::transposed, Stored::transposed>();
}

TEST_CASE("A tile without gaps is a factor like any other") {
  constexpr int M = 32, N = 24, K = 40, threads = 64;
  using TileA = Tile<M, K>;
  using TileB = DenseTile<K, N>;
  std::vector<float> c(M * N);
  run<threads, TileA::bytes + TileB::bytes>(3, 1, [to = c.data()](const Block& block) {
    const TileA a{0};
    const TileB b{TileA::bytes};
    const auto fill = [&](const auto& tile, std::uint64_t seed) {
      for (int i = block.thread; i < tile.rows * tile.cols; i += threads)
        kernel::write(tile.at(i / tile.cols, i % tile.cols), of<Half>(random_value(seed, i)));
    };
    fill(a, 1);
    fill(b, 2);
    block.sync();
    Accumulators<M, N, 2, 1> sum;
    multiply_add<Half, K, Stored::straight, Stored::straight>(block, sum, a, b);
    sum.for_each_pair(block, [to](int row, int col, float first, float second) {
      kernel::store_to(to + row * N + col, first);
      kernel::store_to(to + row * N + col + 1, second);
    });
  });
  for (int row = 0; row < M; ++row)
    for (int col = 0; col < N; ++col) {
      float expected = 0;
      for (int k = 0; k < K; ++k)
        expected += random_value(1, row * K + k) * random_value(2, k * N + col);
      CHECK(c[static_cast<std::size_t>(row * N + col)] == expected);
    }
}

TEMPLATE_TEST_CASE("Rows come into tiles and go back, aligned and not", "", BFloat16, Half) {
  using T = TestType;
  constexpr int rows = 20, cols = 72, threads = 64;
  const auto way = GENERATE(0, 1, 2);  // aligned, an element off, every second element
  CAPTURE(way);
  const Index step = way == 2 ? 2 : 1;
  alignas(16) std::array<T, rows * cols * 2 + 8> from, to;
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = of<T>(random_value(7, static_cast<int>(i)));
    to[i] = of<T>(1000);
  }
  const auto before = to;
  const auto index = [=](int r, int c) { return (way == 1) + (r * cols + c) * step; };
  const auto present = [](int r) { return r % 3 != 1; };
  const auto beyond = static_cast<Index>(from.size());  // of a row that is absent
  for (const Update update : {Update::overwrite, Update::accumulate}) {
    to = before;
    run<threads, Tile<rows, cols>::bytes>(4, 1, [&](const Block& block) {
      const Tile<rows, cols> tile{0};
      const auto from_row = [&](int r, int c) {
        return TensorRow<const T>{from.data() + (present(r) ? index(r, c) : beyond), present(r)};
      };
      if (way == 0) {
        copy_rows<threads, T>(block, tile, from_row);
      } else {
        copy_elements<threads, T>(block, tile, from_row);
      }
      kernel::commit_copies();
      kernel::wait_for_copies<0>();
      block.sync();
      for (int c = block.thread; c < cols; c += threads)
        require(kernel::read<T>(tile.at(1, c)).bits == 0, "a row that is absent is zero");
      const auto to_row = [&](int r, int c) {
        return TensorRow<T>{to.data() + (present(r) ? index(r, c) : beyond), present(r)};
      };
      if (way == 0 && update == Update::overwrite) {
        store_rows<threads, T>(block, tile, to_row);
      } else {
        store_elements<threads, T>(block, tile, update, to_row);
      }
    });
    auto expected = before;
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < cols; ++c) {
        if (!present(r)) continue;
        const auto i = static_cast<std::size_t>(index(r, c));
        expected[i] = update == Update::overwrite ? from[i] : of<T>(1000 + load(from[i]));
      }
    const auto bits = [](T x) { return x.bits; };
    CHECK(std::equal(to.begin(), to.end(), expected.begin(), expected.end(),
                     [&](T x, T y) { return bits(x) == bits(y); }));
  }
}

}  // namespace
