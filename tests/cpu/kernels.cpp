// SPDX-License-Identifier: MIT
// The kernels of every instruction set that this machine has against loops, on small integers, so
// that every sum is exact whatever its order. Rows of factors and results lie apart, with NaN and
// sentinels between them. tests/cpu/gemm.cpp runs the functions that choose among them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mhla/core/scalar.hpp>
#include <mhla/cpu/kernels.hpp>
#include <mhla/cpu/strided_rows.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <tuple>
#include <type_traits>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using mhla::Index;
using namespace mhla::cpu;
namespace cpu = mhla::cpu;

// The kernels of an instruction set for a type, and whether this machine has them.
template <class T>
struct Scalar {
  using Kernels = cpu::scalar::Kernels<T>;
  using Type = T;
  static bool here() { return true; }
};
template <class T>
struct Portable {
  using Kernels = cpu::portable::Kernels<T>;
  using Type = T;
  static bool here() { return true; }
};
#if defined(__x86_64__)
template <class T>
struct Avx2 {
  using Kernels = cpu::avx2::Kernels<T>;
  using Type = T;
  static bool here() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
};
template <class T>
struct Avx512 {
  using Kernels = cpu::avx512::Kernels<T>;
  using Type = T;
  static bool here() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
  }
};
#define INSTRUCTION_SETS_OF_FLOATS Portable<float>, Avx2<float>, Avx512<float>
#define INSTRUCTION_SETS \
  Scalar<double>, Portable<double>, Avx2<double>, Avx512<double>, INSTRUCTION_SETS_OF_FLOATS
#else
#define INSTRUCTION_SETS_OF_FLOATS Portable<float>
#define INSTRUCTION_SETS Scalar<double>, Portable<double>, INSTRUCTION_SETS_OF_FLOATS
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

template <class T>
constexpr T not_a_number = std::numeric_limits<T>::quiet_NaN();
template <class T>
constexpr T sentinel = T(77777);

// An integer from -4 to 4.
template <class T>
T small_integer(std::uint64_t seed, Index at) {
  return static_cast<T>(mhla::testing::random_index(seed, static_cast<std::uint64_t>(at), 9) - 4);
}

enum class Lie { together, apart };

// A matrix of small integers whose rows have gaps between them, or lie apart in another order; what
// lies between them is `filling`. Its memory ends with its last row.
template <class T>
class Matrix {
 public:
  Matrix(Index rows, Index cols, Lie lie, T filling, Index stride)
      : rows_(rows), cols_(cols), stride_(stride) {
    Index last = rows - 1;
    if (lie == Lie::apart)
      for (Index r = 0; r < rows; ++r) {
        places_.push_back(2 * (rows - 1 - r) + r % 2);
        last = std::max(last, places_.back());
      }
    memory_.assign(static_cast<std::size_t>(rows > 0 ? last * stride + cols : 0), filling);
  }
  Matrix(Index rows, Index cols, Lie lie, T filling) : Matrix(rows, cols, lie, filling, cols + 3) {}
  Matrix(Index rows, Index cols, std::uint64_t seed) : Matrix(rows, cols, Lie::together, T(0)) {
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < cols; ++c) (*this)(r, c) = small_integer<T>(seed, r * cols + c);
  }

  Rows<T> rows() { return {memory_.data(), stride_, places_.empty() ? nullptr : places_.data()}; }
  T* data() { return memory_.data(); }
  std::vector<T>& memory() { return memory_; }
  Index stride() const { return stride_; }
  T* row(Index r) {
    return memory_.data() + (places_.empty() ? r : places_[static_cast<std::size_t>(r)]) * stride_;
  }
  const T* row(Index r) const { return const_cast<Matrix*>(this)->row(r); }
  T& operator()(Index r, Index c) { return row(r)[c]; }
  T operator()(Index r, Index c) const { return row(r)[c]; }

  /// The same elements in other memory.
  Matrix placed(Lie lie, T filling) const { return placed(lie, filling, cols_ + 3); }
  Matrix placed(Lie lie, T filling, Index stride) const {
    Matrix result(rows_, cols_, lie, filling, stride);
    for (Index r = 0; r < rows_; ++r) std::copy_n(row(r), cols_, result.row(r));
    return result;
  }
  Matrix transposed() const {
    Matrix result(cols_, rows_, Lie::together, T(0));
    for (Index r = 0; r < rows_; ++r)
      for (Index c = 0; c < cols_; ++c) result(c, r) = (*this)(r, c);
    return result;
  }
  /// Whether both memories hold the same, NaN being like NaN.
  friend bool operator==(const Matrix& a, const Matrix& b) {
    if (a.memory_.size() != b.memory_.size()) return false;
    for (std::size_t i = 0; i < a.memory_.size(); ++i)
      if (a.memory_[i] != b.memory_[i] && !(std::isnan(a.memory_[i]) && std::isnan(b.memory_[i])))
        return false;
    return true;
  }

 private:
  Index rows_, cols_, stride_;
  std::vector<Index> places_;
  std::vector<T> memory_;
};

// Two tensors of 5 rows, as something to read meanwhile.
struct Elsewhere {
  std::vector<char> memory = std::vector<char>(4096);
  std::vector<Index> places{3, 0, 4, 1, 2};

  Prefetch prefetch() const {
    Prefetch prefetch(places.data(), 5);
    prefetch.add(memory.data(), 300, 200);
    prefetch.add(memory.data() + 2000, 100, 64);
    return prefetch;
  }
};

// How a product may be asked for. Factors that lie apart need a^T.
struct Request {
  bool a_transposed;
  Lie a;
  Lie b;
  Lie c;
  bool scaled;
  bool add;
  bool prefetch;
};
constexpr int requests = 64;
// False where there is no such product.
bool request_of(int number, Request& request) {
  const auto bit = [&](int i) { return (number >> i & 1) != 0; };
  const auto lie = [&](int i) { return bit(i) ? Lie::apart : Lie::together; };
  const bool prefetch = (number ^ number >> 1 ^ number >> 4) % 2 != 0;  // for half of every kind
  request = {bit(0), lie(1), lie(2), lie(3), bit(4), bit(5), prefetch};
  return request.a_transposed || (!bit(1) && !bit(2));
}

// c = scale (c + a b) in every way, or in that of one number only.
template <class T, class Kernels>
void check_products(Index rows, Index cols, Index depth, int only = -1) {
  INFO("[" << rows << ", " << depth << "] * [" << depth << ", " << cols << "]");
  const Matrix<T> a(rows, depth, 1);
  const Matrix<T> b(depth, cols, 2);
  const Matrix<T> before(rows, cols, 3);
  const Matrix<T> scale(1, rows, 4);
  const Matrix<T> a_transposed = a.transposed();
  Matrix<T> product(rows, cols, Lie::together, T(0));
  for (Index i = 0; i < rows; ++i)
    for (Index k = 0; k < depth; ++k) {
      const T term = a(i, k);
      const T* const from = b.row(k);
      T* const to = product.row(i);
      for (Index j = 0; j < cols; ++j) to[j] += term * from[j];
    }
  const Elsewhere elsewhere;
  const T nan = not_a_number<T>;

  for (int number = 0; number < requests; ++number) {
    Request ask;
    if (!request_of(number, ask) || (only >= 0 && number != only)) continue;
    CAPTURE(number, ask.a_transposed, ask.scaled, ask.add, ask.prefetch);
    Matrix<T> left = ask.a_transposed ? a_transposed.placed(ask.a, nan) : a.placed(ask.a, nan);
    Matrix<T> right = b.placed(ask.b, nan, cols + 3);
    Matrix<T> scales = scale;
    Matrix<T> c = before.placed(ask.c, sentinel<T>);
    Matrix<T> expected = c;
    for (Index i = 0; i < rows; ++i) {
      T* const to = expected.row(i);
      const T* const of = product.row(i);
      const T factor = ask.scaled ? scale(0, i) : T(1);
      for (Index j = 0; j < cols; ++j) to[j] = factor * ((ask.add ? to[j] : T(0)) + of[j]);
    }
    Prefetch prefetch = elsewhere.prefetch();
    cpu::multiply(Kernels::product_tiles,
                  Product<T>{rows, cols, depth, left.rows(), ask.a_transposed, right.rows(),
                             c.rows(), ask.add, ask.scaled ? scales.data() : nullptr,
                             ask.prefetch ? &prefetch : nullptr, number % 3 == 0});
    CHECK(c == expected);
  }

  Matrix<T> left = a.placed(Lie::together, nan);
  Matrix<T> right = b.transposed().placed(Lie::together, nan);
  for (const bool add : {false, true}) {
    Matrix<T> expected = before.placed(Lie::together, sentinel<T>);
    const Matrix<T> c = expected;
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < cols; ++j)
        expected(i, j) = (add ? expected(i, j) : T(0)) + product(i, j);
    const auto check = [&](const auto& multiply) {
      Matrix<T> result = c;
      multiply(Product<T>{rows, cols, depth, left.rows(), false, right.rows(), result.rows(), add});
      CHECK(result == expected);
    };
    check([](const Product<T>& p) { cpu::multiply_transposed(Kernels::product_tiles, p); });
    check([](const Product<T>& p) { cpu::multiply_dots(Kernels::dot_tiles, p); });
  }
}

}  // namespace

// How far apart the sizes are that a product is tried with. Without optimization every size takes
// minutes; steps that no tile's width or height is a multiple of meet every rest in turn.
#if defined(MHLA_SMALL_PRODUCT)
constexpr Index row_step = 9;
constexpr Index col_step = 19;
constexpr Index depth_step = 101;
constexpr Index panel_row_step = 8;
constexpr Index panel_rows[] = {17};
#elif defined(MHLA_FULL_PRODUCT)
constexpr Index row_step = 1;
constexpr Index col_step = 1;
constexpr Index depth_step = 1;
#else
constexpr Index row_step = 5;
constexpr Index col_step = 9;
constexpr Index depth_step = 31;
#endif
#if !defined(MHLA_SMALL_PRODUCT)
constexpr Index panel_row_step = 1;
constexpr Index panel_rows[] = {1, 17, 29};
#endif

TEMPLATE_TEST_CASE("kernels: products of every tile and every rest", "[cpu]", INSTRUCTION_SETS) {
  if (!on_this_machine<TestType>()) return;
  using T = typename TestType::Type;
  using Kernels = typename TestType::Kernels;
  for (Index rows = 0; rows <= 26; rows += row_step)
    for (const Index cols : {1, 3, 8, 15, 33}) check_products<T, Kernels>(rows, cols, 6);
  for (Index cols = 0; cols <= 70; cols += col_step)
    for (const Index rows : {1, 7, 16, 25}) check_products<T, Kernels>(rows, cols, 9);
  for (const Index cols : {8, 24, 77})
    for (const Index depth : {0, 1, 2, 127, 128, 129, 256, 300}) {
      check_products<T, Kernels>(3, cols, depth);
      check_products<T, Kernels>(30, cols, depth);
    }
  for (Index depth = 0; depth <= 300; depth += depth_step) {
    int number = static_cast<int>(37 * depth % requests);
    for (Request ignored; !request_of(number, ignored);) number = (number + 1) % requests;
    check_products<T, Kernels>(10, 24, depth, number);
    check_products<T, Kernels>(5, 71, depth, number);
  }
  check_products<T, Kernels>(5, 7, 1025);
  check_products<T, Kernels>(13, 3, 2051);
}

TEST_CASE("kernels: every line that is wanted soon is read once, row by row", "[cpu]") {
  const std::vector<char> memory(8192);
  const Index places[] = {4, 0, 2};
  // Offsets from the beginning of the memory in the order in which a loop comes to them.
  const auto walk = [&](Prefetch& prefetch, int steps) {
    std::vector<Index> offsets;
    Prefetch::Lines lines = prefetch.lines();
    for (int i = 0; i < steps; ++i) {
      offsets.push_back(lines.next - memory.data());
      lines.next += lines.step;
      if (lines.next >= lines.end) lines = prefetch.next_row();
    }
    prefetch.set_lines(lines);
    return offsets;
  };
  // Rows of 130 bytes, of one line, and of two that are exactly full.
  Prefetch prefetch(places, 3);
  prefetch.add(memory.data(), 700, 130);
  prefetch.add(memory.data() + 4000, 64, 4);
  prefetch.add(memory.data() + 5000, -128, 128);
  std::vector<Index> expected;
  for (const Index place : places)
    for (const Index offset : {700 * place, 700 * place + 64, 700 * place + 128, 4000 + 64 * place,
                               5000 - 128 * place, 5064 - 128 * place})
      expected.push_back(offset);
  // In two goes: what a tile leaves, the next one takes up.
  std::vector<Index> offsets = walk(prefetch, 7);
  for (const Index offset : walk(prefetch, 11)) offsets.push_back(offset);
  CHECK(offsets == expected);
  // After the last row, always the same line, which is not part of the memory.
  const std::vector<Index> behind = walk(prefetch, 100);
  for (const Index offset : behind) CHECK(offset == behind.front());
  CHECK((behind.front() < 0 || behind.front() >= 8192));

  // Rows in their order, and a tensor that has fewer of them.
  Prefetch shorter(nullptr, 3);
  shorter.add(memory.data(), 700, 64);
  shorter.add(memory.data() + 4000, 64, 64, 2);
  const std::vector<Index> few = {0, 4000, 700, 4064, 1400};
  CHECK(walk(shorter, 5) == few);

  // A piece of memory behind the last row, once.
  Prefetch with_piece(places, 2);
  with_piece.add(memory.data(), 700, 64);
  with_piece.add_piece(memory.data() + 6000, 130);
  const std::vector<Index> rows_and_piece = {2800, 0, 6000, 6064, 6128, behind.front()};
  CHECK(walk(with_piece, 6) == rows_and_piece);

  // Nothing to read: no tensor, no rows, rows of nothing, and nothing behind them.
  Prefetch none;
  Prefetch no_tensor(places, 3);
  Prefetch no_rows(places, 0);
  no_rows.add(memory.data(), 700, 130);
  Prefetch empty_rows(places, 3);
  empty_rows.add(memory.data(), 700, 0);
  for (Prefetch* nothing : {&none, &no_rows, &empty_rows})
    nothing->add_piece(memory.data() + 6000, 130);
  for (Prefetch* nothing : {&none, &no_tensor, &no_rows, &empty_rows})
    CHECK(walk(*nothing, 20) == std::vector<Index>(20, behind.front()));
}

TEMPLATE_TEST_CASE("kernels: a product reads a line ahead with every term of a tile", "[cpu]",
                   INSTRUCTION_SETS) {
  if (!on_this_machine<TestType>()) return;
  using T = typename TestType::Type;
  using Kernels = typename TestType::Kernels;
  constexpr Index depth = 9;
  Matrix<T> a(1, depth, 1);
  Matrix<T> a_transposed = a.transposed();
  Matrix<T> b(depth, Kernels::lanes, 2);
  Matrix<T> c(1, Kernels::lanes, 3);
  const std::vector<char> memory(4096);
  const Index place = 0;
  Prefetch prefetch(&place, 1);
  prefetch.add(memory.data(), 0, 4096);
  Product<T> product{1, Kernels::lanes, depth, a.rows(), false, b.rows(), c.rows()};
  product.prefetch = &prefetch;
  cpu::multiply(Kernels::product_tiles, product);
  CHECK(prefetch.lines().next == memory.data() + 64 * depth);
  product.a = a_transposed.rows();
  product.a_transposed = true;
  cpu::multiply(Kernels::product_tiles, product);
  CHECK(prefetch.lines().next == memory.data() + 2 * 64 * depth);
}

namespace {

// Which terms row i has.
struct TermRange {
  Index first;
  Index end;
};
TermRange terms_of(Terms terms, Index depth, Index i) {
  return {terms == Terms::future ? i : 0, terms == Terms::past ? depth + i : depth};
}

// Rows of a and b are poisoned where no row has the term, or not the row at hand.
template <class T, class Kernels>
void check_panels(Terms terms, Index rows, Index cols, Index depth, bool add, bool transposed) {
  INFO((terms == Terms::all    ? "all"
        : terms == Terms::past ? "past"
                               : "future")
       << ", " << rows << " rows, " << cols << " columns, depth " << depth);
  const Index all_terms = terms_of(terms, depth, rows - 1).end;
  const Matrix<T> values(rows, all_terms, 1);
  Matrix<T> a = Matrix<T>(transposed ? all_terms : rows, transposed ? rows : all_terms, 1)
                    .placed(Lie::together, not_a_number<T>);
  const auto weight = [&](Index i, Index k) -> T& { return transposed ? a(k, i) : a(i, k); };
  const Matrix<T> b = Matrix<T>(all_terms, cols, 2).placed(Lie::together, not_a_number<T>);
  const Matrix<T> before = Matrix<T>(rows, cols, 3).placed(Lie::together, sentinel<T>);
  for (Index i = 0; i < rows; ++i)
    for (Index k = 0; k < all_terms; ++k) {
      const TermRange has = terms_of(terms, depth, i);
      weight(i, k) = k < has.first || k >= has.end ? not_a_number<T> : values(i, k);
    }
  // Clean rows of b, and then one of them poisoned: only rows that have the term may show it.
  for (Index poisoned = -1; poisoned < all_terms; poisoned += 1 + all_terms / 4) {
    CAPTURE(poisoned, add, transposed);
    Matrix<T> right = b;
    if (poisoned >= 0)
      for (Index c = 0; c < cols; ++c) right(poisoned, c) = not_a_number<T>;
    Matrix<T> expected = before;
    for (Index i = 0; i < rows; ++i) {
      const TermRange has = terms_of(terms, depth, i);
      T* const to = expected.row(i);
      if (!add) std::fill_n(to, cols, T(0));
      for (Index k = has.first; k < has.end; ++k) {
        const T term = weight(i, k);
        const T* const from = right.row(k);
        for (Index c = 0; c < cols; ++c) to[c] += term * from[c];
      }
    }
    Matrix<T> result = before;
    cpu::multiply_panels(Kernels::product_tiles,
                         Product<T>{rows,
                                    cols,
                                    all_terms,
                                    {a.data(), a.stride()},
                                    transposed,
                                    {right.data(), right.stride()},
                                    {result.data(), result.stride()},
                                    add},
                         terms, Kernels::triangle);
    CHECK(result == expected);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("kernels: rows take the terms that they have, and no others", "[cpu]",
                   INSTRUCTION_SETS) {
  if (!on_this_machine<TestType>()) return;
  using T = typename TestType::Type;
  using Kernels = typename TestType::Kernels;
  for (const Terms terms : {Terms::all, Terms::past, Terms::future})
    for (Index rows = 1; rows <= 18; rows += panel_row_step)
      for (const Index more : {0, 1, 6}) {
        // A future row lacks up to rows - 1 terms.
        const Index depth = terms == Terms::future ? rows - 1 + more : more;
        for (const Index cols : {Index{1}, Index{31}, Index{2} * Kernels::tile_cols,
                                 Index{3} * Kernels::tile_cols + Kernels::lanes + 1})
          for (const bool add : {false, true})
            check_panels<T, Kernels>(terms, rows, cols, depth, add, rows % 2 == 1);
      }
  for (Index cols = 0; cols <= 70; ++cols)
    for (const Terms terms : {Terms::all, Terms::past, Terms::future})
      check_panels<T, Kernels>(terms, 9, cols, 11, false, cols % 2 == 0);
  // Several panels, in which triangles come after or before the terms that all rows have.
  for (const Terms terms : {Terms::all, Terms::past, Terms::future})
    for (const Index rows : panel_rows)
      for (const Index depth : {28, 300})
        check_panels<T, Kernels>(terms, rows, 1024 + Kernels::tile_cols + Kernels::lanes + 1, depth,
                                 depth == 300, rows == 29);
}

TEMPLATE_TEST_CASE("kernels: sums along a row", "[cpu]", INSTRUCTION_SETS) {
  if (!on_this_machine<TestType>()) return;
  using T = typename TestType::Type;
  using Kernels = typename TestType::Kernels;
  for (Index count = 0; count <= 80; ++count) {
    CAPTURE(count);
    Matrix<T> a = Matrix<T>(2, count, 1).placed(Lie::together, not_a_number<T>);
    Matrix<T> b = Matrix<T>(2, count, 2).placed(Lie::together, not_a_number<T>);
    T expected = 0;
    T with_first = 0;
    Matrix<T> sum = b;
    for (Index c = 0; c < count; ++c) {
      expected += a(1, c) * b(1, c);
      with_first += a(1, c) * b(0, c);
      sum(0, c) += 3 * a(0, c);
    }
    CHECK(Kernels::dot(count, a.rows()[1], b.rows()[1]) == expected);
    T products[] = {7, 7, 7};
    Kernels::row_products(2, count, a.data(), a.stride(), b.data(), b.stride(), products);
    CHECK(products[1] == expected);
    CHECK(products[2] == 7);
    Kernels::row_products(2, count, a.data(), a.stride(), b.data(), 0, products);
    CHECK(products[1] == with_first);
    Kernels::add_scaled(count, 3, a.data(), b.data());
    CHECK(b == sum);
  }
}

TEMPLATE_TEST_CASE("kernels: rows are added to a sum, which is there after each", "[cpu]",
                   INSTRUCTION_SETS) {
  if (!on_this_machine<TestType>()) return;
  using T = typename TestType::Type;
  const T large = T(2) / std::numeric_limits<T>::epsilon();  // and 1 are `large`, rounded
  for (const Index rows : {0, 1, 2, 9})
    for (Index cols = 0; cols <= 80; ++cols)
      for (const bool runs : {false, true}) {
        CAPTURE(rows, cols, runs);
        Matrix<T> a = Matrix<T>(rows, cols, 1).placed(Lie::together, not_a_number<T>);
        Matrix<T> sum = Matrix<T>(1, cols + 2, 2);
        Matrix<T> rest = Matrix<T>(1, cols + 2, 3);
        Matrix<T> running(rows, cols, Lie::together, sentinel<T>);
        Matrix<T> expected = sum, expected_rest = rest, expected_running = running;
        for (Index c = 0; c < cols; ++c) {
          expected(0, c) += rest(0, c);
          expected_rest(0, c) = T(0);
          for (Index r = 0; r < rows; ++r) {
            expected(0, c) += 3 * a(r, c);
            expected_running(r, c) = expected(0, c);
          }
        }
        cpu::RowSum<T> request{rows, cols, T(3), a.data(), a.stride(), sum.data(), rest.data()};
        if (runs) {
          request.running = running.data();
          request.running_stride = running.stride();
        }
        TestType::Kernels::add_rows(request);
        CHECK(sum == expected);
        CHECK(rest == expected_rest);
        if (runs) CHECK(running == expected_running);

        // What a large sum loses waits until there is enough of it, or is forgotten.
        std::vector<T> ones(static_cast<std::size_t>(cols), T(1));
        std::vector<T> total(ones.size(), large), lost(ones.size(), T(0));
        for (Index part = 0; part < rows; ++part)
          TestType::Kernels::add_rows(
              {1, cols, T(1), ones.data(), cols, total.data(), runs ? lost.data() : nullptr});
        for (std::size_t c = 0; c < ones.size(); ++c) {
          CHECK(total[c] == (runs ? large + static_cast<T>(rows - rows % 2) : large));
          CHECK(lost[c] == (runs ? static_cast<T>(rows % 2) : T(0)));
        }
      }
}

namespace {

// Rows in a storage type: the small integers here are exact in all of them. What must not be read
// or written holds `filling`.
template <class Stored, class T>
class StoredMatrix {
 public:
  StoredMatrix(const Matrix<T>& values, Lie lie, T filling)
      : places_(values.placed(lie, filling)), memory_(places_.memory().size()) {
    for (std::size_t i = 0; i < memory_.size(); ++i)
      mhla::store(memory_[i], static_cast<Value>(places_.memory()[i]));
  }
  Rows<Stored> rows() {
    const Rows<T> rows = places_.rows();
    return {memory_.data(), rows.stride, rows.places};
  }
  /// Its elements and its filling, as T.
  Matrix<T> values() {
    Matrix<T> result = places_;
    for (std::size_t i = 0; i < memory_.size(); ++i)
      result.memory()[i] = static_cast<T>(mhla::load(memory_[i]));
    return result;
  }

 private:
  using Value = decltype(mhla::load(Stored{}));

  Matrix<T> places_;
  std::vector<Stored> memory_;
};

// Exact in 16 bits, as 77777 is not.
constexpr int small_sentinel = 99;

template <class Stored, class T, class Kernels>
void check_stored_rows() {
  for (const Lie lie : {Lie::together, Lie::apart})
    for (const bool weighted : {false, true})
      for (const Index rows : {0, 1, 3})
        for (Index cols = 0; cols <= 40; ++cols) {
          CAPTURE(lie == Lie::apart, weighted, rows, cols);
          const Matrix<T> values(rows, cols, 1);
          Matrix<T> weights(1, rows, 2);
          const auto weight = [&](Index r) { return weighted ? weights(0, r) : T(1); };
          const T* const given = weighted ? weights.data() : nullptr;

          StoredMatrix<Stored, T> from(values, lie, not_a_number<T>);
          Matrix<T> to(rows, cols, Lie::together, sentinel<T>);
          Matrix<T> expected = to;
          for (Index r = 0; r < rows; ++r)
            for (Index c = 0; c < cols; ++c) expected(r, c) = weight(r) * values(r, c);
          Kernels::template weighted_rows<Stored>(rows, cols, given, from.rows(), to.data(),
                                                  to.stride());
          CHECK(to == expected);

          for (const bool add : {false, true}) {
            CAPTURE(add);
            Matrix<T> x = values.placed(Lie::together, not_a_number<T>);
            StoredMatrix<Stored, T> result(Matrix<T>(rows, cols, 3), lie, T(small_sentinel));
            Matrix<T> sum = result.values();
            for (Index r = 0; r < rows; ++r)
              for (Index c = 0; c < cols; ++c)
                sum(r, c) = (add ? sum(r, c) : T(0)) + weight(r) * values(r, c);
            Kernels::template store_rows<Stored>(rows, cols, given, x.data(), x.stride(),
                                                 result.rows(), add);
            CHECK(result.values() == sum);
          }

          if (lie == Lie::apart) continue;
          // Where they lie: no element twice.
          Matrix<T> in_place = values.placed(Lie::together, sentinel<T>);
          Kernels::template weighted_rows<T>(rows, cols, given, in_place.rows(), in_place.data(),
                                             in_place.stride());
          CHECK(in_place == expected);
        }
}

}  // namespace

TEMPLATE_TEST_CASE("kernels: rows times weights, from and to where they are stored", "[cpu]",
                   INSTRUCTION_SETS) {
  if (!on_this_machine<TestType>()) return;
  using T = typename TestType::Type;
  using Kernels = typename TestType::Kernels;
  check_stored_rows<T, T, Kernels>();
  if constexpr (std::is_same_v<T, float>) {
    check_stored_rows<mhla::BFloat16, T, Kernels>();
    check_stored_rows<mhla::Half, T, Kernels>();
  }
}

namespace {

// Of `steps`, an axis of whose memory is how far apart its elements lie, the other axis' lines
// lying apart by all that one needs.
struct Layout {
  bool by_columns;
  Index step;
  Index line_gap;
  bool rows_backwards;
  bool cols_backwards;
};
constexpr Layout layouts[] = {
    {true, 1, 0, false, false},  {true, 1, 3, false, true}, {true, 1, 1, true, false},
    {true, 2, 0, false, false},  {true, 3, 5, true, true},  {false, 1, 0, false, true},
    {false, 2, 1, false, false}, {false, 5, 2, true, true},
};

// A matrix of small integers in such a layout, and what lies between its elements.
template <class Stored, class T>
class StridedMatrix {
 public:
  StridedMatrix(const Matrix<T>& values, Index rows, Index cols, const Layout& layout, T filling)
      : rows_(rows), cols_(cols) {
    const Index line =
        layout.step * std::max(layout.by_columns ? rows : cols, Index{1}) + layout.line_gap;
    row_stride_ = layout.by_columns ? layout.step : line;
    stride_ = layout.by_columns ? line : layout.step;
    const Index size = line * std::max(layout.by_columns ? cols : rows, Index{1});
    first_ = 0;
    if (layout.rows_backwards && rows > 0) first_ += row_stride_ * (rows - 1);
    if (layout.cols_backwards && cols > 0) first_ += stride_ * (cols - 1);
    if (layout.rows_backwards) row_stride_ = -row_stride_;
    if (layout.cols_backwards) stride_ = -stride_;
    memory_.resize(static_cast<std::size_t>(size));
    for (Stored& element : memory_) mhla::store(element, static_cast<Value>(filling));
    set(values);
  }
  void set(const Matrix<T>& values) {
    for (Index r = 0; r < rows_; ++r)
      for (Index c = 0; c < cols_; ++c)
        mhla::store(memory_[static_cast<std::size_t>(first_ + r * row_stride_ + c * stride_)],
                    static_cast<Value>(values(r, c)));
  }
  cpu::StridedRows<Stored> rows() {
    return {memory_.data() + first_, rows_, cols_, row_stride_, stride_};
  }
  friend bool operator==(const StridedMatrix& a, const StridedMatrix& b) {
    for (std::size_t i = 0; i < a.memory_.size(); ++i)
      if (mhla::load(a.memory_[i]) != mhla::load(b.memory_[i])) return false;
    return a.memory_.size() == b.memory_.size();
  }

 private:
  using Value = decltype(mhla::load(Stored{}));

  Index rows_, cols_, row_stride_, stride_, first_;
  std::vector<Stored> memory_;
};

template <class Stored, class T>
void check_strided_rows(Index rows, Index cols, const Layout& layout) {
  CAPTURE(rows, cols, layout.by_columns, layout.step, layout.line_gap, layout.rows_backwards,
          layout.cols_backwards);
  const Matrix<T> values(rows, cols, 1);
  const Matrix<T> before(rows, cols, 2);
  Matrix<T> weights(1, rows, 3);
  StridedMatrix<Stored, T> from(values, rows, cols, layout, T(small_sentinel));
  const auto given = from.rows();
  Matrix<T> packed(rows, cols, Lie::together, sentinel<T>);
  cpu::gather_strided<T, Stored>(
      {packed.data(), rows, cols, packed.stride()},
      {given.data, given.rows, given.cols, given.row_stride, given.stride});
  CHECK(packed == values.placed(Lie::together, sentinel<T>));

  Matrix<T> x = values.placed(Lie::together, not_a_number<T>);
  for (const bool weighted : {false, true})
    for (const bool add : {false, true}) {
      CAPTURE(weighted, add);
      Matrix<T> sum = before;
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c)
          sum(r, c) = (add ? sum(r, c) : T(0)) + (weighted ? weights(0, r) : T(1)) * values(r, c);
      StridedMatrix<Stored, T> to(before, rows, cols, layout, T(small_sentinel));
      StridedMatrix<Stored, T> expected(sum, rows, cols, layout, T(small_sentinel));
      cpu::scatter_strided<Stored, T>(to.rows(), {weights.data(), weighted ? rows : 0},
                                      {x.data(), rows, cols, x.stride()},
                                      add ? mhla::Update::accumulate : mhla::Update::overwrite);
      CHECK(to == expected);
    }
}

}  // namespace

TEMPLATE_TEST_CASE("kernels: rows of any strides, gathered and scattered", "[cpu]", float, double) {
  using T = TestType;
  const auto check = [](Index rows, Index cols) {
    for (const Layout& layout : layouts) {
      check_strided_rows<T, T>(rows, cols, layout);
      if constexpr (std::is_same_v<T, float>) {
        check_strided_rows<mhla::BFloat16, T>(rows, cols, layout);
        check_strided_rows<mhla::Half, T>(rows, cols, layout);
      }
    }
  };
  for (const Index rows : {0, 1, 2, 3, 4, 5, 15, 16, 17, 33, 104, 128})
    for (const Index cols : {0, 1, 3, 15, 16, 17, 37}) check(rows, cols);
  check(3, 300);  // more than what is taken of a row at once
}

namespace {

// Every step-th NaN from `first` to `last`, of both signs, alone and added to what is there.
template <class Stored, class Kernels>
void check_not_a_number(std::uint32_t first, std::uint32_t last, std::uint32_t step) {
  constexpr std::uint32_t length = 37;  // whole vectors and a rest, on every instruction set
  std::vector<float> x(length);
  std::vector<Stored> to(length);
  Index wrong = 0;
  for (std::uint32_t bits = first; bits <= last; bits += step * length)
    for (const std::uint32_t sign : {0u, 0x80000000u})
      for (const bool add : {false, true}) {
        for (std::uint32_t i = 0; i < length; ++i) {
          const std::uint32_t pattern = std::min(bits + i * step, last) | sign;
          std::memcpy(&x[i], &pattern, sizeof(pattern));
          mhla::store(to[i], 1.0f);
        }
        Kernels::template store_rows<Stored>(1, length, nullptr, x.data(), length,
                                             {to.data(), length}, add);
        for (const Stored& stored : to) wrong += std::isnan(mhla::load(stored)) ? 0 : 1;
      }
  CAPTURE(first, step);
  CHECK(wrong == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("kernels: NaN stays NaN in 16 bits", "[cpu]", INSTRUCTION_SETS_OF_FLOATS) {
  if (!on_this_machine<TestType>()) return;
  using Kernels = typename TestType::Kernels;
  // All whose bits are in the lower half, and a sample of the others.
  check_not_a_number<mhla::BFloat16, Kernels>(0x7f800001, 0x7f80ffff, 1);
  check_not_a_number<mhla::BFloat16, Kernels>(0x7f810000, 0x7fffffff, 257);
  check_not_a_number<mhla::Half, Kernels>(0x7f800001, 0x7f80ffff, 1);
  check_not_a_number<mhla::Half, Kernels>(0x7f810000, 0x7fffffff, 257);
}

TEMPLATE_TEST_CASE("kernels: inverses, and whether all of them are proper", "[cpu]",
                   INSTRUCTION_SETS) {
  if (!on_this_machine<TestType>()) return;
  using T = typename TestType::Type;
  using Kernels = typename TestType::Kernels;
  using Limits = std::numeric_limits<T>;
  const T improper[] = {T(0),
                        -T(0),
                        not_a_number<T>,
                        Limits::infinity(),
                        -Limits::infinity(),
                        Limits::denorm_min(),  // whose inverse is infinite
                        -Limits::denorm_min()};
  const T proper[] = {Limits::min(), -Limits::min(), T(1), Limits::max() / 4};
  for (Index count = 0; count <= 37; ++count) {
    std::vector<T> x(static_cast<std::size_t>(count));
    for (Index i = 0; i < count; ++i)
      x[static_cast<std::size_t>(i)] = static_cast<T>(i % 7 - 9) / 3;
    std::vector<T> inverse(x.size() + 1, sentinel<T>);
    CHECK(Kernels::invert(count, x.data(), inverse.data()));
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(inverse[i] == T(1) / x[i]);
    CHECK(inverse.back() == sentinel<T>);
    for (const std::size_t at : {std::size_t{0}, x.size() / 2, x.size() - 1}) {
      if (x.empty()) break;
      const T before = x[at];
      for (const T value : improper) {
        CAPTURE(count, at, value);
        x[at] = value;
        CHECK_FALSE(Kernels::invert(count, x.data(), inverse.data()));
      }
      for (const T value : proper) {
        CAPTURE(count, at, value);
        x[at] = value;
        CHECK(Kernels::invert(count, x.data(), inverse.data()));
      }
      x[at] = before;
    }
  }
}

TEMPLATE_TEST_CASE("kernels: a transpose is one", "[cpu]", INSTRUCTION_SETS) {
  if (!on_this_machine<TestType>()) return;
  using T = typename TestType::Type;
  const auto check = [](Index rows, Index cols) {
    CAPTURE(rows, cols);
    Matrix<T> from = Matrix<T>(rows, cols, 1).placed(Lie::together, not_a_number<T>);
    // Every element another one, so that none takes the place of another.
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < cols; ++c) from(r, c) = static_cast<T>(100 * r + c);
    Matrix<T> to(cols, rows, Lie::together, sentinel<T>);
    const Matrix<T> expected = from.transposed().placed(Lie::together, sentinel<T>);
    TestType::Kernels::transpose(rows, cols, from.data(), from.stride(), to.data(), to.stride());
    CHECK(to == expected);
  };
  for (const Index rows : {0, 1, 2, 3, 4, 7, 16, 17, 37})
    for (const Index cols : {0, 1, 3, 4, 9, 15, 16, 21, 50}) check(rows, cols);
}

TEMPLATE_TEST_CASE("kernels: pairs are turned, and turned back", "[cpu]", INSTRUCTION_SETS) {
  if (!on_this_machine<TestType>()) return;
  using T = typename TestType::Type;
  using Kernels = typename TestType::Kernels;
  const bool back = GENERATE(false, true);
  for (Index pairs = 0; pairs <= 40; ++pairs) {
    CAPTURE(pairs, back);
    const Matrix<T> before(2, pairs, 1);  // first and second of every pair
    Matrix<T> cosine(1, pairs, 2);
    Matrix<T> sine(1, pairs, 3);
    Matrix<T> expected = before;
    for (Index j = 0; j < pairs; ++j) {
      const T s = back ? -sine(0, j) : sine(0, j);
      expected(0, j) = before(0, j) * cosine(0, j) - before(1, j) * s;
      expected(1, j) = before(1, j) * cosine(0, j) + before(0, j) * s;
    }
    Matrix<T> x = before;
    Kernels::turn_apart(pairs, x.rows()[0], x.rows()[1], cosine.data(), sine.data(), back);
    CHECK(x == expected);

    // The same pairs, each side by side, in tables with an entry for every element.
    const Index count = 2 * pairs;
    Matrix<T> row(1, count, Lie::together, sentinel<T>);
    Matrix<T> turned = row;
    Matrix<T> cosines = row;
    Matrix<T> sines = row;
    for (Index c = 0; c < count; ++c) {
      row(0, c) = before(c % 2, c / 2);
      turned(0, c) = expected(c % 2, c / 2);
      cosines(0, c) = cosine(0, c / 2);
      sines(0, c) = c % 2 == 0 ? -sine(0, c / 2) : sine(0, c / 2);
    }
    Kernels::turn_neighbours(count, row.data(), cosines.data(), sines.data(), back);
    CHECK(row == turned);
  }
}

namespace {

// A map of integers whose derivative is not itself.
struct Parabola {
  template <class T>
  T value(T x) const {
    return x * x - T(2);
  }
  template <class T>
  T derivative(T x) const {
    return T(2) * x;
  }
};

template <class Stored, class T, class Kernels>
void check_maps() {
  constexpr Index rows = 4;
  for (const auto& [from, to, scale] :
       {std::tuple{Lie::together, Lie::together, 3}, std::tuple{Lie::together, Lie::apart, 1},
        std::tuple{Lie::apart, Lie::together, 1}, std::tuple{Lie::apart, Lie::apart, 3}})
    for (const Index cols : {0, 1, 7, 16, 21, 256, 275}) {  // the last ones in two pieces
      CAPTURE(from == Lie::apart, to == Lie::apart, cols, scale);
      const auto s = static_cast<T>(scale);
      const Matrix<T> values(rows, cols, 1);
      StoredMatrix<Stored, T> x(values, from, not_a_number<T>);
      Matrix<T> y(rows, cols, Lie::together, sentinel<T>);
      Matrix<T> expected = y;
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c) expected(r, c) = s * Parabola{}.value(values(r, c));
      Kernels::template map_rows<Parabola, Stored>(Parabola{}, s, rows, cols, x.rows(), y.data(),
                                                   y.stride());
      CHECK(y == expected);

      // The adjoint: of one gradient, and of a second one of a row each, or of one row for all.
      Matrix<T> g = Matrix<T>(rows, cols, 2).placed(Lie::together, not_a_number<T>);
      Matrix<T> h = Matrix<T>(rows, cols, 3).placed(Lie::together, not_a_number<T>);
      Matrix<T> weights(1, rows, 4);
      for (const bool weighted : {false, true})
        for (const Index h_stride : {Index{-1}, Index{0}, h.stride()})
          for (const bool add : {false, true}) {
            CAPTURE(weighted, h_stride, add);
            StoredMatrix<Stored, T> dx(Matrix<T>(rows, cols, 5), to, T(small_sentinel));
            Matrix<T> expected_dx = dx.values();
            for (Index r = 0; r < rows; ++r)
              for (Index c = 0; c < cols; ++c) {
                T sum = g(r, c);
                const T weight = weighted ? weights(0, r) : T(1);
                if (h_stride >= 0) sum += weight * h(h_stride == 0 ? 0 : r, c);
                // Rounded where it is stored: bfloat16 has 8 bits.
                Stored rounded;
                mhla::store(rounded, (add ? expected_dx(r, c) : T(0)) +
                                         s * Parabola{}.derivative(values(r, c)) * sum);
                expected_dx(r, c) = static_cast<T>(mhla::load(rounded));
              }
            Kernels::template unmap_rows<Parabola, Stored>(
                Parabola{}, s, rows, cols, x.rows(), {g.data(), g.stride()},
                weighted ? weights.data() : nullptr,
                h_stride >= 0 ? Rows<const T>{h.data(), h_stride} : Rows<const T>{}, dx.rows(),
                add);
            CHECK(dx.values() == expected_dx);
          }
    }
}

}  // namespace

TEMPLATE_TEST_CASE("kernels: maps of rows and their adjoint, wherever rows lie", "[cpu]",
                   INSTRUCTION_SETS) {
  if (!on_this_machine<TestType>()) return;
  using T = typename TestType::Type;
  using Kernels = typename TestType::Kernels;
  check_maps<T, T, Kernels>();
  if constexpr (std::is_same_v<T, float>) {
    check_maps<mhla::BFloat16, T, Kernels>();
    check_maps<mhla::Half, T, Kernels>();
  }
}
