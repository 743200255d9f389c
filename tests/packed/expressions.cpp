// SPDX-License-Identifier: MIT
// Packed and padded batches as Eigen expressions: the bits of the core on every device, alone and
// as part of larger expressions.
#include <cstddef>
#include <cstdint>
#include <mhla/packed.hpp>
#include <vector>

#include "tests/eigen/tensors.hpp"
#include "tests/packed/units.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;
using namespace test;

using Attention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Causal>;
constexpr Attention attention{.blocks = {.block = 4}};
const std::vector<std::int32_t> offsets = {0, 5, 5, 12, 19};
const std::vector<std::uint8_t> mask = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0,  //
                                        1, 1, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1};

constexpr Index heads = 4, kv_heads = 2, key_dim = 4, value_dim = 3;

// The tensors of a call [batch, tokens], and what the core makes of them.
template <int Layout>
struct Call {
  using Tensor4 = Eigen::Tensor<double, 4, Layout>;
  using Tensor3 = Eigen::Tensor<double, 3, Layout>;

  Index batch, tokens;
  Tensor4 q = tensor<double, Layout>(1, batch, heads, tokens, key_dim);
  Tensor4 k = tensor<double, Layout>(2, batch, kv_heads, tokens, key_dim);
  Tensor4 v = tensor<double, Layout>(3, batch, kv_heads, tokens, value_dim);
  Tensor3 mix = test::Tensors<double, Layout>::positive(tensor<double, Layout>(4, heads, 5, 5));
  Tensor4 dy = tensor<double, Layout>(5, batch, heads, tokens, value_dim);
  Tensor4 x = tensor<double, Layout>(6, batch, heads, tokens, value_dim);

  auto q_view() const { return make_view(q.data(), batch, heads, tokens, key_dim); }
  auto k_view() const { return make_view(k.data(), batch, kv_heads, tokens, key_dim); }
  auto v_view() const { return make_view(v.data(), batch, kv_heads, tokens, value_dim); }
  auto mix_view() const { return make_view(mix.data(), heads, 5, 5); }
  auto dy_view() const { return make_view(dy.data(), batch, heads, tokens, value_dim); }

  template <class V>
  test::Memory<double> forward(const V& variant) const {
    const mhla::SerialExecutor serial;
    test::Memory<double> y(static_cast<std::size_t>(dy.size()));
    const mhla::Workspace workspace(mhla::forward_workspace_size<double>(
        variant, shape_of(q_view(), k_view(), v_view(), mix_view()), serial));
    mhla::forward_into(variant, serial, q_view(), k_view(), v_view(), mix_view(),
                       make_view(y.data(), batch, heads, tokens, value_dim), workspace);
    return y;
  }
  template <class V>
  test::Gradients<double> backward(const V& variant, Update update) const {
    const mhla::SerialExecutor serial;
    test::Gradients<double> g{memory_of(q), memory_of(k), memory_of(v), memory_of(mix)};
    const mhla::Workspace workspace(mhla::backward_workspace_size<double>(
        variant, shape_of(q_view(), k_view(), v_view(), mix_view()), serial));
    mhla::backward_into(variant, serial, q_view(), k_view(), v_view(), mix_view(), dy_view(),
                        {make_view(g.dq.data(), batch, heads, tokens, key_dim),
                         make_view(g.dk.data(), batch, kv_heads, tokens, key_dim),
                         make_view(g.dv.data(), batch, kv_heads, tokens, value_dim),
                         make_view(g.dmix.data(), heads, 5, 5)},
                        update, workspace);
    return g;
  }
};

template <class C, class V>
void check_expressions(const C& c, const V& variant) {
  using Tensor4 = typename C::Tensor4;
  const auto expected = c.forward(variant);
  {
    const Tensor4 y = variant(c.q, c.k, c.v, c.mix);
    CHECK(memory_of(y) == expected);
    mhla::Workspace workspace(mhla::forward_workspace_size<double>(
        variant, shape_of(c.q_view(), c.k_view(), c.v_view(), c.mix_view()),
        mhla::SerialExecutor{}));
    Tensor4 z = c.x;
    z = variant(c.q, c.k, c.v, c.mix).with(workspace);
    CHECK(memory_of(z) == expected);
  }
  on_every_device([&](const auto& device) {
    Tensor4 y = c.x;
    y.device(device) = variant(c.q, c.k, c.v, c.mix);
    CHECK(memory_of(y) == expected);

    Tensor4 sum = c.x, from_tensor = c.x;
    sum.device(device) = c.x + variant(c.q, c.k, c.v, c.mix) * 0.5;
    from_tensor = c.x + y * 0.5;
    CHECK(memory_of(sum) == memory_of(from_tensor));

    // A lazy operand.
    const Tensor4 doubled = c.v * 2.0;
    Tensor4 of_doubled = c.x, of_lazy = c.x;
    of_doubled.device(device) = variant(c.q, c.k, doubled, c.mix);
    of_lazy.device(device) = variant(c.q, c.k, c.v * 2.0, c.mix);
    CHECK(memory_of(of_lazy) == memory_of(of_doubled));

    for (const Update update : {Update::overwrite, Update::accumulate}) {
      const auto gradients = c.backward(variant, update);
      Tensor4 dq = c.q, dk = c.k, dv = c.v;
      typename C::Tensor3 dmix = c.mix;
      const auto require = [&] {
        CHECK(memory_of(dq) == gradients.dq);
        CHECK(memory_of(dk) == gradients.dk);
        CHECK(memory_of(dv) == gradients.dv);
        CHECK(memory_of(dmix) == gradients.dmix);
      };
      const auto backward = variant.backward(c.q, c.k, c.v, c.mix, c.dy);
      if (update == Update::overwrite) {
        mhla::gradients(dq, dk, dv, dmix).device(device) = backward;
        require();
        mhla::ForwardState<double> state;
        y.device(device) = variant(c.q, c.k, c.v, c.mix).save(state);
        mhla::gradients(dq, mhla::skip, dv, dmix).device(device) = backward.saved(state);
      } else {
        mhla::gradients(dq, dk, dv, dmix).device(device) += backward;
      }
      require();
    }
  });
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("packed expression: the bits of the core", "[packed][eigen]",
                       ((int Layout), Layout), Eigen::RowMajor, Eigen::ColMajor) {
  const Call<Layout> call{.batch = 1, .tokens = 19};
  check_expressions(call, mhla::packed(attention, offsets));
  REQUIRE(call.forward(mhla::packed(attention, offsets)) != call.forward(attention));
}

TEMPLATE_TEST_CASE_SIG("padded expression: the bits of the core", "[packed][eigen]",
                       ((int Layout), Layout), Eigen::RowMajor, Eigen::ColMajor) {
  const Call<Layout> call{.batch = 2, .tokens = 12};
  const auto masked = mhla::padded(attention, make_view(mask.data(), 2, 12));
  check_expressions(call, masked);
  REQUIRE(call.forward(masked) != call.forward(attention));
}

TEST_CASE("packed and padded expressions throw before anything is written", "[packed][eigen]") {
  const Call<Eigen::RowMajor> call{.batch = 1, .tokens = 19};
  const std::vector<std::int64_t> wrong = {0, 5, 18};
  auto y = call.x;
  const auto refused = [&](const auto& variant, const char* part) {
    const std::string message = error_message<mhla::ShapeError>(
        [&] { y.device(Eigen::DefaultDevice()) = variant(call.q, call.k, call.v, call.mix); });
    INFO(message);
    CHECK(says(message, "mhla: ", part));
    auto dq = call.q;
    CHECK_THROWS_AS(mhla::gradients(dq, mhla::skip, mhla::skip, mhla::skip) =
                        variant.backward(call.q, call.k, call.v, call.mix, call.dy),
                    mhla::ShapeError);
    CHECK(memory_of(dq) == memory_of(call.q));
  };
  refused(mhla::packed(attention, wrong), "offsets[2] is 18 but must be 19");
  refused(mhla::padded(attention, make_view(mask.data(), 2, 12)), "masks.query: axis batch is 2");
  CHECK(memory_of(y) == memory_of(call.x));
  y = mhla::packed(attention, offsets)(call.q, call.k, call.v, call.mix);
  CHECK(memory_of(y) == call.forward(mhla::packed(attention, offsets)));
}
