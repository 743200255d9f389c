// SPDX-License-Identifier: MIT
// Products of bfloat16 in pairs, and what packs their factors, against loops: with stand-ins for
// all instructions, one of which the program's panels use on every machine, and with those that the
// machine has. Factors are small integers, so that every sum is exact, and results are
// compared with all that lies between and around them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mhla/core/scalar.hpp>
#include <mhla/cpu/pairs/panel.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <type_traits>
#include <vector>

#include "tests/cpu/tile_machine.hpp"
#include "tests/support/catch.hpp"

#if !defined(MHLA_PAIR_PRODUCTS_STAND_IN)
#error "compile with MHLA_PAIR_PRODUCTS_STAND_IN: panels then have kernels on every machine"
#endif

namespace {

using namespace mhla;
using namespace mhla::cpu;
using mhla::testing::random_bits;
using mhla::testing::random_index;

namespace stand_in = mhla::cpu::portable::stand_in;

template <class Instruction>
using Portable = mhla::cpu::portable::PairKernels<float, Instruction>;
using OfVdpbf16ps = Portable<stand_in::Vdpbf16ps>;
using OfBfmmla = Portable<stand_in::Bfmmla>;
using OfTdpbf16ps = mhla::cpu::portable::TiledPairKernels<float, OfVdpbf16ps, stand_in::Tdpbf16ps>;

// Calls f with the kernels of an instruction if the machine has it, and says whether. The same code
// for tile registers runs where the vectors beside them are: tile_machine.hpp stands in for them.
template <class F>
bool with_vdpbf16ps(const F& f) {
#if defined(__x86_64__)
  namespace avx512 = mhla::cpu::avx512;
  if (mhla::cpu::has_vdpbf16ps()) {
    f(avx512::PairKernels<float, avx512::Vdpbf16ps>{});
    return true;
  }
#endif
  static_cast<void>(f);
  return false;
}
template <class F>
bool with_tdpbf16ps(const F& f) {
#if defined(__x86_64__)
  namespace avx512 = mhla::cpu::avx512;
  using Vectors = avx512::PairKernels<float, avx512::Vdpbf16ps>;
  const avx512::TiledPairKernels<float, Vectors, avx512::Tdpbf16ps> kernels;
  if (mhla::cpu::has_tdpbf16ps()) {
    f(kernels);
    return true;
  }
#if defined(__linux__)
  if (mhla::cpu::has_vdpbf16ps()) {
    INFO("emulated");
    tile_machine::install();
    f(kernels);
    CHECK(!tile_machine::configured);  // the last one was released
    return true;
  }
#endif
#endif
  static_cast<void>(f);
  return false;
}
template <class F>
bool with_bfmmla(const F& f) {
#if defined(__aarch64__)
  if (mhla::cpu::has_bfmmla()) {
    f(Portable<mhla::cpu::portable::Bfmmla>{});
    return true;
  }
#endif
  static_cast<void>(f);
  return false;
}

// Calls f with the kernels of every stand-in, and of the instructions that the machine has.
template <class F>
void for_each_kernels(const F& f) {
  const auto named = [&](const char* name) {
    return [&f, name](auto kernels) {
      CAPTURE(name);
      f(kernels);
    };
  };
  named("stand-in for VDPBF16PS")(OfVdpbf16ps{});
  named("stand-in for TDPBF16PS")(OfTdpbf16ps{});
  named("stand-in for BFMMLA")(OfBfmmla{});
  with_vdpbf16ps(named("VDPBF16PS"));
  with_tdpbf16ps(named("TDPBF16PS"));
  with_bfmmla(named("BFMMLA"));
}

// A matrix whose rows are `gap` elements longer than it is wide; between and around them lie
// sentinels. bfloat16 are their bits.
template <class T>
class Matrix {
 public:
  Matrix(Index height, Index width, Index gap = 3)
      : rows(height),
        cols(width),
        stride(width + gap),
        memory_(static_cast<std::size_t>(rows * stride + 2 * guard), sentinel()) {}
  // integers from -4 to 4
  static Matrix integers(Index height, Index width, std::uint64_t seed) {
    Matrix matrix(height, width);
    for (Index r = 0; r < height; ++r)
      for (Index c = 0; c < width; ++c)
        matrix(r, c) =
            static_cast<T>(random_index(seed, static_cast<std::uint64_t>(r * width + c), 9) - 4);
    return matrix;
  }

  T* data() { return memory_.data() + guard; }
  const T* data() const { return memory_.data() + guard; }
  T& operator()(Index r, Index c) { return data()[r * stride + c]; }
  T operator()(Index r, Index c) const { return data()[r * stride + c]; }
  // To the bit: a NaN is itself.
  friend bool operator==(const Matrix& a, const Matrix& b) {
    return a.memory_.size() == b.memory_.size() &&
           std::memcmp(a.memory_.data(), b.memory_.data(), a.memory_.size() * sizeof(T)) == 0;
  }

  Index rows, cols, stride;

 private:
  static constexpr Index guard = 64;
  static T sentinel() {
    T value;
    std::memset(&value, 0xa5, sizeof(T));
    return value;
  }
  std::vector<T> memory_;
};

Pair bits(float value) {
  BFloat16 rounded;
  mhla::store(rounded, value);
  return rounded.bits;
}
Pair pair_of(float lower, float upper) { return bits(lower) | bits(upper) << 16; }

using Floats = Matrix<float>;
using Shorts = Matrix<std::uint16_t>;
using Pairs = Matrix<Pair>;

// Two rows, or columns, side by side; an odd last one is alone.
Pairs pairs_of_rows(const Floats& a) {
  Pairs pairs(pairs_of(a.rows), a.cols);
  for (Index r = 0; r < a.rows; r += 2)
    for (Index c = 0; c < a.cols; ++c)
      pairs(r / 2, c) = pair_of(a(r, c), r + 1 < a.rows ? a(r + 1, c) : 0.0f);
  return pairs;
}
Pairs pairs_of_terms(const Floats& a) {
  Pairs pairs(a.rows, pairs_of(a.cols));
  for (Index r = 0; r < a.rows; ++r)
    for (Index c = 0; c < a.cols; c += 2)
      pairs(r, c / 2) = pair_of(a(r, c), c + 1 < a.cols ? a(r, c + 1) : 0.0f);
  return pairs;
}
Floats transposed(const Floats& a) {
  Floats result(a.cols, a.rows);
  for (Index r = 0; r < a.rows; ++r)
    for (Index c = 0; c < a.cols; ++c) result(c, r) = a(r, c);
  return result;
}
float product(const Floats& a, const Floats& b, Index r, Index c) {
  float sum = 0;
  for (Index k = 0; k < a.cols; ++k) sum += a(r, k) * b(k, c);
  return sum;
}

// Places of rows of a tensor: every other one, from the last on.
std::vector<Index> places_of(Index rows) {
  std::vector<Index> places;
  for (Index r = 0; r < rows; ++r) places.push_back(2 * (rows - 1 - r));
  return places;
}
BFloat16* tensor(Shorts& matrix) { return reinterpret_cast<BFloat16*>(matrix.data()); }

struct Size {
  Index rows, cols, depth;
};

// Every result of a b, of `cols` columns, with every layout of a.
template <class K>
void check_products(K kernels, const Size& size) {
  const auto [rows, cols, depth] = size;
  CAPTURE(rows, cols, depth);
  const Index whole = whole_columns(cols);
  const Floats a = Floats::integers(rows, depth, 1);
  const Floats b = Floats::integers(depth, whole, 2);
  const Floats before = Floats::integers(rows, whole, 3);
  const Floats scales = Floats::integers(1, rows, 4);
  const Pairs a_rows = pairs_of_terms(a);
  const Pairs a_columns = pairs_of_rows(transposed(a));
  const Pairs b_pairs = pairs_of_rows(b);
  std::vector<Index> places = places_of(rows);
  const std::vector<char> elsewhere(2000);

  for (const bool by_columns : {false, true}) {
    CAPTURE(by_columns);
    Prefetch prefetch(nullptr, by_columns ? 7 : 0);
    prefetch.add(elsewhere.data(), 130, 200);
    const PairProduct factors{.rows = rows,
                              .cols = whole,
                              .depth = pairs_of(depth),
                              .a = by_columns ? a_columns.data() : a_rows.data(),
                              .a_row = by_columns ? 1 : a_rows.stride,
                              .a_term = by_columns ? a_columns.stride : 1,
                              .b = b_pairs.data(),
                              .b_stride = b_pairs.stride,
                              .prefetch = &prefetch};
    for (const bool adds : {false, true}) {
      CAPTURE(adds);
      const auto value = [&](Index r, Index c) {
        return (adds ? before(r, c) : 0.0f) + product(a, b, r, c);
      };
      const auto with = [&](PairSums into) {
        PairProduct p = factors;
        p.into = into;
        p.sums_stride = before.stride;
        if (adds) p.add = before.data();
        return p;
      };
      // What is added to, too, may be the sums themselves.
      Floats sums = adds ? before : Floats(rows, whole);
      Floats expected = sums;
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < whole; ++c) expected(r, c) = value(r, c);
      PairProduct p = with(PairSums::floats);
      p.sums = sums.data();
      if (adds) p.add = sums.data();
      kernels.multiply(p);
      CHECK(sums == expected);

      // Rows that follow each other at once, and apart.
      for (const Index gap : {0, 5}) {
        CAPTURE(gap);
        Pairs halves(rows, cols, gap);
        Pairs expected_halves = halves;
        p = with(PairSums::lower_halves);
        p.pairs = halves.data();
        p.pairs_stride = halves.stride;
        p.stored_cols = cols;
        for (Index r = 0; r < rows; ++r)
          for (Index c = 0; c < cols; ++c) expected_halves(r, c) = bits(value(r, c));
        kernels.multiply(p);
        CHECK(halves == expected_halves);
        p.into = PairSums::upper_halves;
        for (Index r = 0; r < rows; ++r)
          for (Index c = 0; c < cols; ++c) expected_halves(r, c) *= 0x10001u;
        kernels.multiply(p);
        CHECK(halves == expected_halves);
      }

      for (const bool scaled : {false, true}) {
        CAPTURE(scaled);
        Shorts stored(2 * rows, cols);
        Shorts expected_stored = stored;
        p = with(PairSums::stored);
        p.stored = {tensor(stored), stored.stride, places.data()};
        p.stored_cols = cols;
        if (scaled) p.scale = scales.data();
        for (Index r = 0; r < rows; ++r)
          for (Index c = 0; c < cols; ++c)
            expected_stored(places[static_cast<std::size_t>(r)], c) =
                static_cast<std::uint16_t>(bits((scaled ? scales(0, r) : 1.0f) * value(r, c)));
        kernels.multiply(p);
        CHECK(stored == expected_stored);
      }
    }

    // The first half of b's columns, and the second, side by side.
    if (whole % 32 != 0) continue;
    const Index half = whole / 2;
    Pairs both(rows, half);
    Pairs expected = both;
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < half; ++c)
        expected(r, c) = pair_of(product(a, b, r, c), product(a, b, r, half + c));
    PairProduct p = factors;
    p.into = PairSums::pairs;
    p.cols = half;
    p.next = half;
    p.pairs = both.data();
    p.pairs_stride = both.stride;
    kernels.multiply(p);
    CHECK(both == expected);
  }
}

// Numbers that bfloat16 has not.
Floats random_floats(Index rows, Index cols, std::uint64_t seed) {
  Floats matrix(rows, cols);
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < cols; ++c)
      matrix(r, c) = static_cast<float>(
          mhla::testing::Normal{}(seed, static_cast<std::uint64_t>(r * cols + c)));
  return matrix;
}

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE("pair products: every result is that of a loop, and nothing beside it is written",
          "[cpu]") {
  for_each_kernels([](auto kernels) {
    for (const Index rows : {1, 2, 4, 5, 6, 7, 8, 11, 12, 14, 27})
      for (const Index cols : {1, 5, 16, 17, 32, 47, 64, 72, 96})
        check_products(kernels, {rows, cols, 1 + (rows + cols) % 9});
    for (const Index depth : {0, 1, 2, 3, 40}) check_products(kernels, {13, 50, depth});
    check_products(kernels, {0, 32, 4});
    // Whole tiles of 16 rows and 16 pairs, and parts of one.
    for (const Index depth : {14, 15, 31, 33, 128, 129, 131})
      check_products(kernels, {33, 32, depth});
    for (const Index rows : {1, 15, 16, 17, 32, 65}) check_products(kernels, {rows, 16, 40});
  });
}

// Executors cut mixing by its rows.
TEST_CASE("pair products: a row has the same bits, whatever rows are with it", "[cpu]") {
  for_each_kernels([](auto kernels) {
    constexpr Index rows = 35, cols = 32;
    for (const Index depth : {3, 8, 21}) {
      CAPTURE(depth);
      const Pairs a = pairs_of_terms(random_floats(rows, 2 * depth, 1));
      const Pairs b = pairs_of_rows(random_floats(2 * depth, cols, 2));
      const auto multiply = [&](Index most) {
        Floats sums(rows, cols);
        Prefetch nothing;
        for (Index row = 0; row < rows; row += most)
          kernels.multiply(PairProduct{.rows = std::min(most, rows - row),
                                       .cols = cols,
                                       .depth = depth,
                                       .a = a.data() + row * a.stride,
                                       .a_row = a.stride,
                                       .a_term = 1,
                                       .b = b.data(),
                                       .b_stride = b.stride,
                                       .sums = sums.data() + row * sums.stride,
                                       .sums_stride = sums.stride,
                                       .prefetch = &nothing});
        return sums;
      };
      const Floats at_once = multiply(rows);
      for (const Index most : {1, 2, 5, 8, 16, 20}) CHECK(multiply(most) == at_once);
    }
  });
}

TEST_CASE("pair products: complete sums become what products of nothing would", "[cpu]") {
  for_each_kernels([](auto kernels) {
    for (const Index cols : {1, 15, 16, 33, 72}) {
      CAPTURE(cols);
      constexpr Index rows = 5;
      const Floats sums = random_floats(rows, whole_columns(cols), 1);
      const Floats scales = random_floats(1, rows, 2);
      PairProduct p{.rows = rows,
                    .cols = whole_columns(cols),
                    .sums_stride = sums.stride,
                    .stored_cols = cols,
                    .add = sums.data()};
      Pairs halves(rows, cols, 0);
      Pairs expected = halves;
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c) expected(r, c) = bits(sums(r, c)) * 0x10001u;
      p.pairs = halves.data();
      p.pairs_stride = halves.stride;
      p.into = PairSums::lower_halves;
      kernels.finish(p);
      p.into = PairSums::upper_halves;
      kernels.finish(p);
      CHECK(halves == expected);

      Shorts stored(rows, cols);
      Shorts expected_stored = stored;
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c)
          expected_stored(r, c) = static_cast<std::uint16_t>(bits(scales(0, r) * sums(r, c)));
      p.stored = {tensor(stored), stored.stride};
      p.scale = scales.data();
      p.into = PairSums::stored;
      kernels.finish(p);
      CHECK(stored == expected_stored);
    }
  });
}

// Row r has the terms before `first` + r, or those from there on; others are NaN, in a and in b.
TEST_CASE("pair products: a triangle is that of a loop, and what its rows lack stays out",
          "[cpu]") {
  for (const bool future : {false, true})
    for (const Index rows : {1, 2, 7, 8, 9, 16, 21})
      for (const Index cols : {1, 16, 40})
        for (const Index first : {0, 1}) {
          CAPTURE(future, rows, cols, first);
          const Triangle triangle{first, future};
          const Index terms = rows;
          const auto has = [&](Index r, Index t) {
            return future ? t >= first + r : t < first + r;
          };
          Floats a = Floats::integers(rows, terms, 1);
          const Floats b = Floats::integers(terms, whole_columns(cols), 2);
          const Floats before = Floats::integers(rows, whole_columns(cols), 3);
          Floats expected = before;
          for (Index r = 0; r < rows; ++r)
            for (Index t = 0; t < terms; ++t) {
              for (Index c = 0; c < b.cols && has(r, t); ++c) expected(r, c) += a(r, t) * b(t, c);
              if (!has(r, t)) a(r, t) = not_a_number;
            }
          const auto add = [&](const Floats& factor) {
            Pairs left = pairs_of_terms(a);
            Pairs right = pairs_of_rows(factor);
            Floats sums = before;
            mhla::cpu::add_triangle(Panel<float>{sums.data(), rows, sums.cols, sums.stride},
                                    PairedRows{left.data(), rows, terms, left.stride},
                                    VnniPanel{right.data(), right.rows, cols, right.stride},
                                    triangle);
            return sums;
          };
          CHECK(add(b) == expected);

          // A term that only some rows have reaches no other row.
          Index wrong = 0;
          for (Index t = 0; t < terms; ++t) {
            Floats poisoned = b;
            poisoned(t, cols - 1) = not_a_number;
            const Floats sums = add(poisoned);
            for (Index r = 0; r < rows; ++r)
              for (Index c = 0; c < b.cols; ++c)
                wrong += c == cols - 1 && has(r, t) ? !std::isnan(sums(r, c))
                                                    : sums(r, c) != expected(r, c);
          }
          CHECK(wrong == 0);
        }
}

namespace {

// Random bits, of every kind of number.
std::uint16_t random_bfloat16(std::uint64_t seed, std::uint64_t number) {
  const std::uint64_t random = random_bits(seed, number);
  const auto any = static_cast<std::uint16_t>(random);
  const auto sign = static_cast<std::uint16_t>(any & 0x8000u);
  const auto fraction = static_cast<std::uint16_t>(any & 0x7fu);
  switch (random >> 32 & 63) {
    case 0:
      return sign;  // 0
    case 1:
      return static_cast<std::uint16_t>(sign | fraction);  // subnormal, or 0
    case 2:
      return static_cast<std::uint16_t>(sign | 0x7f80u);  // infinite
    case 3:
      return static_cast<std::uint16_t>(sign | 0x7f80u | fraction);  // mostly NaN
    default:  // around 1, so that no product overflows or is subnormal
      return static_cast<std::uint16_t>(sign | (96 + (random >> 40) % 64) << 7 | fraction);
  }
}

// Where a product itself is subnormal or overflows, or what it is added to is subnormal, they
// differ: the stand-in's multiplication is rounded.
template <class StandIn>
auto check_bits(StandIn, Index least_depth, std::uint64_t cases) {
  return [=](auto kernels) {
    constexpr Index rows = 64, cols = 64;
    Index wrong = 0;
    for (std::uint64_t seed = 0; seed < 4 * cases; seed += 4) {
      const Index depth = least_depth + static_cast<Index>(seed / 4 % 3);
      const bool by_columns = seed % 8 == 0;
      Pairs a = by_columns ? Pairs(depth, rows) : Pairs(rows, depth);
      Pairs b(depth, cols);
      Floats add(rows, cols), of_stand_in(rows, cols), of_instruction(rows, cols);
      std::uint64_t number = 0;
      const auto next = [&]() -> Pair {
        const Pair low = random_bfloat16(seed, number++);
        return low | Pair{random_bfloat16(seed, number++)} << 16;
      };
      for (Pairs* factor : {&a, &b})
        for (Index r = 0; r < factor->rows; ++r)
          for (Index c = 0; c < factor->cols; ++c) (*factor)(r, c) = next();
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c) {
          const Pair sum = Pair{random_bfloat16(seed + 1, number)} << 16 |
                           static_cast<Pair>(random_bits(seed + 2, number) & 0xffffu);
          ++number;
          std::memcpy(&add(r, c), &sum, sizeof(float));
          // A product's sum is never subnormal.
          if (std::fpclassify(add(r, c)) == FP_SUBNORMAL) add(r, c) = 0;
        }
      Prefetch nothing;
      PairProduct p{.rows = rows,
                    .cols = cols,
                    .depth = depth,
                    .a = a.data(),
                    .a_row = by_columns ? 1 : a.stride,
                    .a_term = by_columns ? a.stride : 1,
                    .b = b.data(),
                    .b_stride = b.stride,
                    .sums = of_stand_in.data(),
                    .sums_stride = add.stride,
                    .add = add.data(),
                    .prefetch = &nothing};
      StandIn::multiply(p);
      p.sums = of_instruction.data();
      kernels.multiply(p);
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c) {
          const float x = of_stand_in(r, c), y = of_instruction(r, c);
          wrong += std::isnan(x) ? !std::isnan(y) : std::memcmp(&x, &y, sizeof(float)) != 0;
        }
    }
    CHECK(wrong == 0);
  };
}

template <class StandIn>
auto check_rounding(StandIn) {
  return [](auto kernels) {
    constexpr Index rows = 64, cols = 256;
    Index wrong = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      Floats from(rows, cols);
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c) {
          const auto number = static_cast<std::uint64_t>(r * cols + c);
          // Any bits, ties, and what is nearly subnormal, infinite or NaN.
          auto value = static_cast<Pair>(random_bits(seed, number));
          if (r % 4 == 1) value = (value & 0xffff0000u) | 0x8000u;
          if (r % 4 == 2) value &= 0x80ffffffu;
          if (r % 4 == 3) value |= 0x7f000000u;
          std::memcpy(&from(r, c), &value, sizeof(float));
        }
      Pairs of_stand_in(rows / 2, cols), of_instruction(rows / 2, cols);
      const Rows<const float> source{from.data(), from.stride};
      const auto panel = [](Pairs& pairs) {
        return VnniPanel{pairs.data(), rows / 2, cols, pairs.stride};
      };
      StandIn::template pair_rows<float>(panel(of_stand_in), rows, source);
      kernels.template pair_rows<float>(panel(of_instruction), rows, source);
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < cols; ++c) {
          const int shift = r % 2 == 0 ? 0 : 16;
          const auto x =
              BFloat16::from_bits(static_cast<std::uint16_t>(of_stand_in(r / 2, c) >> shift));
          const auto y =
              BFloat16::from_bits(static_cast<std::uint16_t>(of_instruction(r / 2, c) >> shift));
          wrong += std::isnan(mhla::load(x)) ? !std::isnan(mhla::load(y)) : x.bits != y.bits;
        }
    }
    CHECK(wrong == 0);
  };
}

// The machine's, which a test's name says, or a word on why there is nothing to compare with.
void say_skipped(bool has, const char* name) {
  if (!has) WARN("skipped: this machine does not have " << name);
  SUCCEED();
}

}  // namespace

TEST_CASE("pair products: the stand-in has the bits of VDPBF16PS", "[cpu]") {
  say_skipped(with_vdpbf16ps(check_bits(OfVdpbf16ps{}, 1, 50)), "VDPBF16PS");
}
TEST_CASE("pair products: the stand-in rounds as VCVTNEPS2BF16", "[cpu]") {
  say_skipped(with_vdpbf16ps(check_rounding(OfVdpbf16ps{})), "VCVTNEPS2BF16");
}
TEST_CASE("pair products: the stand-in has the bits of TDPBF16PS, the machine's or emulated",
          "[cpu]") {
  bool has = false;
  for (const Index depth : {8, 16, 47}) has = with_tdpbf16ps(check_bits(OfTdpbf16ps{}, depth, 6));
  say_skipped(has, "TDPBF16PS");
}
TEST_CASE("pair products: the stand-in has the bits of BFMMLA and BFDOT", "[cpu]") {
  say_skipped(with_bfmmla(check_bits(OfBfmmla{}, 1, 50)), "BFMMLA");
}
TEST_CASE("pair products: the stand-in rounds as BFCVTN", "[cpu]") {
  say_skipped(with_bfmmla(check_rounding(OfBfmmla{})), "BFCVTN");
}

namespace {

// Of a number between two floats the one whose last bit is 1.
float rounded_to_odd(double exact) {
  const auto nearest = static_cast<float>(exact);
  Pair bits;
  std::memcpy(&bits, &nearest, sizeof(bits));
  if (static_cast<double>(nearest) == exact || bits % 2 == 1) return nearest;
  const float beyond = std::numeric_limits<float>::infinity();
  return std::nextafter(nearest, static_cast<double>(nearest) < exact ? beyond : -beyond);
}

// The terms of one element of a product, [2 pairs], and how an instruction adds them to `sum`.
using Terms = std::vector<float>;
float by_vdpbf16ps(const Terms& a, const Terms& b, float sum) {
  for (std::size_t k = 0; k < a.size(); k += 2)
    for (const std::size_t t : {k + 1, k}) sum = std::fma(a[t], b[t], sum);
  return sum;
}
float by_tdpbf16ps(const Terms& a, const Terms& b, float sum) {
  for (std::size_t begin = 0; begin < a.size(); begin += 32) {
    float parts[2] = {};
    for (std::size_t t = begin; t < std::min(begin + 32, a.size()); ++t)
      parts[t % 2] = std::fma(a[t], b[t], parts[t % 2]);
    sum += parts[0] + parts[1];
  }
  return sum;
}
float by_bfmmla(const Terms& a, const Terms& b, float sum) {
  const auto term = [&](std::size_t t) { return static_cast<double>(a[t]) * b[t]; };
  for (std::size_t k = 0; k < a.size(); k += 2)
    sum = rounded_to_odd(static_cast<double>(sum) + rounded_to_odd(term(k) + term(k + 1)));
  return sum;
}

// Of either sign and 2^-6 to 4, its last `zeros` bits 0.
float number_near_one(std::uint64_t number, int zeros) {
  const std::uint64_t random = random_bits(1, number);
  const std::uint64_t bits = (random & 0x807fffffu) | (121 + (random >> 32) % 8) << 23;
  const auto used = static_cast<Pair>(bits >> zeros << zeros);
  float value;
  std::memcpy(&value, &used, sizeof(value));
  return value;
}

// Against one of them, for numbers so near to 1 that their sums are exact in double.
template <class K>
void check_order(K kernels, Index depth, float (*by)(const Terms&, const Terms&, float)) {
  constexpr Index rows = 35, cols = 48;
  Floats a(rows, 2 * depth), b(2 * depth, cols), before(rows, cols);
  std::uint64_t number = 0;
  for (Floats* factor : {&a, &b})
    for (Index r = 0; r < factor->rows; ++r)
      for (Index c = 0; c < factor->cols; ++c) (*factor)(r, c) = number_near_one(number++, 16);
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < cols; ++c) before(r, c) = number_near_one(number++, 0);
  const Pairs left = pairs_of_terms(a), right = pairs_of_rows(b);
  Floats sums = before;
  Prefetch nothing;
  kernels.multiply(PairProduct{.rows = rows,
                               .cols = cols,
                               .depth = depth,
                               .a = left.data(),
                               .a_row = left.stride,
                               .a_term = 1,
                               .b = right.data(),
                               .b_stride = right.stride,
                               .sums = sums.data(),
                               .sums_stride = sums.stride,
                               .add = before.data(),
                               .prefetch = &nothing});
  Index wrong = 0;
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < cols; ++c) {
      Terms row, column;
      for (Index t = 0; t < 2 * depth; ++t) {
        row.push_back(a(r, t));
        column.push_back(b(t, c));
      }
      wrong += sums(r, c) != by(row, column, before(r, c));
    }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("pair products: terms are added in the documented order, and rounded so", "[cpu]") {
  for (const Index depth : {1, 2, 5, 8, 16, 37}) {
    CAPTURE(depth);
    check_order(OfVdpbf16ps{}, depth, by_vdpbf16ps);
    // A product of few terms has no tiles.
    check_order(OfTdpbf16ps{}, depth, depth < 8 ? by_vdpbf16ps : by_tdpbf16ps);
    check_order(OfBfmmla{}, depth, by_bfmmla);
  }
}
