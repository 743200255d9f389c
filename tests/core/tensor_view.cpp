// SPDX-License-Identifier: MIT
#include <array>
#include <mhla/core/error.hpp>
#include <mhla/core/tensor_view.hpp>
#include <numeric>
#include <type_traits>

#include "tests/support/catch.hpp"

using namespace mhla;

static_assert(std::is_trivially_copyable_v<TensorView<float, 4>>, "views travel to kernels");
static_assert(std::is_aggregate_v<TensorView<float, 4>>);
static_assert(std::is_trivially_copyable_v<Span<float>>);
static_assert(std::is_convertible_v<TensorView<float, 4>, TensorView<const float, 4>>);
static_assert(!std::is_convertible_v<TensorView<const float, 4>, TensorView<float, 4>>);
static_assert(!std::is_convertible_v<TensorView<float, 4>, TensorView<double, 4>>);
static_assert(!std::is_convertible_v<TensorView<float, 4>, TensorView<const double, 4>>);
static_assert(!std::is_convertible_v<TensorView<float, 3>, TensorView<float, 4>>);
static_assert(std::is_convertible_v<TensorView<float, 2>, TensorView<const float, 3>>);
static_assert(!std::is_convertible_v<TensorView<const float, 2>, TensorView<float, 3>>);
static_assert(!std::is_convertible_v<TensorView<float, 3>, TensorView<float, 2>>);
static_assert(std::is_convertible_v<Span<float>, Span<const float>>);
static_assert(!std::is_convertible_v<Span<const float>, Span<float>>);

TEST_CASE("tensor_view: make_view is row-major", "[core]") {
  std::array<int, 2 * 3 * 5 * 7> memory{};
  std::iota(memory.begin(), memory.end(), 0);
  const auto view = mhla::make_view(memory.data(), 2, 3, 5, 7);
  CHECK(view.size() == 210);
  for (int a = 0; a < 2; ++a)
    for (int b = 0; b < 3; ++b)
      for (int c = 0; c < 5; ++c)
        for (int d = 0; d < 7; ++d) CHECK(view(a, b, c, d) == ((a * 3 + b) * 5 + c) * 7 + d);
  const TensorView<const int, 4> read_only = view;
  CHECK(&read_only(1, 2, 4, 6) == &view(1, 2, 4, 6));
}

TEST_CASE("tensor_view: qkv_views and heads_view find each element of a buffer", "[core]") {
  constexpr Index batch = 2, tokens = 3, heads = 5, dim = 7, width = heads * dim;
  std::array<int, std::size_t{batch * tokens * 3 * width}> memory{};
  std::iota(memory.begin(), memory.end(), 0);
  int* const data = memory.data();
  const auto one = mhla::heads_view(data, tokens, heads, dim);
  static_assert(std::is_same_v<decltype(one), const TensorView<int, 4>>);
  CHECK(one.extent[0] == 1);
  const auto rows = mhla::qkv_views(data, tokens, heads, dim, batch);
  const auto parts = mhla::qkv_views(data, tokens, heads, dim, batch, QkvOrder::parts_first);
  const auto by_head = mhla::qkv_views(data, tokens, heads, dim, batch, QkvOrder::heads_first);
  for (Index part = 0; part < 3; ++part) {
    const auto of = [part](const QkvViews<int>& views) {
      return part == 0 ? views.q : part == 1 ? views.k : views.v;
    };
    const auto key = mhla::heads_view(data + part * width, tokens, heads, dim, 3 * width, batch);
    for (const TensorView<int, 4>& view : {of(rows), of(parts), of(by_head), key})
      CHECK((view.extent[0] == batch && view.extent[1] == heads && view.extent[2] == tokens &&
             view.extent[3] == dim));
    for (Index n = 0; n < batch; ++n)
      for (Index h = 0; h < heads; ++h)
        for (Index t = 0; t < tokens; ++t)
          for (Index c = 0; c < dim; ++c) {
            const Index row = (n * tokens + t) * 3 * width;
            CHECK(of(rows)(n, h, t, c) == row + part * width + h * dim + c);
            CHECK(key(n, h, t, c) == row + part * width + h * dim + c);
            CHECK(of(by_head)(n, h, t, c) == row + (h * 3 + part) * dim + c);
            CHECK(of(parts)(n, h, t, c) ==
                  (((part * batch + n) * heads + h) * tokens + t) * dim + c);
            if (part == 0 && n == 0) CHECK(one(0, h, t, c) == t * width + h * dim + c);
          }
  }
}

TEST_CASE("tensor_view: slice takes indices of one axis, and refuses others", "[core]") {
  std::array<int, 2 * 3 * 5 * 7> memory{};
  const auto view = mhla::make_view(memory.data(), 2, 3, 5, 7);
  const auto heads = mhla::slice(view, 1, 1, 2);
  CHECK(heads.extent[1] == 2);
  CHECK(&heads(1, 0, 2, 3) == &view(1, 1, 2, 3));
  CHECK(&mhla::slice(view, 2, 4, 1)(0, 2, 0, 6) == &view(0, 2, 4, 6));
  CHECK(mhla::slice(view, 1, 3, 0).size() == 0);
  CHECK_THROWS_WITH(mhla::slice(view, 1, 2, 2),
                    "mhla: slice: [2, 2 + 2) of axis 1 exceeds its extent, 3");
  CHECK_THROWS_AS(mhla::slice(view, 1, -1, 2), mhla::ShapeError);
  CHECK_THROWS_AS(mhla::slice(view, 4, 0, 1), mhla::ShapeError);
}

TEST_CASE("tensor_view: offsets and sizes beyond 2^31 elements", "[core]") {
  const auto view = mhla::make_view(static_cast<char*>(nullptr), 4, 1 << 20, 1 << 20, 3);
  CHECK(view.size() == Index{12} << 40);
  CHECK(view.stride[0] == Index{3} << 40);
  CHECK(view.stride[1] == Index{3} << 20);
  CHECK(view.stride[2] == 3);
}

TEST_CASE("tensor_view: tokens_first reads [batch, tokens, heads, dim] without a copy", "[core]") {
  std::array<int, 2 * 5 * 3 * 7> memory{};
  const auto stored = mhla::make_view(memory.data(), 2, 5, 3, 7);
  const auto view = mhla::tokens_first(stored);
  CHECK(view.extent[1] == 3);
  CHECK(view.extent[2] == 5);
  for (int b = 0; b < 2; ++b)
    for (int t = 0; t < 5; ++t)
      for (int h = 0; h < 3; ++h)
        for (int c = 0; c < 7; ++c) CHECK(&view(b, h, t, c) == &stored(b, t, h, c));
}

TEST_CASE("tensor_view: negative and zero strides", "[core]") {
  std::array<int, 6> memory{0, 1, 2, 3, 4, 5};
  const TensorView<int, 1> reversed{memory.data() + 5, {6}, {-1}};
  for (int i = 0; i < 6; ++i) CHECK(reversed(i) == 5 - i);
  const TensorView<int, 2> expanded{memory.data(), {4, 6}, {0, 1}};
  CHECK(&expanded(3, 2) == &expanded(0, 2));
  CHECK(expanded.size() == 24);
}

TEST_CASE("tensor_view: a span iterates over its elements", "[core]") {
  std::array<int, 4> memory{1, 2, 3, 4};
  const Span<int> span{memory.data(), 4};
  int sum = 0;
  for (int& element : span) sum += element;
  CHECK(sum == 10);
  CHECK(span[3] == 4);
  CHECK(Span<int>{}.begin() == Span<int>{}.end());
}
