// SPDX-License-Identifier: MIT
// Every way to write the forward expression gives the bits of the core.
#include <mhla/attention.hpp>
#include <type_traits>

#include "tests/eigen/tensors.hpp"
#include "tests/support/catch.hpp"

namespace {

using namespace test;

using FloatRowMajor = Tensors<float, Eigen::RowMajor>;
using DoubleColMajor = Tensors<double, Eigen::ColMajor>;
using LongDoubleRowMajor = Tensors<long double, Eigen::RowMajor>;

// Reads the offsets and extents of a slice in the order of a view's axes.
template <int Layout>
Eigen::array<Eigen::Index, 4> axes(Eigen::Index batch, Eigen::Index heads, Eigen::Index tokens,
                                   Eigen::Index dim) {
  if (Layout == int(Eigen::RowMajor)) return {{batch, heads, tokens, dim}};
  return {{dim, tokens, heads, batch}};
}

}  // namespace

TEMPLATE_TEST_CASE("forward expression: constructs, assigns and resizes", "[eigen]", FloatRowMajor,
                   DoubleColMajor, LongDoubleRowMajor) {
  const TestType t;
  const Memory<typename TestType::Scalar> expected = t.expected();

  const typename TestType::Tensor4 constructed = t.attention(t.q, t.k, t.v, t.mix);
  CHECK(memory_of(constructed) == expected);
  CHECK(constructed.dimensions() == t.x.dimensions());

  typename TestType::Tensor4 empty;
  empty = t.attention(t.q, t.k, t.v, t.mix);
  CHECK(memory_of(empty) == expected);
  CHECK(empty.dimensions() == t.x.dimensions());

  on_device_of<Eigen::RowMajor, TestType>([&](const auto& device) {
    typename TestType::Tensor4 y = t.output();
    y.device(device) = t.attention(t.q, t.k, t.v, t.mix);
    CHECK(memory_of(y) == expected);
  });
}

TEMPLATE_TEST_CASE("forward expression: is part of larger ones", "[eigen]", FloatRowMajor,
                   DoubleColMajor) {
  using Tensor4 = typename TestType::Tensor4;
  using Scalar = typename TestType::Scalar;
  const TestType t;
  const Tensor4 attended = t.attention(t.q, t.k, t.v, t.mix);
  const Scalar half = Scalar(0.5);

  on_device_of<Eigen::RowMajor, TestType>([&](const auto& device) {
    Tensor4 expected = t.output();
    Tensor4 y = t.output();

    expected.device(device) = t.x + attended * half;
    y.device(device) = t.x + t.attention(t.q, t.k, t.v, t.mix) * half;
    CHECK(memory_of(y) == memory_of(expected));

    y = t.output();
    expected = t.output();
    expected.device(device) += attended;
    y.device(device) += t.attention(t.q, t.k, t.v, t.mix);
    CHECK(memory_of(y) == memory_of(expected));

    y.device(device) -= t.attention(t.q, t.k, t.v, t.mix);
    expected.device(device) -= attended;
    CHECK(memory_of(y) == memory_of(expected));

    // Two of them, one with an operand that has to be evaluated.
    y.device(device) =
        t.attention(t.q, t.k, t.v, t.mix) - t.attention(t.q * half, t.k, t.v, t.mix).abs();
    const Tensor4 query = t.q * half;
    const Tensor4 other = t.attention(query, t.k, t.v, t.mix);
    expected.device(device) = attended - other.abs();
    CHECK(memory_of(y) == memory_of(expected));

    // Eigen hands its own destination down through a reshape and a forced evaluation.
    y = t.output();
    y.device(device) = t.attention(t.q, t.k, t.v, t.mix).reshape(y.dimensions());
    CHECK(memory_of(y) == memory_of(attended));
    y = t.output();
    y.device(device) = t.attention(t.q, t.k, t.v, t.mix).eval();
    CHECK(memory_of(y) == memory_of(attended));

    // A broadcast is evaluated by blocks.
    Eigen::array<Eigen::Index, 4> twice = {{1, 1, 1, 1}};
    twice[1] = 2;
    Tensor4 wide = t.attention(t.q, t.k, t.v, t.mix).broadcast(twice);
    const Tensor4 expected_wide = attended.broadcast(twice);
    CHECK(memory_of(wide) == memory_of(expected_wide));
  });

  const Eigen::Tensor<Scalar, 0, TestType::layout> sum = t.attention(t.q, t.k, t.v, t.mix).sum();
  const Eigen::Tensor<Scalar, 0, TestType::layout> expected_sum = attended.sum();
  CHECK(sum() == expected_sum());

  const Eigen::TensorRef<const Tensor4> reference = t.attention(t.q, t.k, t.v, t.mix);
  CHECK(reference(1, 2, 0, 1) == attended(1, 2, 0, 1));
}

TEMPLATE_TEST_CASE("forward expression: takes lazy operands, each of the four", "[eigen]",
                   FloatRowMajor, DoubleColMajor) {
  using Tensor4 = typename TestType::Tensor4;
  using Scalar = typename TestType::Scalar;
  const TestType t;
  const Memory<Scalar> expected = t.expected();
  const Tensor4 half_q = t.q * Scalar(0.5);  // exact, so that doubling it gives q again
  const Tensor4 half_k = t.k * Scalar(0.5);
  const Tensor4 half_v = t.v * Scalar(0.5);
  const typename TestType::Tensor3 half_mix = t.mix * Scalar(0.5);

  on_device_of<Eigen::RowMajor, TestType>([&](const auto& device) {
    Tensor4 y = t.output();
    y.device(device) = t.attention(half_q + half_q, t.k, t.v, t.mix);
    CHECK(memory_of(y) == expected);
    y.setZero();
    y.device(device) = t.attention(t.q, half_k * Scalar(2), t.v, t.mix);
    CHECK(memory_of(y) == expected);
    y.setZero();
    y.device(device) = t.attention(t.q, t.k, half_v + half_v, t.mix);
    CHECK(memory_of(y) == expected);
    y.setZero();
    y.device(device) = t.attention(t.q, t.k, t.v, half_mix + half_mix);
    CHECK(memory_of(y) == expected);
    y.setZero();
    y.device(device) = t.attention((half_q + half_q).eval(), half_k + half_k, half_v + half_v,
                                   half_mix + half_mix);
    CHECK(memory_of(y) == expected);
  });

  SECTION("an operand that is a slice") {
    // The first tokens of a longer cache.
    const Tensor4 cache = test::tensor<Scalar, TestType::layout>(8, 2, 3, 30, 9);
    const Tensor4 first =
        cache.slice(axes<TestType::layout>(0, 0, 0, 0), axes<TestType::layout>(2, 3, 22, 9));
    const Tensor4 expected_y = t.attention(t.q, t.k, first, t.mix);
    const Tensor4 y = t.attention(
        t.q, t.k,
        cache.slice(axes<TestType::layout>(0, 0, 0, 0), axes<TestType::layout>(2, 3, 22, 9)),
        t.mix);
    CHECK(memory_of(y) == memory_of(expected_y));
  }

  SECTION("an operand that is an attention") {
    // Two layers: the first attends with dim 9, so the second's keys have that dim as well.
    const Tensor4 k2 = test::tensor<Scalar, TestType::layout>(9, 2, 3, 22, 9);
    const Tensor4 inner = t.attention(t.q, t.k, t.v, t.mix);
    const Tensor4 outer = t.attention(inner, k2, t.v, t.mix);
    on_device_of<Eigen::RowMajor, TestType>([&](const auto& device) {
      Tensor4 y = t.output();
      y.device(device) = t.attention(t.attention(t.q, t.k, t.v, t.mix), k2, t.v, t.mix);
      CHECK(memory_of(y) == memory_of(outer));
    });
  }
}

TEMPLATE_TEST_CASE("forward expression: takes maps, fixed sizes, views and chips", "[eigen]",
                   FloatRowMajor, DoubleColMajor) {
  using Tensor4 = typename TestType::Tensor4;
  using Scalar = typename TestType::Scalar;
  constexpr int layout = TestType::layout;
  const TestType t;
  const Memory<Scalar> expected = t.expected();
  const Eigen::TensorMap<const Tensor4> q(t.q.data(), t.q.dimensions());
  const Eigen::TensorMap<Eigen::Tensor<const Scalar, 4, layout>> k(t.k.data(), t.k.dimensions());
  Tensor4 values = t.v;
  const Eigen::TensorMap<Tensor4> v(values.data(), values.dimensions());

  on_device_of<Eigen::RowMajor, TestType>([&](const auto& device) {
    Memory<Scalar> y(expected.size());
    Eigen::TensorMap<Tensor4> map(y.data(), t.x.dimensions());
    map.device(device) = t.attention(q, k, v, t.mix);
    CHECK(y == expected);
  });

  SECTION("fixed sizes") {
    using Sizes = std::conditional_t<layout == int(Eigen::RowMajor), Eigen::Sizes<2, 6, 20, 9>,
                                     Eigen::Sizes<9, 20, 6, 2>>;
    using Keys = std::conditional_t<layout == int(Eigen::RowMajor), Eigen::Sizes<2, 3, 22, 8>,
                                    Eigen::Sizes<8, 22, 3, 2>>;
    Eigen::TensorFixedSize<Scalar, Keys, layout> keys;
    keys = t.k;
    Eigen::TensorFixedSize<Scalar, Sizes, layout> y;
    y = t.attention(t.q, keys, t.v, t.mix);
    CHECK(memory_of(y) == expected);
  }

  SECTION("views, among tensors and alone") {
    Tensor4 y = t.attention(t.query_view(), t.k, t.value_view(), t.mix_view());
    CHECK(memory_of(y) == expected);
    const Eigen::Tensor<Scalar, 4, Eigen::RowMajor> row_major =
        t.attention(t.query_view(), t.key_view(), t.value_view(), t.mix_view());
    CHECK(memory_of(row_major) == expected);
    CHECK(row_major.dimension(3) == 9);
  }

  SECTION("a chip and a reshape, read and written where they lie") {
    using Tensor5 = Eigen::Tensor<Scalar, 5, layout>;
    constexpr Eigen::Index outer = layout == int(Eigen::RowMajor) ? 0 : 4;
    Tensor5 queries = test::tensor<Scalar, layout>(11, 2, 2, 6, 20, 8);
    queries.chip(1, outer) = t.q;
    Tensor5 ys = test::tensor<Scalar, layout>(12, 2, 2, 6, 20, 9);
    const Tensor5 before = ys;
    ys.chip(1, outer) =
        t.attention(queries.chip(1, outer), t.k.reshape(t.k.dimensions()), t.v, t.mix);
    const Tensor4 first = ys.chip(0, outer);
    const Tensor4 second = ys.chip(1, outer);
    const Tensor4 first_before = before.chip(0, outer);
    CHECK(memory_of(first) == memory_of(first_before));
    CHECK(memory_of(second) == expected);
  }
}

TEMPLATE_TEST_CASE("forward expression: writes slices, reshapes and the other layout", "[eigen]",
                   FloatRowMajor, DoubleColMajor) {
  using Tensor4 = typename TestType::Tensor4;
  constexpr int layout = TestType::layout;
  const TestType t;
  const auto expected = t.expected();

  on_device_of<Eigen::RowMajor, TestType>([&](const auto& device) {
    // Tokens 3 to 22 of a longer tensor: not contiguous.
    Tensor4 longer = test::tensor<typename TestType::Scalar, layout>(13, 2, 6, 30, 9);
    const Tensor4 before = longer;
    const auto offsets = axes<layout>(0, 0, 3, 0);
    longer.slice(offsets, t.x.dimensions()).device(device) = t.attention(t.q, t.k, t.v, t.mix);
    const Tensor4 slice = longer.slice(offsets, t.x.dimensions());
    CHECK(memory_of(slice) == expected);
    longer.slice(offsets, t.x.dimensions()) = before.slice(offsets, t.x.dimensions());
    CHECK(memory_of(longer) == memory_of(before));

    Eigen::Tensor<typename TestType::Scalar, 1, layout> flat(t.x.size());
    flat.reshape(t.x.dimensions()).device(device) = t.attention(t.q, t.k, t.v, t.mix);
    CHECK(memory_of(flat) == expected);

    constexpr int other = layout == int(Eigen::RowMajor) ? Eigen::ColMajor : Eigen::RowMajor;
    Eigen::Tensor<typename TestType::Scalar, 4, other> swapped =
        t.x.swap_layout();  // the same memory, axes reversed
    swapped.swap_layout().device(device) = t.attention(t.q, t.k, t.v, t.mix);
    CHECK(memory_of(swapped) == expected);
  });

  const Eigen::Tensor<typename TestType::Scalar, 4, layout> y =
      t.attention(t.q.swap_layout().swap_layout(), t.k, t.v, t.mix);
  CHECK(memory_of(y) == expected);
}

TEMPLATE_TEST_CASE("forward expression: a mix of rank 2 is one matrix for all heads", "[eigen]",
                   FloatRowMajor, DoubleColMajor) {
  using Scalar = typename TestType::Scalar;
  TestType t;
  const auto one = TestType::positive(test::tensor<Scalar, TestType::layout>(14, 1, 3, 5));
  for (Eigen::Index head = 0; head < 6; ++head)
    std::copy(one.data(), one.data() + 15, t.mix.data() + 15 * head);
  const typename TestType::Tensor4 per_head = t.attention(t.q, t.k, t.v, t.mix);
  const typename TestType::Tensor4 shared = t.attention(t.q, t.k, t.v, one);
  typename TestType::Tensor2 matrix = test::tensor<Scalar, TestType::layout>(0, 3, 5);
  std::copy(one.data(), one.data() + 15, matrix.data());
  const typename TestType::Tensor4 rank_2 = t.attention(t.q, t.k, t.v, matrix);
  CHECK(memory_of(shared) == memory_of(per_head));
  CHECK(memory_of(rank_2) == memory_of(per_head));
}

TEMPLATE_TEST_CASE("forward expression: a result over an operand goes through a temporary",
                   "[eigen]", FloatRowMajor, DoubleColMajor) {
  // Self-attention, all of q, k, v and y of one shape.
  using Tensor4 = typename TestType::Tensor4;
  using Scalar = typename TestType::Scalar;
  constexpr int layout = TestType::layout;
  const mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D> attention{.blocks = {.block = 5}};
  const Tensor4 q = test::tensor<Scalar, layout>(1, 2, 4, 10, 6);
  const Tensor4 k = test::tensor<Scalar, layout>(2, 2, 4, 10, 6);
  const Tensor4 v = test::tensor<Scalar, layout>(3, 2, 4, 10, 6);
  const auto mix = TestType::positive(test::tensor<Scalar, layout>(4, 4, 2, 2));
  const auto expected = memory_of(Tensor4(attention(q, k, v, mix)));

  on_device_of<Eigen::RowMajor, TestType>([&](const auto& device) {
    Tensor4 y = q;
    y.device(device) = attention(y, k, v, mix);
    CHECK(memory_of(y) == expected);
    y = k;
    y.device(device) = attention(q, y, v, mix);
    CHECK(memory_of(y) == expected);
    y = v;
    y.device(device) = attention(q, k, y, mix);
    CHECK(memory_of(y) == expected);
    y = v;
    y.device(device) = attention(q, k, y, mix).reshape(y.dimensions());
    CHECK(memory_of(y) == expected);
    y = v;
    y.device(device) = attention(q, k, y * Scalar(1), mix) + y * Scalar(0);
    CHECK(memory_of(y) == expected);

    // Half of y over half of v.
    Memory<Scalar> both(static_cast<std::size_t>(v.size() + v.size() / 2));
    std::copy(v.data(), v.data() + v.size(), both.data());
    const Eigen::TensorMap<const Tensor4> values(both.data(), v.dimensions());
    Eigen::TensorMap<Tensor4> overlapping(both.data() + v.size() / 2, v.dimensions());
    overlapping.device(device) = attention(q, k, values, mix);
    CHECK(memory_of(overlapping) == expected);

    // mix, inside y.
    Tensor4 around = q;
    std::copy(mix.data(), mix.data() + mix.size(), around.data() + 40);
    const Eigen::TensorMap<const typename TestType::Tensor3> inside(around.data() + 40,
                                                                    mix.dimensions());
    around.device(device) = attention(q, k, v, inside);
    CHECK(memory_of(around) == expected);

    // The tensor with its tokens first, from itself.
    Tensor4 tokens = mhla::tokens_first(v);
    mhla::tokens_first(tokens).device(device) = attention(q, k, mhla::tokens_first(tokens), mix);
    const Tensor4 heads = mhla::tokens_first(tokens);
    CHECK(memory_of(heads) == expected);
  });
}

TEMPLATE_TEST_CASE("forward expression: a tensor that gets another shape may be an operand",
                   "[eigen]", FloatRowMajor, DoubleColMajor) {
  using Tensor4 = typename TestType::Tensor4;
  using Scalar = typename TestType::Scalar;
  const TestType t;
  const Memory<Scalar> expected = t.expected();
  const Tensor4 sum = t.x + t.attention(t.q, t.k, t.v, t.mix);
  const auto check = [&](const Tensor4& y, const Memory<Scalar>& values) {
    CHECK(y.dimensions() == t.x.dimensions());
    CHECK(memory_of(y) == values);
  };

  Tensor4 y = t.v;
  y = t.attention(t.q, t.k, y, t.mix);
  check(y, expected);
  y = t.q;
  y = t.attention(y, t.k, t.v, t.mix);
  check(y, expected);
  y = t.v * Scalar(0.5);  // a lazy operand reads the tensor, too
  y = t.attention(t.q, t.k, y + y, t.mix);
  check(y, expected);
  y = t.v;  // and so does a view of it
  y = t.attention(t.q, t.k, mhla::make_view(y.data(), 2, 3, 22, 9), t.mix);
  check(y, expected);
  y = t.v;
  y = t.x + t.attention(t.q, t.k, y, t.mix);
  check(y, memory_of(sum));
  y = t.v;
  y = (t.attention(t.q, t.k, y, t.mix) + t.x) * Scalar(1);
  check(y, memory_of(sum));
  y = t.x;  // the shape that it has already
  y = y + t.attention(t.q, t.k, t.v, t.mix);
  check(y, memory_of(sum));
  y = t.output();
  y += t.attention(t.q, t.k, t.v, t.mix);
  const Tensor4 added = t.output() + Tensor4(t.attention(t.q, t.k, t.v, t.mix));
  check(y, memory_of(added));
}

TEMPLATE_TEST_CASE("forward expression: tokens_first on every operand and the destination",
                   "[eigen]", FloatRowMajor, DoubleColMajor) {
  using Tensor4 = typename TestType::Tensor4;
  using Scalar = typename TestType::Scalar;
  constexpr int layout = TestType::layout;
  using mhla::tokens_first;
  const TestType t;
  const auto expected = t.expected();
  const Tensor4 q = tokens_first(t.q);  // Eigen's shuffle: [batch, tokens, heads, dim]
  const Tensor4 k = tokens_first(t.k);
  const Tensor4 v = tokens_first(t.v);
  const auto at_tokens = axes<layout>(0, 0, 1, 0);
  const auto at_heads = axes<layout>(0, 1, 0, 0);
  REQUIRE(q(at_tokens) == t.q(at_heads));

  on_device_of<Eigen::RowMajor, TestType>([&](const auto& device) {
    Tensor4 y = t.output();
    y.device(device) = t.attention(tokens_first(q), tokens_first(k), tokens_first(v), t.mix);
    CHECK(memory_of(y) == expected);

    Tensor4 z = tokens_first(t.output());
    tokens_first(z).device(device) = t.attention(tokens_first(q), t.k, tokens_first(v), t.mix);
    y = tokens_first(z);
    CHECK(memory_of(y) == expected);

    z.setZero();
    Eigen::TensorMap<Tensor4> map(z.data(), z.dimensions());
    tokens_first(map).device(device) = t.attention(tokens_first(q * Scalar(1)), t.k, t.v, t.mix);
    y = tokens_first(z);
    CHECK(memory_of(y) == expected);

    // Part of a larger expression, on either side.
    z.device(device) = tokens_first(t.attention(tokens_first(q), t.k, t.v, t.mix)) * Scalar(1);
    y = tokens_first(z);
    CHECK(memory_of(y) == expected);
    z.setZero();
    tokens_first(z).device(device) = t.attention(tokens_first(q), t.k, t.v, t.mix) * Scalar(1);
    y = tokens_first(z);
    CHECK(memory_of(y) == expected);
  });
  Tensor4 z = tokens_first(t.output());
  tokens_first(z) = t.attention(t.q, t.k, t.v, t.mix);
  const Tensor4 y = tokens_first(z);
  CHECK(memory_of(y) == expected);
}

TEST_CASE("forward expression: calls back when assigned asynchronously", "[eigen]") {
  const FloatRowMajor t;
  Eigen::ThreadPool pool(3);
  const Eigen::ThreadPoolDevice device(&pool, 3);
  FloatRowMajor::Tensor4 y = t.output();
  Eigen::Barrier barrier(1);
  y.device(device, [&barrier] { barrier.Notify(); }) = t.attention(t.q, t.k, t.v, t.mix);
  barrier.Wait();
  CHECK(memory_of(y) == t.expected());

  const FloatRowMajor::Tensor4 attended = t.attention(t.q, t.k, t.v, t.mix);
  FloatRowMajor::Tensor4 expected = t.x + attended * 0.5f;
  Eigen::Barrier second(1);
  y.device(device, [&second] { second.Notify(); }) = t.x + t.attention(t.q, t.k, t.v, t.mix) * 0.5f;
  second.Wait();
  CHECK(memory_of(y) == memory_of(expected));
}
