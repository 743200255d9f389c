// SPDX-License-Identifier: MIT
// The products and rows of the CPU backend, and the angles of its rotations, against loops: of
// small integers, so that all sums are exact; in float and double, with the instruction set that
// this machine has.
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <mhla/cpu/exponential.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/cpu/rotation_table.hpp>
#include <mhla/policy/feature_map.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <vector>

#include "killer.hpp"

namespace {

using killer::expect;
using mhla::Index;
using mhla::Into;
using mhla::Span;
using mhla::Update;
using mhla::cpu::Panel;
using mhla::cpu::Rows;

/// A matrix of integers from -4 to 4 whose rows have gaps.
template <class T>
struct Matrix {
  Index rows, cols, stride;
  std::vector<T> memory;

  Matrix(Index rows_, Index cols_, std::uint64_t seed, Index stride_ = 0)
      : rows(rows_),
        cols(cols_),
        stride(stride_ > 0 ? stride_ : cols_ + 3),
        memory(static_cast<std::size_t>(rows_ * stride), T(0)) {
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < cols; ++c)
        (*this)(r, c) = static_cast<T>(
            mhla::testing::random_index(seed, static_cast<std::uint64_t>(r * cols + c), 9) - 4);
  }
  T& operator()(Index r, Index c) { return memory[static_cast<std::size_t>(r * stride + c)]; }
  Panel<T> panel() { return {memory.data(), rows, cols, stride}; }
};

/// Every other row, the last one first.
std::vector<Index> places_of(Index rows) {
  std::vector<Index> places;
  for (Index r = 0; r < rows; ++r) places.push_back(2 * (rows - 1 - r));
  return places;
}

template <class T>
void check_products(Index rows, Index cols, Index depth, Index stride = 0) {
  const std::string size = std::to_string(rows) + " x " + std::to_string(depth) + " x " +
                           std::to_string(cols) + (sizeof(T) == 4 ? " floats" : " doubles");
  Matrix<T> a(rows, depth, 1), b(depth, cols, 2, stride), before(rows, cols, 3), scales(1, rows, 4);
  Matrix<T> product(rows, cols, 5), sum = before;
  Matrix<T> a_transposed(depth, rows, 6), b_transposed(cols, depth, 7);
  for (Index k = 0; k < depth; ++k) {
    for (Index i = 0; i < rows; ++i) a_transposed(k, i) = a(i, k);
    for (Index j = 0; j < cols; ++j) b_transposed(j, k) = b(k, j);
  }
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < cols; ++j) {
      product(i, j) = T(0);
      for (Index k = 0; k < depth; ++k) product(i, j) += a(i, k) * b(k, j);
      sum(i, j) += product(i, j);
    }
  const auto check = [&](const std::string& name, const auto& multiply) {
    for (const Into into : {Into::overwrite, Into::add}) {
      Matrix<T> result = before;
      multiply(result.panel(), into);
      expect(result.memory == (into == Into::add ? sum : product).memory, name + ", " + size);
    }
  };
  check("a b", [&](const Panel<T>& c, Into into) { multiply(c, a.panel(), b.panel(), into); });
  check("a^T b", [&](const Panel<T>& c, Into into) {
    multiply_left_transposed(c, a_transposed.panel(), b.panel(), into);
  });
  check("a b^T", [&](const Panel<T>& c, Into into) {
    multiply_right_transposed(c, a.panel(), b_transposed.panel(), into);
  });

  if (depth <= mhla::cpu::max_placed_rows) {  // rows of a and b that lie apart
    const std::vector<Index> places = places_of(depth);
    Matrix<T> a_apart(2 * depth, rows, 8), b_apart(2 * depth, cols, 9);
    for (Index k = 0; k < depth; ++k) {
      const Index place = places[static_cast<std::size_t>(k)];
      for (Index i = 0; i < rows; ++i) a_apart(place, i) = a(i, k);
      for (Index j = 0; j < cols; ++j) b_apart(place, j) = b(k, j);
    }
    check("a^T b, rows apart", [&](const Panel<T>& c, Into into) {
      mhla::cpu::multiply_left_transposed_rows<T>(
          c, depth, {a_apart.memory.data(), a_apart.stride, places.data()},
          {b_apart.memory.data(), b_apart.stride, places.data()}, into, nullptr);
    });
  }
  const std::vector<Index> places = places_of(rows);
  Matrix<T> apart(2 * rows, cols, 10);
  Matrix<T> expected = apart;
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < cols; ++j)
      expected(places[static_cast<std::size_t>(i)], j) = scales(0, i) * product(i, j);
  mhla::cpu::multiply_into_rows<T>({apart.memory.data(), apart.stride, places.data()}, a.panel(),
                                   b.panel(), {scales.memory.data(), rows}, nullptr);
  expect(apart.memory == expected.memory, "rows of a b times a scale, apart, " + size);
}

/// Products with a triangle of NaNs above the diagonal.
// Mixtures of many rows. Of the past: what a row lacks is NaN.
template <class T>
void check_strips(Index rows, Index cols, Index depth, bool past) {
  Matrix<T> weights(rows, depth, 1), b(depth, cols, 2), result(rows, cols, 3);
  Matrix<T> product = result;
  for (Index i = 0; i < rows; ++i)
    for (Index c = 0; c < cols; ++c) product(i, c) = T(0);
  std::vector<T> memory(static_cast<std::size_t>(rows * depth));
  const mhla::cpu::PackedWeights<T> packed{memory.data(), rows, depth,
                                           past ? mhla::cpu::Terms::past : mhla::cpu::Terms::all};
  for (Index s = 0; s < packed.strips(); ++s)
    for (Index i = packed.begin(s); i < packed.begin(s + 1); ++i)
      for (Index k = 0; k < depth; ++k) {
        const bool lacks = past && k > depth - rows + i;
        packed.strip(s).row(k)[i - packed.begin(s)] =
            lacks ? std::numeric_limits<T>::quiet_NaN() : weights(i, k);
        for (Index c = 0; c < cols && !lacks; ++c) product(i, c) += weights(i, k) * b(k, c);
      }
  Matrix<T> twice = product;
  for (T& element : twice.memory) element *= T(2);
  mhla::cpu::mix_rows<T>(result.panel(), packed, b.panel(), Into::overwrite);
  expect(result.memory == product.memory, past ? "strips of the past" : "strips of all terms");
  mhla::cpu::mix_rows<T>(result.panel(), packed, b.panel(), Into::add);
  expect(result.memory == twice.memory, "strips that are added");
}

template <class T>
void check_triangles(Index rows, Index cols) {
  Matrix<T> lower(rows, rows, 1), transposed(rows, rows, 2), b(rows, cols, 3),
      before(rows, cols, 4);
  Matrix<T> of_lower = before, of_transposed = before;
  for (Index t = 0; t < rows; ++t)
    for (Index j = 0; j < rows; ++j) {
      if (j > t) lower(t, j) = std::numeric_limits<T>::quiet_NaN();
      transposed(j, t) = lower(t, j);
      for (Index c = 0; c < cols && j <= t; ++c) {
        of_lower(t, c) += lower(t, j) * b(j, c);
        of_transposed(j, c) += lower(t, j) * b(t, c);
      }
    }
  Matrix<T> result = before;
  multiply_lower(result.panel(), transposed.panel(), b.panel(), Into::add);
  expect(result.memory == of_lower.memory, "a lower triangle");
  result = before;
  multiply_lower_transposed(result.panel(), lower.panel(), b.panel(), Into::add);
  expect(result.memory == of_transposed.memory, "a transposed lower triangle");
}

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

/// Rows on their way into panels and back, in storage type Stored.
template <class Stored, class T>
void check_rows(Index cols) {
  constexpr Index rows = 5;
  const std::string size = std::to_string(cols) + " columns";
  const std::vector<Index> places = places_of(rows);
  Matrix<T> values(2 * rows, cols, 1), g(rows, cols, 2), h(1, cols, 3), weights(1, rows, 4);
  std::vector<Stored> stored(values.memory.size());
  for (std::size_t i = 0; i < stored.size(); ++i) mhla::store(stored[i], values.memory[i]);
  const Rows<Stored> apart{stored.data(), values.stride, places.data()};
  const auto place = [&](Index r) { return places[static_cast<std::size_t>(r)]; };
  const Span<const T> factors{weights.memory.data(), rows};

  Matrix<T> packed(rows, cols, 5), mapped = packed, expected = packed, expected_map = packed;
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < cols; ++c) {
      expected(r, c) = weights(0, r) * values(place(r), c);
      expected_map(r, c) = 3 * values(place(r), c) * values(place(r), c);
    }
  mhla::cpu::weighted_rows<T, Stored>(packed.panel(), factors, apart);
  expect(packed.memory == expected.memory, "rows times weights, " + size);
  mhla::cpu::map_rows<Square, Stored>(Square{}, T(3), apart, mapped.panel());
  expect(mapped.memory == expected_map.memory, "rows through a map, " + size);

  Matrix<T> in_place = g;
  Matrix<T> expected_in_place = g;
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < cols; ++c) expected_in_place(r, c) = weights(0, r) * g(r, c);
  mhla::cpu::weighted_rows<T, T>(in_place.panel(), factors, in_place.panel().placed());
  expect(in_place.memory == expected_in_place.memory, "rows times weights in place, " + size);

  for (const Update update : {Update::overwrite, Update::accumulate}) {
    const bool add = update == Update::accumulate;
    std::vector<Stored> out = stored, expected_out = stored, expected_dx = stored;
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < cols; ++c) {
        const auto at = static_cast<std::size_t>(place(r) * values.stride + c);
        const T x = values(place(r), c);
        const T old = add ? x : T(0);
        mhla::store(expected_out[at], old + weights(0, r) * g(r, c));
        mhla::store(expected_dx[at], old + 4 * x * (g(r, c) + weights(0, r) * h(0, c)));
      }
    const auto same = [](const std::vector<Stored>& x, const std::vector<Stored>& y) {
      for (std::size_t i = 0; i < x.size(); ++i)
        if (mhla::load(x[i]) != mhla::load(y[i])) return false;
      return true;
    };
    mhla::cpu::store_rows<Stored, T>({out.data(), values.stride, places.data()}, factors, g.panel(),
                                     update);
    expect(same(out, expected_out), "rows stored, " + size);
    out = stored;
    mhla::cpu::unmap_rows<Square, Stored>(Square{}, T(2), apart, g.panel(), factors,
                                          {h.memory.data(), 0},
                                          {out.data(), values.stride, places.data()}, update);
    expect(same(out, expected_dx), "the adjoint of a map, " + size);
  }

  Matrix<T> sums(1, cols, 6), added = sums;
  for (Index c = 0; c < cols; ++c)
    for (Index r = 0; r < rows; ++r) added(0, c) += g(r, c);
  mhla::cpu::weighted_row_sum<T>({sums.memory.data(), cols}, g.panel(), {}, Into::add);
  expect(sums.memory == added.memory, "sums of columns, " + size);
}

/// Rows of numbers that are rounded on their way.
template <class Stored>
void check_rounding() {
  constexpr Index cols = 37;
  Matrix<float> x(1, cols, 1);
  for (Index c = 0; c < cols; ++c) x(0, c) = 1 + static_cast<float>(c * c) / 999;
  x(0, 3) = std::numeric_limits<float>::quiet_NaN();
  x(0, 4) = std::bit_cast<float>(0xffffffffu);  // a NaN as well, whose rounding would carry
  std::vector<Stored> out(static_cast<std::size_t>(cols));
  mhla::cpu::store_rows<Stored, float>({out.data(), cols}, {}, x.panel(), Update::overwrite);
  for (Index c = 0; c < cols; ++c) {
    Stored expected;
    mhla::store(expected, x(0, c));
    const Stored actual = out[static_cast<std::size_t>(c)];
    // Which NaN is open.
    expect(std::isnan(x(0, c)) ? std::isnan(mhla::load(actual)) : actual.bits == expected.bits,
           "rows rounded");
  }
}

/// Angles of positions, and pairs turned by them and back.
template <class A>
void check_rotation() {
  mhla::cpu::CirclingAngles<A> angles;
  angles.add(0.3);
  for (Index position = 0; position < 5000; ++position) {
    A cosine, sine;
    angles.at(position, &cosine, &sine);
    const long double angle = static_cast<long double>(position) * static_cast<long double>(0.3);
    const long double allowed = std::numeric_limits<A>::epsilon() + 1e-12L;
    expect(std::abs(static_cast<long double>(cosine) - std::cos(angle)) <= allowed &&
               std::abs(static_cast<long double>(sine) - std::sin(angle)) <= allowed,
           "the angle of every position");
  }
  for (const Index pairs : {1, 3, 8, 21}) {
    Matrix<A> x(1, 2 * pairs, 1), cosine(1, pairs, 2), sine(1, pairs, 3);
    Matrix<A> cosines(1, 2 * pairs, 4), sines(1, 2 * pairs, 5);
    for (Index c = 0; c < 2 * pairs; ++c) {
      cosines(0, c) = cosine(0, c / 2);
      sines(0, c) = c % 2 == 0 ? -sine(0, c / 2) : sine(0, c / 2);
    }
    for (const bool back : {false, true}) {
      Matrix<A> apart = x, neighbours = x, expected_apart = x, expected_neighbours = x;
      for (Index j = 0; j < pairs; ++j) {
        const A s = back ? -sine(0, j) : sine(0, j);
        const auto turned = [&](Index first, Index second, Matrix<A>& to) {
          to(0, first) = x(0, first) * cosine(0, j) - x(0, second) * s;
          to(0, second) = x(0, second) * cosine(0, j) + x(0, first) * s;
        };
        turned(j, pairs + j, expected_apart);
        turned(2 * j, 2 * j + 1, expected_neighbours);
      }
      mhla::cpu::with_kernels<A>([&](auto kernels) {
        kernels.turn_apart(pairs, apart.memory.data(), apart.memory.data() + pairs,
                           cosine.memory.data(), sine.memory.data(), back);
        kernels.turn_neighbours(2 * pairs, neighbours.memory.data(), cosines.memory.data(),
                                sines.memory.data(), back);
      });
      expect(apart.memory == expected_apart.memory, "pairs apart are turned");
      expect(neighbours.memory == expected_neighbours.memory, "neighbours are turned");
    }
  }
}

template <class T>
void check_inverses() {
  const T improper[] = {T(0), std::numeric_limits<T>::quiet_NaN(),
                        std::numeric_limits<T>::infinity(), std::numeric_limits<T>::denorm_min()};
  mhla::cpu::with_kernels<T>([&](auto kernels) {
    for (std::size_t at = 0; at < 19; ++at) {
      std::vector<T> x(19, T(2)), inverse(19);
      expect(kernels.invert(19, x.data(), inverse.data()), "proper denominators");
      for (const T value : improper) {
        x[at] = value;
        expect(!kernels.invert(19, x.data(), inverse.data()), "an improper denominator");
      }
    }
  });
}

template <class T>
void check() {
  for (const Index rows : {1, 4, 13, 30})
    for (const Index cols : {3, 8, 16, 24, 71})
      for (const Index depth : {1, 6, 129, 300}) check_products<T>(rows, cols, depth);
  check_products<T>(3, 5, 2051);
  check_products<T>(30, 200, 128, 4096 / sizeof(T));  // which pushes itself out of the cache
  for (const Index rows : {1, 5, 8, 21})
    for (const Index cols : {3, 40}) check_triangles<T>(rows, cols);
  for (const bool past : {false, true}) check_strips<T>(30, 40, 600, past);
  for (const Index cols : {1, 7, 16, 37, 70, 300}) check_rows<T, T>(cols);
  check_rotation<T>();
  check_inverses<T>();
}

}  // namespace

void check_exponential() {
  for (float x = -103; x < 88; x += 0.37f) {
    const double exact = std::exp(static_cast<double>(x));
    const bool normal = exact > std::numeric_limits<float>::min();
    expect(std::abs(mhla::cpu::exponential(x) - exact) <= (normal ? 1.3e-7 * exact : 2e-45),
           "the exponential");
  }
  expect(mhla::cpu::value_of(mhla::EluPlusOne{}, 0.5f) == 1.5f, "elu + 1");
}

int main() {
  killer::run([] {
    check_exponential();
    check<float>();
    check<double>();
    for (const Index cols : {1, 16, 37, 300}) {
      check_rows<mhla::Half, float>(cols);
      check_rows<mhla::BFloat16, float>(cols);
    }
    check_rounding<mhla::Half>();
    check_rounding<mhla::BFloat16>();
  });
}
