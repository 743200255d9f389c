// SPDX-License-Identifier: MIT
// Overlap decided by arithmetic on strides, against sets of addresses.
#include <array>
#include <cstddef>
#include <cstdint>
#include <mhla/core/overlap.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <vector>

#include "tests/support/catch.hpp"

using mhla::Index;
using mhla::TensorView;

namespace {

constexpr std::size_t memory_size = 1 << 14;
alignas(16) std::array<std::byte, memory_size> memory;

// How often each byte of the memory is touched by an element of the view.
template <class T, int Rank>
std::vector<int> touched_bytes(const TensorView<T, Rank>& view) {
  std::vector<int> count(memory_size);
  mhla::testing::for_each_element(
      [&](const T& element) {
        const auto offset =
            static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&element) - memory.data());
        for (std::size_t byte = 0; byte < sizeof(T); ++byte) ++count.at(offset + byte);
      },
      view);
  return count;
}

template <class T, int RankT, class U, int RankU>
bool share_a_byte(const TensorView<T, RankT>& a, const TensorView<U, RankU>& b) {
  const auto bytes_a = touched_bytes(a);
  const auto bytes_b = touched_bytes(b);
  for (std::size_t i = 0; i < memory_size; ++i)
    if (bytes_a[i] != 0 && bytes_b[i] != 0) return true;
  return false;
}

template <class T, int Rank>
bool touches_each_byte_once(const TensorView<T, Rank>& view) {
  for (const int count : touched_bytes(view))
    if (count > 1) return false;
  return true;
}

// Any strides at all, zero and negative ones included, inside the memory.
template <class T, int Rank>
TensorView<T, Rank> random_view(std::uint64_t seed) {
  std::uint64_t counter = 0;
  const auto draw = [&](Index bound) {
    return mhla::testing::random_index(seed, counter++, bound);
  };
  TensorView<T, Rank> view;
  for (int axis = 0; axis < Rank; ++axis) {
    view.extent[axis] = draw(5);
    view.stride[axis] = draw(2) == 0 ? draw(61) - 30 : (draw(9) - 4) * (draw(6) + 1);
  }
  const Index middle = static_cast<Index>(memory_size / sizeof(T) / 2);
  view.data = reinterpret_cast<T*>(memory.data()) + middle + draw(40) - 20;
  return view;
}

// A permuted, sliced, reversed part of a row-major array: what users make. Distinct elements.
template <int Rank>
TensorView<float, Rank> random_slice(std::uint64_t seed, Index base) {
  std::uint64_t counter = 0;
  const auto draw = [&](Index bound) {
    return mhla::testing::random_index(seed, counter++, bound);
  };
  TensorView<float, Rank> view;
  view.data = reinterpret_cast<float*>(memory.data()) + base;
  Index stride = 1;
  for (int axis = Rank - 1; axis >= 0; --axis) {
    const Index whole = draw(4) + 1;
    const Index first = draw(whole);
    view.extent[axis] = draw(whole - first) + 1;
    view.stride[axis] = stride;
    view.data += first * stride;
    if (draw(3) == 0) {
      view.data += (view.extent[axis] - 1) * stride;
      view.stride[axis] = -stride;
    }
    stride *= whole;
  }
  for (int axis = Rank - 1; axis > 0; --axis) {
    const Index other = draw(axis + 1);
    std::swap(view.extent[axis], view.extent[other]);
    std::swap(view.stride[axis], view.stride[other]);
  }
  return view;
}

}  // namespace

TEST_CASE("overlap: share_memory agrees with the sets of bytes for random strides", "[core]") {
  int shared = 0;
  int disjoint = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const auto a = random_view<float, 3>(2 * seed);
    const auto b = random_view<float, 2>(2 * seed + 1);
    const auto c = random_view<double, 3>(2 * seed + 1);
    INFO("seed " << seed);
    const bool expected = share_a_byte(a, b);
    ++(expected ? shared : disjoint);
    REQUIRE(mhla::share_memory(a, b) == expected);
    REQUIRE(mhla::share_memory(b, a) == expected);
    REQUIRE(mhla::share_memory(a, c) == share_a_byte(a, c));
    REQUIRE(mhla::share_memory(c, a) == share_a_byte(a, c));
  }
  CHECK(shared > 300);  // the sample is worth something on both sides
  CHECK(disjoint > 300);
}

TEST_CASE("overlap: packed qkv interleaves and shares nothing, at any size", "[core]") {
  // [batch, tokens, 3, heads, dim], never touched: only addresses matter.
  auto* base = reinterpret_cast<float*>(std::uintptr_t{1} << 20);
  for (const Index tokens : {Index{3}, Index{1} << 20}) {
    const Index heads = 5;
    const Index dim = 7;
    const auto part = [&](Index which, Index wide) {
      return TensorView<float, 4>{base + which * heads * dim,
                                  {2, heads, tokens, wide},
                                  {tokens * 3 * heads * dim, dim, 3 * heads * dim, 1}};
    };
    CHECK_FALSE(mhla::share_memory(part(0, dim), part(1, dim)));
    CHECK_FALSE(mhla::share_memory(part(1, dim), part(2, dim)));
    CHECK_FALSE(mhla::share_memory(part(2, dim), part(0, dim)));
    CHECK(mhla::share_memory(part(1, dim), part(1, dim)));
    // Of the last head of q, one element more is the first of k.
    const auto tail = [&](Index wide) {
      auto view = part(0, wide);
      view.data += (heads - 1) * dim;
      view.extent[1] = 1;
      return view;
    };
    CHECK_FALSE(mhla::share_memory(tail(dim), part(1, dim)));
    CHECK(mhla::share_memory(tail(dim + 1), part(1, dim)));
  }
}

TEST_CASE("overlap: what is_injective accepts touches every byte once", "[core]") {
  int accepted = 0;
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const auto view = random_view<float, 3>(seed);
    INFO("seed " << seed);
    const bool injective = mhla::is_injective(view);
    ++(injective ? accepted : refused);
    if (injective) REQUIRE(touches_each_byte_once(view));
  }
  CHECK(accepted > 300);
  CHECK(refused > 300);
}

TEST_CASE("overlap: is_injective accepts every slice and refuses expanded axes", "[core]") {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    auto view = random_slice<4>(seed, 0);
    INFO("seed " << seed);
    REQUIRE(mhla::is_injective(view));
    view.stride[seed % 4] = 0;
    REQUIRE(mhla::is_injective(view) == (view.extent[seed % 4] == 1));
  }
  std::array<float, 8> few{};
  CHECK_FALSE(mhla::is_injective(TensorView<float, 2>{few.data(), {2, 2}, {1, 1}}));
  CHECK_FALSE(mhla::is_injective(TensorView<float, 2>{few.data() + 4, {2, 2}, {1, -1}}));
  CHECK_FALSE(mhla::is_injective(TensorView<float, 2>{few.data(), {2, 3}, {2, 1}}));
  CHECK(mhla::is_injective(TensorView<float, 2>{few.data(), {2, 2}, {2, 1}}));
  CHECK(mhla::is_injective(TensorView<float, 2>{few.data(), {0, 2}, {0, 0}}));
  CHECK(mhla::is_injective(TensorView<float, 2>{few.data(), {2, 0}, {0, 0}}));
}
