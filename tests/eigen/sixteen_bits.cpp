// SPDX-License-Identifier: MIT
// Tensors of Eigen::bfloat16 and Eigen::half: every way to write an expression gives the bits that
// the core gives on the same patterns. mix and dmix are of float.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mhla/attention.hpp>
#include <mhla/decoding.hpp>
#include <mhla/packed.hpp>
#include <vector>

#include "tests/eigen/tensors.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;
using namespace test;

using Attention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D>;
constexpr Attention attention{.blocks = {.block = 7}, .mixing = {.leading_corner = true}};
const std::vector<std::int32_t> offsets = {0, 5, 5, 12, 19};
const std::vector<std::uint8_t> mask = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0,  //
                                        1, 1, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1};

// The core's type for a scalar, written down once more.
template <class Scalar>
struct CoreType;
template <>
struct CoreType<Eigen::bfloat16> {
  using type = mhla::BFloat16;
};
template <>
struct CoreType<Eigen::half> {
  using type = mhla::Half;
};

using Bits = std::vector<std::uint16_t>;

template <class To, class From>
std::vector<To> copied_bits(const From* data, Index count) {
  static_assert(sizeof(To) == sizeof(From));
  std::vector<To> copy(static_cast<std::size_t>(count));
  if (count > 0) std::memcpy(copy.data(), data, copy.size() * sizeof(To));
  return copy;
}
template <class Tensor>
Bits bits(const Tensor& tensor) {
  return copied_bits<std::uint16_t>(tensor.data(), tensor.size());
}
template <class T>
Bits bits(const std::vector<T>& memory) {
  return copied_bits<std::uint16_t>(memory.data(), static_cast<Index>(memory.size()));
}

struct GradientBits {
  Bits dq, dk, dv;
  std::vector<float> dmix;
};

// The tensors of a call, and what the core makes of copies of them in its own types.
template <class Scalar, int Layout>
struct Call {
  using T = Scalar;
  using Core = typename CoreType<Scalar>::type;
  using Tensor4 = Eigen::Tensor<Scalar, 4, Layout>;
  using Tensor3 = Eigen::Tensor<float, 3, Layout>;
  using Map4 = Eigen::TensorMap<Tensor4>;
  static constexpr int layout = Layout;
  static constexpr Index heads = 4, kv_heads = 2, dim = 6, blocks = 3;

  Index batch = 2;
  Index tokens = 19;
  Tensor4 q = tensor<Scalar, Layout>(1, batch, heads, tokens, dim);
  Tensor4 k = tensor<Scalar, Layout>(2, batch, kv_heads, tokens, dim);
  Tensor4 v = tensor<Scalar, Layout>(3, batch, kv_heads, tokens, dim);
  Tensor3 mix =
      test::Tensors<float, Layout>::positive(tensor<float, Layout>(4, heads, blocks, blocks));
  Tensor4 dy = tensor<Scalar, Layout>(5, batch, heads, tokens, dim);
  Tensor4 x = tensor<Scalar, Layout>(6, batch, heads, tokens, dim);

  // A view of q, k, v or dy in the order of [batch, heads, tokens, dim], over any memory.
  template <class Element>
  mhla::TensorView<Element, 4> of_queries(Element* data) const {
    return make_view(data, batch, heads, tokens, dim);
  }
  template <class Element>
  mhla::TensorView<Element, 4> of_keys(Element* data) const {
    return make_view(data, batch, kv_heads, tokens, dim);
  }
  template <class Element>
  mhla::TensorView<Element, 3> of_mix(Element* data) const {
    return make_view(data, heads, blocks, blocks);
  }
  mhla::Shape shape() const {
    return shape_of(of_queries(q.data()), of_keys(k.data()), of_keys(v.data()), of_mix(mix.data()));
  }

  template <class V>
  Bits forward(const V& variant) const {
    const mhla::SerialExecutor serial;
    const auto q_memory = copied_bits<Core>(q.data(), q.size());
    const auto k_memory = copied_bits<Core>(k.data(), k.size());
    const auto v_memory = copied_bits<Core>(v.data(), v.size());
    auto y = copied_bits<Core>(x.data(), x.size());
    const mhla::Workspace workspace(mhla::forward_workspace_size<Core>(variant, shape(), serial));
    mhla::forward_into(variant, serial, of_queries(q_memory.data()), of_keys(k_memory.data()),
                       of_keys(v_memory.data()), of_mix(mix.data()), of_queries(y.data()),
                       workspace);
    return bits(y);
  }
  // The gradients on top of, or in place of, what is in q, k, v and mix.
  template <class V>
  GradientBits backward(const V& variant, Update update) const {
    const mhla::SerialExecutor serial;
    const auto q_memory = copied_bits<Core>(q.data(), q.size());
    const auto k_memory = copied_bits<Core>(k.data(), k.size());
    const auto v_memory = copied_bits<Core>(v.data(), v.size());
    const auto dy_memory = copied_bits<Core>(dy.data(), dy.size());
    auto dq = q_memory, dk = k_memory, dv = v_memory;
    auto dmix = memory_of(mix);
    const mhla::Workspace workspace(mhla::backward_workspace_size<Core>(variant, shape(), serial));
    mhla::backward_into(
        variant, serial, of_queries(q_memory.data()), of_keys(k_memory.data()),
        of_keys(v_memory.data()), of_mix(mix.data()), of_queries(dy_memory.data()),
        {of_queries(dq.data()), of_keys(dk.data()), of_keys(dv.data()), of_mix(dmix.data())},
        update, workspace);
    return {bits(dq), bits(dk), bits(dv), dmix};
  }
};

// Destinations that hold the operands.
template <class C>
struct Targets {
  typename C::Tensor4 dq, dk, dv;
  typename C::Tensor3 dmix;

  explicit Targets(const C& c) : dq(c.q), dk(c.k), dv(c.v), dmix(c.mix) {}
  void require(const GradientBits& expected) const {
    CHECK(bits(dq) == expected.dq);
    CHECK(bits(dk) == expected.dk);
    CHECK(bits(dv) == expected.dv);
    CHECK(memory_of(dmix) == expected.dmix);
  }
};

// The calls that every variant has to offer.
template <class C, class V>
void check_variant(const C& c, const V& variant) {
  using Tensor4 = typename C::Tensor4;
  using T = typename C::T;
  const Bits expected = c.forward(variant);
  const GradientBits overwritten = c.backward(variant, Update::overwrite);
  const GradientBits accumulated = c.backward(variant, Update::accumulate);
  REQUIRE(overwritten.dq != accumulated.dq);

  const Tensor4 attended = variant(c.q, c.k, c.v, c.mix);
  CHECK(bits(attended) == expected);
  const Tensor4 expected_sum = c.x + attended * T(0.5f);
  on_device_of<Eigen::RowMajor, C>([&](const auto& device) {
    const mhla::Workspace workspace(
        std::max(mhla::forward_workspace_size<T>(variant, c.shape(), mhla::executor_for(device)),
                 mhla::backward_workspace_size<T>(variant, c.shape(), mhla::executor_for(device))));
    Tensor4 y = c.x;
    y.device(device) = variant(c.q, c.k, c.v, c.mix).with(workspace);
    CHECK(bits(y) == expected);
    y.device(device) = c.x + variant(c.q, c.k, c.v, c.mix) * T(0.5f);
    CHECK(bits(y) == bits(expected_sum));

    Targets<C> g(c);
    mhla::gradients(g.dq, g.dk, g.dv, g.dmix).device(device) =
        variant.backward(c.q, c.k, c.v, c.mix, c.dy).with(workspace);
    g.require(overwritten);
    Targets<C> h(c);
    mhla::gradients(h.dq, h.dk, h.dv, h.dmix).device(device) +=
        variant.backward(c.q, c.k, c.v, c.mix, c.dy);
    h.require(accumulated);

    mhla::ForwardState<float> state;
    y.device(device) = variant(c.q, c.k, c.v, c.mix).save(state);
    CHECK(bits(y) == expected);
    Targets<C> from_state(c);
    mhla::gradients(from_state.dq, from_state.dk, from_state.dv, from_state.dmix).device(device) =
        variant.backward(c.q, c.k, c.v, c.mix, c.dy).saved(state);
    from_state.require(overwritten);
  });
}

using BFloat16RowMajor = Call<Eigen::bfloat16, Eigen::RowMajor>;
using HalfColMajor = Call<Eigen::half, Eigen::ColMajor>;

}  // namespace

TEMPLATE_TEST_CASE("16-bit expressions: the bits of the core, dense, packed and padded", "[eigen]",
                   BFloat16RowMajor, HalfColMajor) {
  SECTION("dense") { check_variant(TestType{}, attention); }
  SECTION("packed") {
    check_variant(TestType{.batch = 1, .tokens = 19}, mhla::packed(attention, offsets));
  }
  SECTION("padded") {
    check_variant(TestType{.batch = 2, .tokens = 12},
                  mhla::padded(attention, make_view(mask.data(), 2, 12)));
  }
}

TEMPLATE_TEST_CASE("16-bit expressions: gradients into maps, tokens first, views, operands",
                   "[eigen]", BFloat16RowMajor, HalfColMajor) {
  using C = TestType;
  using T = typename C::T;
  using Tensor4 = typename C::Tensor4;
  const C c;
  const GradientBits overwritten = c.backward(attention, Update::overwrite);
  const GradientBits accumulated = c.backward(attention, Update::accumulate);
  on_device_of<Eigen::RowMajor, C>([&](const auto& device) {
    Targets<C> g(c);
    Tensor4 dk = tokens_first(g.dk);
    const mhla::TensorView<T, 4> dv = c.of_keys(g.dv.data());
    mhla::gradients(typename C::Map4(g.dq.data(), g.dq.dimensions()), tokens_first(dk), dv, g.dmix)
        .device(device) += attention.backward(c.q, c.k, c.v, c.mix, c.dy);
    g.dk = tokens_first(dk);
    g.require(accumulated);

    Targets<C> skipped(c);
    const auto dv_core = mhla::storage_view(c.of_keys(skipped.dv.data()));
    mhla::gradients(skip, skip, dv_core, skip).device(device) =
        attention.backward(c.q, c.k, c.v, c.mix, c.dy * T(1.0f));
    skipped.require({bits(c.q), bits(c.k), overwritten.dv, memory_of(c.mix)});

    // Each over its operand.
    for (const Update update : {Update::overwrite, Update::accumulate}) {
      Targets<C> over(c);
      const auto backward = attention.backward(over.dq, over.dk, over.dv, over.dmix, c.dy);
      if (update == Update::overwrite) {
        mhla::gradients(over.dq, over.dk, over.dv, over.dmix).device(device) = backward;
        over.require(overwritten);
      } else {
        mhla::gradients(over.dq, over.dk, over.dv, over.dmix).device(device) += backward;
        over.require(accumulated);
      }
    }
  });
}
