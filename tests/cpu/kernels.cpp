// SPDX-License-Identifier: MIT
// The kernels of every instruction set that this machine has against loops, on small integers, so
// that every sum is exact whatever its order. tests/cpu/gemm.cpp runs the products that choose
// among them.
#include <mhla/cpu/kernels.hpp>
#include <string>

#include "tests/cpu/integer_panel.hpp"
#include "tests/support/catch.hpp"

namespace {

using mhla::Index;
using panels::IntegerPanel;
namespace cpu = mhla::cpu;

// An instruction set, and whether this machine has it.
struct Scalar {
  using Kernels = cpu::scalar::Kernels<double>;
  static bool here() { return true; }
};
struct Portable {
  using Kernels = cpu::portable::Kernels<double>;
  static bool here() { return true; }
};
#if defined(__x86_64__)
struct Avx2 {
  using Kernels = cpu::avx2::Kernels<double>;
  static bool here() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
};
struct Avx512 {
  using Kernels = cpu::avx512::Kernels<double>;
  static bool here() { return __builtin_cpu_supports("avx512f") != 0; }
};
#define INSTRUCTION_SETS Scalar, Portable, Avx2, Avx512
#else
#define INSTRUCTION_SETS Scalar, Portable
#endif

// Says so where the machine does not have the instruction set: nothing is checked then. (Succeeds,
// since a test case without any assertion fails.)
template <class InstructionSet>
bool on_this_machine() {
  if (InstructionSet::here()) return true;
  WARN("Not checked: this machine does not have the instruction set.");
  SUCCEED();
  return false;
}

// c (+)= a b, by loops.
IntegerPanel product(const IntegerPanel& a, const IntegerPanel& b, IntegerPanel c, Index rows,
                     Index cols, Index depth, bool add) {
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < cols; ++j) {
      double sum = add ? c(i, j) : 0.0;
      for (Index k = 0; k < depth; ++k) sum += a(i, k) * b(k, j);
      c(i, j) = sum;
    }
  return c;
}

template <class Kernels>
void check_products(Index rows, Index cols, Index depth) {
  INFO("[" << rows << ", " << depth << "] * [" << depth << ", " << cols << "]");
  const IntegerPanel a(rows, depth, 1);
  const IntegerPanel b(depth, cols, 2);
  IntegerPanel a_transposed(depth, rows);
  IntegerPanel b_transposed(cols, depth);
  for (Index k = 0; k < depth; ++k) {
    for (Index i = 0; i < rows; ++i) a_transposed(k, i) = a(i, k);
    for (Index j = 0; j < cols; ++j) b_transposed(j, k) = b(k, j);
  }
  const IntegerPanel before(rows, cols, 3);
  for (const bool add : {false, true}) {
    const IntegerPanel expected = product(a, b, before, rows, cols, depth, add);
    const auto data = [](const IntegerPanel& x) { return x.panel().data; };
    IntegerPanel c = before;
    Kernels::multiply(rows, cols, depth, data(a), depth, 1, data(b), cols, c.panel().data, cols,
                      add);
    CHECK(c == expected);
    c = before;
    Kernels::multiply(rows, cols, depth, data(a_transposed), 1, rows, data(b), cols, c.panel().data,
                      cols, add);
    CHECK(c == expected);
    c = before;
    Kernels::multiply_transposed(rows, cols, depth, data(a), depth, data(b_transposed), depth,
                                 c.panel().data, cols, add);
    CHECK(c == expected);
    c = before;
    Kernels::multiply_long_transposed(rows, cols, depth, data(a), depth, data(b_transposed), depth,
                                      c.panel().data, cols, add);
    CHECK(c == expected);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("kernels: products of every tile and every rest", "[cpu]", INSTRUCTION_SETS) {
  if (!on_this_machine<TestType>()) return;
  using Kernels = typename TestType::Kernels;
  for (Index rows = 0; rows <= 26; ++rows)
    for (const Index cols : {1, 3, 8, 15, 33}) check_products<Kernels>(rows, cols, 5);
  for (Index cols = 0; cols <= 70; ++cols)
    for (const Index rows : {1, 7, 25}) check_products<Kernels>(rows, cols, 9);
  for (const Index depth : {0, 1, 2, 127, 128, 129, 300, 1025})
    for (const Index rows : {3, 30}) check_products<Kernels>(rows, 77, depth);
}

TEMPLATE_TEST_CASE("kernels: sums along a row", "[cpu]", INSTRUCTION_SETS) {
  if (!on_this_machine<TestType>()) return;
  using Kernels = typename TestType::Kernels;
  for (Index count = 0; count <= 80; ++count) {
    const IntegerPanel a(2, count, 1);
    const IntegerPanel b(2, count, 2);
    double expected = 0;
    IntegerPanel sum = b;
    for (Index c = 0; c < count; ++c) {
      expected += a(1, c) * b(1, c);
      sum(0, c) += 3 * a(0, c);
    }
    CHECK(Kernels::dot(count, a.panel().row(1), b.panel().row(1)) == expected);
    double products[2] = {7, 7};
    Kernels::row_products(2, count, a.panel().data, count, b.panel().data, count, products);
    CHECK(products[1] == expected);
    IntegerPanel result = b;
    Kernels::add_scaled(count, 3, a.panel().data, result.panel().data);
    CHECK(result == sum);
  }
}

TEMPLATE_TEST_CASE("kernels: a transpose is one", "[cpu]", INSTRUCTION_SETS) {
  if (!on_this_machine<TestType>()) return;
  for (const Index rows : {1, 2, 4, 7})
    for (const Index cols : {1, 3, 4, 9}) {
      const IntegerPanel from(rows, cols, 1);
      IntegerPanel to(cols, rows);
      IntegerPanel expected(cols, rows);
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c) expected(c, r) = from(r, c);
      TestType::Kernels::transpose(rows, cols, from.panel().data, cols, to.panel().data, rows);
      CHECK(to == expected);
    }
}
