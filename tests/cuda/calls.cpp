// SPDX-License-Identifier: MIT
// What the laws do not see of the CUDA backend's calls: same bits in whatever order a kernel's
// threads run, whatever else is asked for, and about the same results where the batch is cut into
// parts.
#include <algorithm>
#include <cstdint>
#include <mhla/packed.hpp>
#include <string>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cuda/call_memory.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace call;
using call::Gradients;
using call_memory::Affordable;
using call_memory::check_exact;
using namespace mhla;

const Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary> causal{
    .blocks = {.block = 5}, .normalizer = {.epsilon = 3}, .scale = 0.5};
const Attention<Relu, Blocks1D, Bidirectional, MixedProduct> with_products{
    .blocks = {.block = 4}, .normalizer = {.epsilon = 3}};
const Attention<Softmax, Blocks2D, Bidirectional, MixedKeySum> image{
    .blocks = {.grid = {4, 6}, .block = {2, 4}}, .normalizer = {.epsilon = 3}};

/// Calls f(name, attention, operands) with a shared matrix and with one per head.
template <class F>
void for_each_call(F&& f) {
  for (const Index mix_heads : {1, 6}) {
    const Shape shape{5, 6, 2, 24, 24, 6, 5, mix_heads};
    f("causal", causal, operands<double>(causal, shape));
    f("products", with_products, operands<double>(with_products, shape));
    f("image", image, operands<double>(image, shape));
  }
}

template <class T, int Rank>
void check_update(const call::HostTensor<T, Rank>& after, const call::HostTensor<T, Rank>& before,
                  const call::HostTensor<T, Rank>& gradient, bool wanted, Update update) {
  call::HostTensor<T, Rank> expected = before;
  if (wanted)
    mhla::testing::for_each_element(
        [&](T& to, const T& from) { to = update == Update::overwrite ? from : to + from; },
        expected.view(), gradient.view());
  CHECK(bitwise_equal(after.view(), expected.view()));
}

}  // namespace

TEST_CASE("cuda: every subset of the gradients, replaced and added to", "[cuda]") {
  for_each_call([](const std::string& name, const auto& attention, const Operands<double>& x) {
    const Gradients<double> all = call::backward(attention, x);
    for (const Update update : {Update::overwrite, Update::accumulate})
      for (int subset = 0; subset < 16; ++subset) {
        CAPTURE(name, subset);
        const Gradients<double> before(x);
        Gradients<double> after(x);
        auto views = after.views();
        views.query.wanted = (subset & 1) != 0;
        views.key.wanted = (subset & 2) != 0;
        views.value.wanted = (subset & 4) != 0;
        views.mix.wanted = (subset & 8) != 0;
        call::backward_to(views, update, attention, x);
        check_update(after.query, before.query, all.query, views.query.wanted, update);
        check_update(after.key, before.key, all.key, views.key.wanted, update);
        check_update(after.value, before.value, all.value, views.value.wanted, update);
        check_update(after.mix, before.mix, all.mix, views.mix.wanted, update);
      }
  });
}

TEST_CASE("cuda: no bit depends on the order of a kernel's threads", "[cuda]") {
  for_each_call([](const std::string& name, const auto& attention, const Operands<double>& x) {
    const auto y = call::forward(attention, x);
    Gradients<double> gradients = call::backward(attention, x);
    for (const std::uint64_t seed : {7u, 77u, 777u, 7777u}) {
      CAPTURE(name, seed);
      machine::context().seed = seed;
      CHECK(bitwise_equal(call::forward(attention, x).view(), y.view()));
      Gradients<double> again = call::backward(attention, x);
      call::check_same_bits(again, gradients);
    }
  });
}

namespace {

/// A copy that begins between multiples of 16 bytes, where no kernel may use vectors.
template <class T>
struct Crooked {
  std::vector<T> memory;
  mhla::TensorView<T, 4> view;

  explicit Crooked(const mhla::TensorView<const T, 4>& from)
      : memory(static_cast<std::size_t>(from.size()) + 1),
        view(mhla::make_view(memory.data(), from.extent[0], from.extent[1], from.extent[2],
                             from.extent[3])) {
    if (reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0) ++view.data;
    mhla::testing::for_each_element([](T& to, const T& e) { to = e; }, view, from);
  }
};

template <class T, class V>
void check_crooked(const char* name, const V& attention, const Shape& shape) {
  CAPTURE(name, sizeof(T));
  const mhla::CudaDevice device(nullptr, &machine::context(), {}, mhla::FloatProducts::exact,
                                mhla::CudaPath::cublas);
  const auto x = operands<T>(attention, shape);
  REQUIRE(reinterpret_cast<std::uintptr_t>(x.q.view().data) % 16 == 0);
  const Workspace workspace(
      std::max(mhla::forward_workspace_size<T>(attention, x.shape(), device),
               mhla::backward_workspace_size<T>(attention, x.shape(), device)));
  const auto run = [&](const auto& q, const auto& k, const auto& v, const auto& dy, const auto& y,
                       const auto& dq, const auto& dk, const auto& dv) {
    auto mix = x.mix;
    forward_into(attention, device, q, k, v, x.mix.view(), y, workspace);
    for (const Update update : {Update::overwrite, Update::accumulate})
      backward_into(attention, device, q, k, v, x.mix.view(), dy, {dq, dk, dv, mix.view()}, update,
                    workspace);
    return mix;
  };
  Gradients<T> gradients(x);
  auto y = x.dy;
  const auto mix = run(x.q.view(), x.k.view(), x.v.view(), x.dy.view(), y.view(),
                       gradients.query.view(), gradients.key.view(), gradients.value.view());
  const Crooked<T> q(x.q.view()), k(x.k.view()), v(x.v.view()), dy(x.dy.view()), of_y(x.dy.view()),
      dq(x.q.view()), dk(x.k.view()), dv(x.v.view());
  const auto of_mix = run(q.view, k.view, v.view, dy.view, of_y.view, dq.view, dk.view, dv.view);
  CHECK(bitwise_equal(of_y.view, y.view()));
  CHECK(bitwise_equal(dq.view, gradients.query.view()));
  CHECK(bitwise_equal(dk.view, gradients.key.view()));
  CHECK(bitwise_equal(dv.view, gradients.value.view()));
  CHECK(bitwise_equal(of_mix.view(), mix.view()));
}

}  // namespace

TEMPLATE_TEST_CASE("cuda: vectors and single elements give the same bits", "[cuda]", float, double,
                   mhla::BFloat16, mhla::Half) {
  using T = TestType;
  const Shape shape{2, 4, 2, 24, 24, 16, 8, 4};
  check_crooked<T>("causal", causal, shape);
  check_crooked<T>("products", with_products, shape);
  const Attention<Relu, Blocks2D, Bidirectional, MixedKeySum, mhla::AxialRotary> rotated{
      .blocks = {.grid = {4, 6}, .block = {3, 4}}};
  check_crooked<T>("neighbours", rotated, shape);
  check_crooked<T>("pairs of both axes in a vector", rotated, {2, 4, 2, 24, 24, 24, 8, 4});
  const Attention<Relu, Blocks1D, Bidirectional, MixedKeySum, HalfSplitRotary> halves{
      .blocks = {.block = 5}};
  check_crooked<T>("halves", halves, shape);
  check_crooked<T>("halves that are no vectors", halves, {2, 4, 2, 24, 24, 20, 6, 4});
}

TEST_CASE("cuda: the workspace is exact and its contents do not matter", "[cuda]") {
  for_each_call([](const std::string& name, const auto& attention, const Operands<double>& x) {
    for (const Index affordable : {Index{0}, Index{1} << 30}) {
      CAPTURE(name, affordable);
      const Affordable limit(affordable);
      const auto device = backend::device();
      const Shape shape = x.shape();
      const Index forward_size = mhla::forward_workspace_size<double>(attention, shape, device);
      const Index backward_size = mhla::backward_workspace_size<double>(attention, shape, device);
      auto y = x.dy;
      check_exact(forward_size, [&](WorkspaceView workspace) {
        forward_into(attention, device, x.q, x.k, x.v, x.mix, y.view(), workspace);
      });
      CHECK(bitwise_equal(y.view(), call::forward(attention, x).view()));
      Gradients<double> gradients(x);
      check_exact(backward_size, [&](WorkspaceView workspace) {
        backward_into(attention, device, x.q.view(), x.k, x.v, x.mix, x.dy, gradients.views(),
                      Update::overwrite, workspace);
      });
      Gradients<double> expected = call::backward(attention, x);
      call::check_same_bits(gradients, expected);

      // One byte less, and a crooked address, are refused before anything is written.
      const Workspace memory(backward_size + 64);
      const auto refuse = [&](std::byte* data, Index forward_bytes, Index backward_bytes,
                              const char* why) {
        auto untouched = x.dy;
        Gradients<double> kept(x);
        Gradients<double> before(x);
        CHECK(says(error_message<mhla::WorkspaceError>([&] {
                     forward_into(attention, device, x.q, x.k, x.v, x.mix, untouched.view(),
                                  WorkspaceView{data, forward_bytes});
                   }),
                   "mhla::forward_into", "workspace", why));
        CHECK(says(error_message<mhla::WorkspaceError>([&] {
                     backward_into(attention, device, x.q.view(), x.k, x.v, x.mix, x.dy,
                                   kept.views(), Update::overwrite,
                                   WorkspaceView{data, backward_bytes});
                   }),
                   "mhla::backward_into", "workspace", why));
        CHECK(bitwise_equal(untouched.view(), x.dy.view()));
        call::check_same_bits(kept, before);
      };
      refuse(memory.data(), forward_size - 1, backward_size - 1, "bytes are needed");
      refuse(memory.data() + 8, forward_size, backward_size, "multiple of 64");
    }
  });
}

// Items are independent but for dmix, whose sum over the batch is cut elsewhere.
TEST_CASE("cuda: a batch in parts gives what it gives as a whole", "[cuda]") {
  for_each_call([](const std::string& name, const auto& attention, const Operands<double>& x) {
    const auto device = backend::device();
    const Shape shape = x.shape();
    const auto size = [&] {
      return mhla::backward_workspace_size<double>(attention, shape, device);
    };
    const auto y = call::forward(attention, x);
    Gradients<double> whole = call::backward(attention, x);
    const Index of_all = size();
    Index before = of_all;
    // Parts of 4, 3, 2 and 1 of the 5 items: the last one is smaller where they do not fit.
    for (const Index percent : {95, 75, 55, 0}) {
      CAPTURE(name, percent);
      const Affordable limit(of_all * percent / 100);
      CHECK(size() < before);
      before = size();
      CHECK(bitwise_equal(call::forward(attention, x).view(), y.view()));
      Gradients<double> parts = call::backward(attention, x);
      CHECK(bitwise_equal(parts.query.view(), whole.query.view()));
      CHECK(bitwise_equal(parts.key.view(), whole.key.view()));
      CHECK(bitwise_equal(parts.value.view(), whole.value.view()));
      call::check_close("dmix", parts.mix, whole.mix, tolerance::gradient_rms<double>,
                        tolerance::gradient_max<double>);
      Gradients<double> sums(x);
      call::backward_to(sums.views(), Update::accumulate, attention, x);
      check_update(sums.mix, x.mix, parts.mix, true, Update::accumulate);
      check_update(sums.key, x.k, parts.key, true, Update::accumulate);
    }
  });
}

TEST_CASE("cuda: more sequences, and more pairs of a rotation, than a kernel's arguments hold",
          "[cuda]") {
  // 205 sequences of 1 to 5 tokens, all with the first blocks of mix: the same as those of a batch
  // padded to the longest.
  constexpr Index sequences = 205;
  std::vector<std::int32_t> offsets = {0};
  call::HostTensor<std::uint8_t, 2> mask(sequences, 5);
  for (Index s = 0; s < sequences; ++s) {
    const Index length = 1 + s % 5;
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(length));
    for (Index t = 0; t < length; ++t) mask(s, t) = 1;
  }
  auto attention = causal;
  attention.blocks.block = 2;
  const auto one_by_one = operands<double>(attention, {sequences, 2, 1, 5, 5, 4, 3});
  const auto masked = mhla::padded(attention, mask.view());
  const Index tokens = offsets.back();
  auto x = operands<double>(attention, {1, 2, 1, tokens, tokens, 4, 3, 1, 3, 3});
  x.mix = one_by_one.mix;
  // f(element, element) of every present token's rows in both.
  const auto for_each_row = [&](auto& in_a_row, auto& padded, auto&& f) {
    for (Index s = 0; s < sequences; ++s)
      for (Index h = 0; h < in_a_row.extent(1); ++h)
        for (Index t = 0; t < 1 + s % 5; ++t)
          for (Index c = 0; c < in_a_row.extent(3); ++c)
            f(in_a_row(0, h, offsets[static_cast<std::size_t>(s)] + t, c), padded(s, h, t, c));
  };
  const auto copy = [](double& to, const double& from) { to = from; };
  for_each_row(x.q, one_by_one.q, copy);
  for_each_row(x.k, one_by_one.k, copy);
  for_each_row(x.v, one_by_one.v, copy);
  for_each_row(x.dy, one_by_one.dy, copy);
  const auto packed = mhla::packed(attention, offsets);
  auto y = call::forward(packed, x);
  auto padded_y = call::forward(masked, one_by_one);
  const auto check = [&](const char* name, auto& found, auto& wanted) {
    auto expected = found;
    for_each_row(expected, wanted, copy);
    call::check_close(name, found, expected, tolerance::gradient_rms<double>,
                      tolerance::gradient_max<double>);
  };
  check("y", y, padded_y);
  auto gradients = call::backward(packed, x);
  auto padded_gradients = call::backward(masked, one_by_one);
  check("dq", gradients.query, padded_gradients.query);
  check("dk", gradients.key, padded_gradients.key);
  check("dv", gradients.value, padded_gradients.value);
  call::check_close("dmix", gradients.mix, padded_gradients.mix, tolerance::gradient_rms<double>,
                    tolerance::gradient_max<double>);

  call::check_against_oracle(causal, operands<double>(causal, {1, 1, 1, 7, 7, 1030, 3}));
}
