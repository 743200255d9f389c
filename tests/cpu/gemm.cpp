// SPDX-License-Identifier: MIT
// The products of the CPU backend against loops. Factors are small integers, so that every sum is
// exact whatever its order, and results are compared exactly.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using namespace mhla;
using namespace mhla::cpu;
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

TEMPLATE_TEST_CASE("gemm: products of every tile, and of cut depths, are those of a loop", "[cpu]",
                   float, double, long double) {
  for (const Index rows : {6, 7, 11, 12})
    for (const Index cols : {4, 8, 15, 16, 31, 64, 80, 95, 129})
      for (const Index depth : {5, 128, 300}) check_products<TestType>(rows, depth, cols, 1);
  for (const Index depth : {1023, 1024, 1025, 2051}) check_products<TestType>(9, depth, 7, 2);
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
        // Rows apart or together, with and without something to read meanwhile.
        std::vector<Index> places;
        for (Index r = 0; r < 40; ++r) places.push_back(r);
        const std::vector<char> elsewhere(4096);
        const auto prefetch_if = [&](bool moved) {
          Prefetch prefetch(places.data(), moved ? 40 : 0);
          prefetch.add(elsewhere.data(), 100, 100);
          return prefetch;
        };
        check(shift, [&](T* result, const T* a, const T* b) {
          const bool moved = a != at(buffers[0].a, 0);
          Prefetch prefetch = prefetch_if(moved);
          mhla::cpu::multiply_left_transposed_rows<T>(
              panel(result, rows, cols), depth, {a, rows, moved ? places.data() : nullptr},
              {b, cols, moved ? nullptr : places.data()}, Into::overwrite, &prefetch);
        });
        check(shift, [&](T* result, const T* a, const T* b) {
          const bool moved = a != at(buffers[0].a, 0);
          Prefetch prefetch = prefetch_if(moved);
          mhla::cpu::multiply_into_rows<T>({result, cols, moved ? places.data() : nullptr},
                                           panel(a, rows, depth), panel(b, depth, cols),
                                           Span<const T>{b, rows}, &prefetch);
        });
        if (rows != 1) continue;
        check(shift, [&](T* result, const T* a, const T* b) {
          mhla::cpu::weighted_row_sum(Span<T>{result, cols}, panel(b, depth, cols),
                                      Span<const T>{a, depth}, Into::overwrite);
        });
      }
}

TEMPLATE_TEST_CASE("gemm: products with a triangle are those of a loop, and never read above it",
                   "[cpu]", float, double, long double) {
  using T = TestType;
  for (const Index rows : {0, 1, 2, 7, 8, 9, 16, 23, 64})
    for (const Index cols : {1, 2, 9, 33}) {
      INFO(rows << " rows, " << cols << " columns");
      Matrix<T> lower(rows, rows, 2, 1);
      Matrix<T> transposed(rows, rows, 1);
      for (Index t = 0; t < rows; ++t)
        for (Index j = 0; j < rows; ++j) {
          if (j > t) lower(t, j) = std::numeric_limits<T>::quiet_NaN();
          transposed(j, t) = lower(t, j);
        }
      const Matrix<T> b(rows, cols, 1, 2);
      const Matrix<T> before(rows, cols, 3, 3);
      Matrix<T> of_lower(rows, cols, 3);
      Matrix<T> of_transposed(rows, cols, 3);
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c) of_lower(r, c) = of_transposed(r, c) = T(0);
      for (Index t = 0; t < rows; ++t)
        for (Index j = 0; j <= t; ++j)
          for (Index c = 0; c < cols; ++c) {
            of_lower(t, c) += lower(t, j) * b(j, c);
            of_transposed(j, c) += lower(t, j) * b(t, c);
          }
      const auto check = [&](const Matrix<T>& product, const Matrix<T>& triangle,
                             const auto& multiply) {
        Matrix<T> result(rows, cols, 3);
        multiply(result.panel(), triangle.panel(), b.panel(), Into::overwrite);
        CHECK(result == product);
        result = before;
        multiply(result.panel(), triangle.panel(), b.panel(), Into::add);
        Matrix<T> sum = before;
        for (Index r = 0; r < rows; ++r)
          for (Index c = 0; c < cols; ++c) sum(r, c) += product(r, c);
        CHECK(result == sum);
      };
      check(of_lower, transposed, [](auto&&... x) { mhla::cpu::multiply_lower<T>(x...); });
      check(of_transposed, lower,
            [](auto&&... x) { mhla::cpu::multiply_lower_transposed<T>(x...); });
    }
}

TEMPLATE_TEST_CASE("gemm: what a triangle's last rows hold stays out of the first", "[cpu]", float,
                   double) {
  using T = TestType;
  constexpr Index rows = 21;
  constexpr Index cols = 5;
  const Matrix<T> lower_transposed(rows, rows, 0, 1);
  const Matrix<T> b(rows, cols, 0, 2);
  Matrix<T> clean(rows, cols, 0);
  mhla::cpu::multiply_lower<T>(clean.panel(), lower_transposed.panel(), b.panel());
  for (const Index t : {1, 7, 8, 20}) {
    Matrix<T> poisoned = b;
    for (Index j = t; j < rows; ++j)
      for (Index c = 0; c < cols; ++c) poisoned(j, c) = std::numeric_limits<T>::quiet_NaN();
    Matrix<T> result(rows, cols, 0);
    mhla::cpu::multiply_lower<T>(result.panel(), lower_transposed.panel(), poisoned.panel());
    CHECK(std::memcmp(result.panel().data, clean.panel().data,
                      static_cast<std::size_t>(t * cols) * sizeof(T)) == 0);
  }
}

TEMPLATE_TEST_CASE("gemm: sums and products of rows are those of loops", "[cpu]", float, double,
                   long double) {
  using T = TestType;
  const auto row_of = [](Matrix<T>& a) { return Span<T>{a.panel().data, a.panel().cols}; };
  for (const Index rows : {0, 1, 5})
    for (const Index cols : {1, 4, 17}) {
      INFO(rows << " rows of " << cols);
      const Matrix<T> a(rows, cols, 3, 1);
      const Matrix<T> b(rows, cols, 1, 2);
      Matrix<T> weights(1, rows, 0, 3);
      const Matrix<T> before(rows, cols, 2, 5);
      Matrix<T> weighted(rows, cols, 2);
      Matrix<T> mirrored(rows, cols, 2);
      std::vector<Index> last_first;
      for (Index r = 0; r < rows; ++r) last_first.push_back(rows - 1 - r);
      Matrix<T> sum = before, scaled_sum = before, scaled = before;
      T inner = T(0);
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c) {
          weighted(r, c) = weights(0, r) * a(r, c);
          mirrored(r, c) = a(rows - 1 - r, c);
          sum(r, c) += weights(0, r) * a(r, c);
          scaled_sum(r, c) += T(3) * a(r, c);
          scaled(r, c) *= T(3);
          inner += a(r, c) * b(r, c);
        }
      Matrix<T> result(rows, cols, 2);
      mhla::cpu::weighted_rows<T, T>(result.panel(), row_of(weights), a.panel().placed());
      CHECK(result == weighted);
      const Rows<const T> reversed{a.panel().data, a.panel().stride, last_first.data()};
      mhla::cpu::weighted_rows<T, T>(result.panel(), {}, reversed);
      CHECK(result == mirrored);
      mhla::cpu::store_rows<T, T>(result.panel().placed(), row_of(weights), a.panel(),
                                  Update::overwrite);
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c) weighted(r, c) = weights(0, r) * a(r, c);
      CHECK(result == weighted);
      result = before;
      mhla::cpu::store_rows<T, T>(result.panel().placed(), row_of(weights), a.panel(),
                                  Update::accumulate);
      CHECK(result == sum);
      result = before;
      mhla::cpu::add_weighted_rows<T>(result.panel(), row_of(weights), a.panel());
      CHECK(result == sum);
      result = before;
      mhla::cpu::add_scaled<T>(result.panel(), T(3), a.panel());
      CHECK(result == scaled_sum);
      result = before;
      mhla::cpu::scale_rows<T>(result.panel(), T(3));
      CHECK(result == scaled);
      CHECK(mhla::cpu::inner_product<T>(a.panel(), b.panel()) == inner);
    }
}

TEMPLATE_TEST_CASE("gemm: mixtures of all rows or of the past", "[cpu]", float, double,
                   long double) {
  using T = TestType;
  // More rows than a triangle has, and more terms than a panel.
  const Index rows = GENERATE(1, 3, 8, 14, 15, 33);
  const Index cols = GENERATE(1, 40, 133);
  const auto terms = GENERATE(Terms::all, Terms::past);
  const Index depth = rows - 1 + GENERATE(0, 1, 5, 300);
  CAPTURE(rows, cols, depth, terms == Terms::past);
  Matrix<T> weights(depth, rows, 0, 1);
  const Matrix<T> b(depth, cols, 3, 2);
  const Matrix<T> before(rows, cols, 1, 3);
  Matrix<T> expected(rows, cols, 1);
  Matrix<T> sum = before;
  for (Index i = 0; i < rows; ++i) {
    const Index seen = terms == Terms::past ? depth - (rows - 1) + i : depth;
    for (Index k = seen; k < depth; ++k) weights(k, i) = std::numeric_limits<T>::quiet_NaN();
    for (Index c = 0; c < cols; ++c) {
      expected(i, c) = T(0);
      for (Index k = 0; k < seen; ++k) expected(i, c) += weights(k, i) * b(k, c);
      sum(i, c) += expected(i, c);
    }
  }
  Matrix<T> result(rows, cols, 1);
  mhla::cpu::mix_rows<T>(result.panel(), weights.panel(), true, b.panel(), Into::overwrite, terms);
  CHECK(result == expected);
  result = before;
  mhla::cpu::mix_rows<T>(result.panel(), weights.panel(), true, b.panel(), Into::add, terms);
  CHECK(result == sum);
}

namespace {

struct Square {
  template <class T>
  T value(T x) const {
    return x * x;
  }
  template <class T>
  T derivative(T x) const {
    return T(2) * x;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("gemm: transposes, maps and their adjoint are those of loops", "[cpu]", float,
                   double, long double) {
  using T = TestType;
  for (const Index rows : {0, 1, 5, 17})
    for (const Index cols : {1, 4, 17}) {
      INFO(rows << " rows of " << cols);
      const Matrix<T> a(rows, cols, 3, 1);
      const Matrix<T> g(rows, cols, 1, 2);
      const Matrix<T> h(rows, cols, 1, 3);
      Matrix<T> weights(1, rows, 0, 4);
      Matrix<T> transposed(cols, rows, 2), mapped(rows, cols, 2);
      Matrix<T> of_one(rows, cols, 2), of_both(rows, cols, 2);
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c) {
          transposed(c, r) = a(r, c);
          mapped(r, c) = T(3) * a(r, c) * a(r, c);
          of_one(r, c) = T(6) * a(r, c) * g(r, c);
          of_both(r, c) = T(6) * a(r, c) * (g(r, c) + weights(0, r) * h(r, c));
        }
      Matrix<T> turned(cols, rows, 2);
      mhla::cpu::transpose(turned.panel(), a.panel());
      CHECK(turned == transposed);
      Matrix<T> result(rows, cols, 2);
      const auto x = a.panel().placed();
      mhla::cpu::map_rows<Square, T>(Square{}, T(3), x, result.panel());
      CHECK(result == mapped);
      mhla::cpu::unmap_rows<Square, T>(Square{}, T(3), x, g.panel(), {}, {},
                                       result.panel().placed(), Update::overwrite);
      CHECK(result == of_one);
      mhla::cpu::unmap_rows<Square, T>(Square{}, T(3), x, g.panel(), {weights.panel().data, rows},
                                       h.panel().placed(), result.panel().placed(),
                                       Update::overwrite);
      CHECK(result == of_both);
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c) of_both(r, c) += of_one(r, c);
      mhla::cpu::unmap_rows<Square, T>(Square{}, T(3), x, g.panel(), {}, {},
                                       result.panel().placed(), Update::accumulate);
      CHECK(result == of_both);
    }
}
