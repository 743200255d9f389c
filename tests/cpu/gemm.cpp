// SPDX-License-Identifier: MIT
// The products of the CPU backend against loops. Factors are small integers, so that every sum is
// exact whatever its order, and results are compared exactly.
#include <cstddef>
#include <cstring>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using mhla::Index;
using mhla::Span;
using mhla::Workspace;
using mhla::cpu::Into;
using mhla::cpu::Panel;
using mhla::testing::random_index;

constexpr int sentinel = 77777;

// A matrix whose rows are `gap` elements longer than it is wide; between them lie sentinels.
template <class T>
class Matrix {
 public:
  Matrix(Index rows, Index cols, Index gap)
      : rows_(rows),
        cols_(cols),
        stride_(cols + gap),
        memory_(static_cast<std::size_t>(rows * stride_), T(sentinel)) {}
  // integers from -4 to 4
  Matrix(Index rows, Index cols, Index gap, std::uint64_t seed) : Matrix(rows, cols, gap) {
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < cols; ++c)
        (*this)(r, c) =
            static_cast<T>(random_index(seed, static_cast<std::uint64_t>(r * cols + c), 9) - 4);
  }

  Panel<T> panel() { return {memory_.data(), rows_, cols_, stride_}; }
  Panel<const T> panel() const { return {memory_.data(), rows_, cols_, stride_}; }
  T& operator()(Index r, Index c) { return memory_[static_cast<std::size_t>(r * stride_ + c)]; }
  T operator()(Index r, Index c) const {
    return memory_[static_cast<std::size_t>(r * stride_ + c)];
  }
  friend bool operator==(const Matrix&, const Matrix&) = default;  // sentinels included

 private:
  Index rows_, cols_, stride_;
  std::vector<T> memory_;
};

// What the three products and a loop make of random factors. `a` and `b` are the factors of the
// plain product, to which the transposed ones are given transposed.
template <class T>
void check_products(Index rows, Index depth, Index cols, Index gap) {
  INFO("[" << rows << ", " << depth << "] * [" << depth << ", " << cols << "], gap " << gap);
  const Matrix<T> a(rows, depth, gap, 1);
  const Matrix<T> b(depth, cols, gap + 1, 2);
  Matrix<T> a_transposed(depth, rows, gap + 2);
  Matrix<T> b_transposed(cols, depth, gap);
  for (Index l = 0; l < depth; ++l) {
    for (Index r = 0; r < rows; ++r) a_transposed(l, r) = a(r, l);
    for (Index c = 0; c < cols; ++c) b_transposed(c, l) = b(l, c);
  }
  const Matrix<T> before(rows, cols, gap, 3);
  Matrix<T> replaced(rows, cols, gap);
  Matrix<T> added = before;
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < cols; ++c) {
      T sum = T(0);
      for (Index l = 0; l < depth; ++l) sum += a(r, l) * b(l, c);
      replaced(r, c) = sum;
      added(r, c) += sum;
    }

  const auto check = [&](const char* name, const auto& product) {
    INFO(name);
    Matrix<T> result(rows, cols, gap);  // sentinels all over, where it is overwritten too
    product(result.panel(), Into::overwrite);
    CHECK(result == replaced);
    result = before;
    product(result.panel(), Into::add);
    CHECK(result == added);
  };
  check("multiply", [&](const Panel<T>& result, Into into) {
    mhla::cpu::multiply(result, a.panel(), b.panel(), into);
  });
  check("multiply_left_transposed", [&](const Panel<T>& result, Into into) {
    mhla::cpu::multiply_left_transposed(result, a_transposed.panel(), b.panel(), into);
  });
  check("multiply_right_transposed", [&](const Panel<T>& result, Into into) {
    mhla::cpu::multiply_right_transposed(result, a.panel(), b_transposed.panel(), into);
  });
}

}  // namespace

TEMPLATE_TEST_CASE("gemm: products of every small size are those of a loop", "[cpu]", float, double,
                   long double) {
  for (const Index rows : {0, 1, 2, 5, 17})
    for (const Index depth : {0, 1, 3, 8, 31})
      for (const Index cols : {0, 1, 2, 7, 33}) {
        check_products<TestType>(rows, depth, cols, 0);
        check_products<TestType>(rows, depth, cols, 3);
      }
}

TEMPLATE_TEST_CASE("gemm: products that are cut are those of a loop", "[cpu]", float, double,
                   long double) {
  const Index depth = mhla::cpu::gemm::max_depth;
  const Index edge = mhla::cpu::gemm::max_packed<TestType> / depth;
  check_products<TestType>(edge, depth, edge, 0);
  check_products<TestType>(edge + 1, depth, 3, 2);
  check_products<TestType>(3, depth + 1, 5, 2);
  check_products<TestType>(5, depth, edge + 1, 2);
  check_products<TestType>(2 * edge + 3, depth + 2, 2 * edge + 1, 1);
  check_products<TestType>(7, 3 * depth + 1, 2, 0);
  const Index shallow = 5;  // leaves more room for rows and columns
  check_products<TestType>(2, shallow, mhla::cpu::gemm::max_packed<TestType> / shallow + 1, 0);
  check_products<TestType>(mhla::cpu::gemm::max_packed<TestType> / shallow + 1, shallow, 2, 0);
}

TEMPLATE_TEST_CASE("gemm: row products and weighted sums of rows are those of loops", "[cpu]",
                   float, double, long double) {
  using T = TestType;
  for (const Index rows : {0, 1, 4, 9})
    for (const Index cols : {0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 40}) {
      INFO(rows << " rows of " << cols);
      const Matrix<T> a(rows, cols, 3, 1);
      const Matrix<T> b(rows, cols, 1, 2);
      const Matrix<T> weights(1, rows, 0, 3);
      Matrix<T> of_rows(1, rows, 2);
      Matrix<T> with_first(1, rows, 2);
      Matrix<T> sum(1, cols, 2);
      Matrix<T> weighted(1, cols, 2, 4);
      for (Index c = 0; c < cols; ++c) sum(0, c) = T(0);
      for (Index r = 0; r < rows; ++r) {
        of_rows(0, r) = with_first(0, r) = T(0);
        for (Index c = 0; c < cols; ++c) {
          of_rows(0, r) += a(r, c) * b(r, c);
          with_first(0, r) += a(r, c) * b(0, c);
          sum(0, c) += a(r, c);
          weighted(0, c) += weights(0, r) * a(r, c);
        }
      }

      Matrix<T> result(1, rows, 2);
      const Span<T> products{result.panel().data, rows};
      mhla::cpu::row_products(products, a.panel(), b.panel());
      CHECK(result == of_rows);
      if (rows > 0) {
        mhla::cpu::row_products(products, a.panel(), Span<const T>{b.panel().data, cols});
        CHECK(result == with_first);
      }
      Matrix<T> result_row(1, cols, 2);
      mhla::cpu::weighted_row_sum(Span<T>{result_row.panel().data, cols}, a.panel(), {},
                                  Into::overwrite);
      CHECK(result_row == sum);
      result_row = Matrix<T>(1, cols, 2, 4);
      mhla::cpu::weighted_row_sum(Span<T>{result_row.panel().data, cols}, a.panel(),
                                  Span<const T>{weights.panel().data, rows}, Into::add);
      CHECK(result_row == weighted);
    }
}

// Summaries lie in a workspace or where a saved state has them, of any alignment but that of their
// elements: that must not reach the bits. Results of multiply() always lie in a workspace.
TEMPLATE_TEST_CASE("gemm: addresses do not reach the bits", "[cpu]", float, double) {
  using T = TestType;
  using mhla::cpu::panel;
  constexpr Index room = 40 * 40 + 16;
  struct Buffers {
    Workspace result{room * static_cast<Index>(sizeof(T))};
    Workspace a{room * static_cast<Index>(sizeof(T))};
    Workspace b{room * static_cast<Index>(sizeof(T))};
  };
  const Buffers buffers[2];
  const auto at = [](const Workspace& memory, Index shift) {
    return reinterpret_cast<T*>(memory.data()) + shift;
  };
  const Index shift = GENERATE(1, 2, 3, 5);
  for (const Index rows : {1, 3, 5, 12, 37})
    for (const Index depth : {1, 3, 6, 40})
      for (const Index cols : {3, 5, 9, 37}) {
        INFO("[" << rows << ", " << depth << "] * [" << depth << ", " << cols << "], shift "
                 << shift);
        // product(result, a, b), with a shift of the result, and of the factors
        const auto check = [&](Index result_shift, const auto& product) {
          for (const bool moved : {false, true}) {
            T* const a = at(buffers[moved].a, moved ? shift : 0);
            T* const b = at(buffers[moved].b, moved ? shift : 0);
            mhla::testing::fill_random(mhla::testing::Normal{}, 1,
                                       mhla::make_view(a, rows * depth));
            mhla::testing::fill_random(mhla::testing::Normal{}, 2,
                                       mhla::make_view(b, depth * cols));
            product(at(buffers[moved].result, moved ? result_shift : 0), a, b);
          }
          CHECK(std::memcmp(at(buffers[0].result, 0), at(buffers[1].result, result_shift),
                            static_cast<std::size_t>(rows * cols) * sizeof(T)) == 0);
        };
        check(0, [&](T* result, const T* a, const T* b) {
          mhla::cpu::multiply(panel(result, rows, cols), panel(a, rows, depth),
                              panel(b, depth, cols));
        });
        check(shift, [&](T* result, const T* a, const T* b) {
          mhla::cpu::multiply_left_transposed(panel(result, rows, cols), panel(a, depth, rows),
                                              panel(b, depth, cols));
        });
        check(shift, [&](T* result, const T* a, const T* b) {
          mhla::cpu::multiply_right_transposed(panel(result, rows, cols), panel(a, rows, depth),
                                               panel(b, cols, depth));
        });
        if (rows != 1) continue;
        check(shift, [&](T* result, const T* a, const T* b) {
          mhla::cpu::weighted_row_sum(Span<T>{result, cols}, panel(b, depth, cols),
                                      Span<const T>{a, depth}, Into::overwrite);
        });
      }
}
