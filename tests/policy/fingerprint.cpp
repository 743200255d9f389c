// SPDX-License-Identifier: MIT
// What a saved state knows a variant by: every value that it holds, no byte between them.
#include <cstdint>
#include <cstring>
#include <mhla/policy/fingerprint.hpp>
#include <new>

#include "tests/support/catch.hpp"

using namespace mhla;

namespace {

constexpr Shape shape{2, 4, 2, 12, 12, 5, 3, 1, 3, 3};

template <class T = float, class V>
std::uint64_t number(const V& attention, Borrowed borrowed = Borrowed::contents) {
  return fingerprint_of<T>(attention, checked_problem(attention, shape), borrowed);
}

// A user's feature map with padding: after a byte, and at the end.
template <class Factor>
struct Padding {
  char kind = 1;
  Factor slope = 2;
  char last = 3;
  template <class T>
  T value(T x) const {
    return static_cast<T>(slope) * x;
  }
  template <class T>
  T derivative(T) const {
    return static_cast<T>(slope);
  }
};

// A row-wise one whose bytes are all values, some of them an address.
struct Table {
  const float* rows = nullptr;
  Index count = 0;
  Index feature_dim(Index key_dim) const { return key_dim; }
  template <class T>
  void value(Span<const T>, Span<T>) const {}
  template <class T>
  void vjp(Span<const T>, Span<const T>, Span<T>) const {}
};

template <class Map>
Attention<Map, Blocks1D> with(const Map& map) {
  return {.feature_map = map, .blocks = {4}};
}

// The number of a variant whose map lay among bytes that are all `byte`.
template <class Map>
std::uint64_t number_among(int byte, const Map& map) {
  using V = Attention<Map, Blocks1D>;
  alignas(V) unsigned char memory[sizeof(V)];
  std::memset(memory, byte, sizeof(V));
  V& attention = *new (memory) V;
  attention.feature_map.kind = map.kind;
  attention.feature_map.slope = map.slope;
  attention.feature_map.last = map.last;
  attention.blocks.block = 4;
  return number(attention);
}

}  // namespace

TEMPLATE_TEST_CASE("fingerprint: padding does not count, what stands beside it does", "[policy]",
                   double, float, short, Index) {
  using Map = Padding<TestType>;
  const Map map;
  CHECK(number_among(0, map) == number_among(0xff, map));
  CHECK(number_among(0x5a, map) == number(with(map)));
  for (const Map& other : {Map{2, 2, 3}, Map{1, 3, 3}, Map{1, 2, 4}})
    CHECK(number(with(other)) != number(with(map)));
}

TEST_CASE("fingerprint: an address that a feature map holds", "[policy]") {
  const float rows[2] = {};
  CHECK(number(with(Table{rows, 1})) == number(with(Table{rows, 1})));
  CHECK(number(with(Table{rows, 1})) != number(with(Table{rows + 1, 1})));
  CHECK(number(with(Table{rows, 1})) != number(with(Table{rows, 2})));
}

TEST_CASE("fingerprint: types count where they hold nothing", "[policy]") {
  CHECK(number(with(Exp{})) == number(with(Exp{})));
  CHECK(number(with(Exp{})) != number(with(EluPlusOne{})));
  CHECK(number<double>(with(Exp{})) != number<float>(with(Exp{})));
  CHECK(number(Attention<Exp, Blocks1D, Causal>{.blocks = {4}}) != number(with(Exp{})));
}

TEST_CASE("fingerprint: a structured mixing counts, with its number", "[policy]") {
  using Recurrent = Attention<Exp, Blocks1D, Causal, MixedKeySum, NoRotation, RecurrentMixing>;
  const auto states = [](Index count) {
    const Recurrent attention{.blocks = {4}, .mixing = {.states = count}};
    Shape of_states = shape;
    of_states.mix_key_blocks = attention.mixing.columns();
    return fingerprint_of<float>(attention, checked_problem(attention, of_states),
                                 Borrowed::contents);
  };
  CHECK(states(2) == states(2));
  CHECK(states(2) != states(3));
  CHECK(states(1) != number(Attention<Exp, Blocks1D, Causal>{.blocks = {4}}));
}

TEST_CASE("fingerprint: what is borrowed counts by what it holds, or by where it lies",
          "[policy]") {
  float matrix[30] = {};
  const float copy[30] = {};
  const auto favor = [](const float* data) { return with(Favor<float>{make_view(data, 6, 5)}); };
  CHECK(number(favor(matrix)) == number(favor(copy)));
  CHECK(number(favor(matrix), Borrowed::address) != number(favor(copy), Borrowed::address));
  const std::uint64_t before = number(favor(matrix), Borrowed::address);
  const std::uint64_t contents = number(favor(matrix));
  matrix[29] = 1;
  CHECK(number(favor(matrix), Borrowed::address) == before);  // not read
  CHECK(number(favor(matrix)) != contents);

  std::uint8_t mask[24] = {1, 1, 1};
  const std::uint8_t other_mask[24] = {1, 1, 1};
  const auto masked = [](const std::uint8_t* data) {
    return Padded{with(Exp{}), TokenMasks{make_view(data, 2, 12), {}}};
  };
  CHECK(number(masked(mask)) == number(masked(other_mask)));
  CHECK(number(masked(mask), Borrowed::address) != number(masked(other_mask), Borrowed::address));
  const std::uint64_t of_mask = number(masked(mask), Borrowed::address);
  mask[23] = 1;
  CHECK(number(masked(mask), Borrowed::address) == of_mask);
  CHECK(number(masked(mask)) != number(masked(other_mask)));
}
