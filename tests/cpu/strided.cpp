// SPDX-License-Identifier: MIT
// Any strides on any operand and destination: the bits of the contiguous run, and nothing written
// between the elements.
#include <mhla/cpu/pipeline.hpp>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cpu/scattered_tensor.hpp"

namespace {

using namespace call;
using namespace mhla;

// One call on views of the caller's.
template <class T, class V>
void forward_on(const V& attention, const Shape& shape, TensorView<const T, 4> q,
                TensorView<const T, 4> k, TensorView<const T, 4> v,
                TensorView<const Accumulator<T>, 3> mix, TensorView<T, 4> y) {
  const backend::Device device = backend::device();
  const Workspace workspace(mhla::forward_workspace_size<T>(attention, shape, device));
  forward_into(attention, device, q, k, v, mix, y, workspace);
}
template <class T, class V>
void backward_on(const V& attention, const Shape& shape, TensorView<const T, 4> q,
                 TensorView<const T, 4> k, TensorView<const T, 4> v,
                 TensorView<const Accumulator<T>, 3> mix, TensorView<const T, 4> dy,
                 const GradientViews<T>& gradients, Update update = Update::overwrite) {
  const backend::Device device = backend::device();
  const Workspace workspace(mhla::backward_workspace_size<T>(attention, shape, device));
  backward_into(attention, device, q, k, v, mix, dy, gradients, update, workspace);
}

template <class V>
void check_scattered(const V& attention, const Shape& shape) {
  const Operands<float> x = operands<float>(attention, shape);
  auto y = call::forward(attention, x);
  auto gradients = call::backward(attention, x);
  call::Gradients<float> sums(x);
  backward_to(sums.views(), Update::accumulate, attention, x);
  for (std::uint64_t seed = 0; seed < 300; seed += 10) {
    CAPTURE(seed);
    ScatteredTensor<float, 4> q(x.q, seed + 1), k(x.k, seed + 2), v(x.v, seed + 3);
    ScatteredTensor<float, 4> dy(x.dy, seed + 4), out(x.dy, seed + 5);
    ScatteredTensor<float, 4> dq(x.q, seed + 6), dk(x.k, seed + 7), dv(x.v, seed + 8);
    ScatteredTensor<float, 3> mix(x.mix, seed + 9), dmix(x.mix, seed + 10);
    forward_on<float>(attention, x.shape(), q, k, v, mix, out);
    CHECK(bitwise_equal(out.view(), y.view()));

    const GradientViews<float> views{dq.view(), dk.view(), dv.view(), dmix.view()};
    backward_on<float>(attention, x.shape(), q, k, v, mix, dy, views, Update::accumulate);
    CHECK(bitwise_equal(dq.view(), sums.query.view()));
    CHECK(bitwise_equal(dk.view(), sums.key.view()));
    CHECK(bitwise_equal(dv.view(), sums.value.view()));
    CHECK(bitwise_equal(dmix.view(), sums.mix.view()));
    backward_on<float>(attention, x.shape(), q, k, v, mix, dy, views, Update::overwrite);
    CHECK(bitwise_equal(dq.view(), gradients.query.view()));
    CHECK(bitwise_equal(dk.view(), gradients.key.view()));
    CHECK(bitwise_equal(dv.view(), gradients.value.view()));
    CHECK(bitwise_equal(dmix.view(), gradients.mix.view()));

    for (const auto* tensor : {&q, &k, &v, &dy, &out, &dq, &dk, &dv})
      CHECK(tensor->guards_intact());
    CHECK(mix.guards_intact());
    CHECK(dmix.guards_intact());
  }
}

// A tensor of the extents of `like` whose axes lie in another order in memory.
HostTensor<float, 4> stored_tokens_first(const HostTensor<float, 4>& like) {
  HostTensor<float, 4> stored(like.extent(0), like.extent(2), like.extent(1), like.extent(3));
  mhla::testing::for_each_element([](float& to, const float& from) { to = from; },
                                  mhla::tokens_first(stored.view()), like.view());
  return stored;
}

// A tensor of the extents of `like` and its elements, columns being what lies together, forwards or
// backwards.
template <class T>
class ColumnMajor {
 public:
  ColumnMajor(const HostTensor<T, 4>& like, bool backwards)
      : stored_(like.extent(0), like.extent(1), like.extent(3), like.extent(2)),
        backwards_(backwards) {
    mhla::testing::for_each_element([](T& to, const T& from) { to = from; }, view(), like.view());
  }
  TensorView<T, 4> view() {
    TensorView<T, 4> view = stored_.view();
    std::swap(view.extent[2], view.extent[3]);
    std::swap(view.stride[2], view.stride[3]);
    if (backwards_) {
      view.data += view.stride[2] * (view.extent[2] - 1);
      view.stride[2] = -view.stride[2];
    }
    return view;
  }

 private:
  HostTensor<T, 4> stored_;
  bool backwards_;
};

template <class T, class V>
void check_column_major(const V& attention, const Shape& shape, bool backwards) {
  const Operands<T> x = operands<T>(attention, shape);
  auto y = call::forward(attention, x);
  auto gradients = call::backward(attention, x);
  call::Gradients<T> sums(x);
  backward_to(sums.views(), Update::accumulate, attention, x);
  ColumnMajor<T> q(x.q, backwards), k(x.k, backwards), v(x.v, backwards), dy(x.dy, backwards);
  ColumnMajor<T> out(x.dy, backwards);
  ColumnMajor<T> dq(x.q, backwards), dk(x.k, backwards), dv(x.v, backwards);
  auto dmix = x.mix;
  forward_on<T>(attention, x.shape(), q.view(), k.view(), v.view(), x.mix, out.view());
  CHECK(bitwise_equal(out.view(), y.view()));
  const GradientViews<T> views{dq.view(), dk.view(), dv.view(), dmix.view()};
  backward_on<T>(attention, x.shape(), q.view(), k.view(), v.view(), x.mix, dy.view(), views,
                 Update::accumulate);
  CHECK(bitwise_equal(dq.view(), sums.query.view()));
  CHECK(bitwise_equal(dk.view(), sums.key.view()));
  CHECK(bitwise_equal(dv.view(), sums.value.view()));
  backward_on<T>(attention, x.shape(), q.view(), k.view(), v.view(), x.mix, dy.view(), views);
  CHECK(bitwise_equal(dq.view(), gradients.query.view()));
  CHECK(bitwise_equal(dk.view(), gradients.key.view()));
  CHECK(bitwise_equal(dv.view(), gradients.value.view()));
  CHECK(bitwise_equal(dmix.view(), gradients.mix.view()));
}

const Attention<Relu, Blocks2D> image{.blocks = {.grid = {5, 7}, .block = {2, 3}}};

}  // namespace

TEST_CASE("strided: MixedKeySum on scattered tensors", "[cpu]") {
  check_scattered(image, {2, 6, 2, 35, 35, 5, 7});
  check_scattered(
      Attention<Relu, Blocks2D, Bidirectional, MixedKeySum, AxialRotary>{
          .blocks = {.grid = {5, 7}, .block = {2, 3}}},
      {2, 4, 4, 35, 35, 6, 3, 4});
}
TEST_CASE("strided: MixedProduct on scattered tensors", "[cpu]") {
  check_scattered(
      Attention<Relu, Blocks2D, Bidirectional, MixedProduct>{
          .blocks = {.grid = {4, 6}, .block = {2, 3}}},
      {2, 6, 2, 24, 24, 5, 7});
}
TEST_CASE("strided: Unnormalized with a map of rows on scattered tensors", "[cpu]") {
  check_scattered(
      Attention<Hedgehog, Blocks2D, Bidirectional, Unnormalized>{
          .blocks = {.grid = {5, 7}, .block = {2, 3}}},
      {2, 6, 2, 35, 35, 5, 7});
}

// Long runs of tokens, and rows of several whole vectors and a rest.
TEMPLATE_TEST_CASE("strided: column-major matrices", "[cpu]", float, double, BFloat16, Half) {
  const auto backwards = GENERATE(false, true);
  const Attention<Relu, Blocks2D> wide{.blocks = {.grid = {3, 150}, .block = {1, 67}}};
  check_column_major<TestType>(wide, {1, 2, 1, 450, 450, 37, 21}, backwards);
  check_column_major<TestType>(image, {2, 2, 2, 35, 35, 5, 7}, backwards);
}
TEST_CASE("strided: column-major matrices of a causal sequence", "[cpu]") {
  check_column_major<float>(Attention<Relu, Blocks1D, Causal>{.blocks = {.block = 90}},
                            {1, 2, 1, 200, 200, 37, 21}, GENERATE(false, true));
}

TEST_CASE("strided: [batch, tokens, heads, dim] through tokens_first", "[cpu]") {
  const Operands<float> x = operands<float>(image, {2, 6, 2, 35, 35, 5, 7});
  auto y = call::forward(image, x);
  auto gradients = call::backward(image, x);
  auto q = stored_tokens_first(x.q), k = stored_tokens_first(x.k), v = stored_tokens_first(x.v);
  auto dy = stored_tokens_first(x.dy), out = stored_tokens_first(x.dy);
  forward_on<float>(image, x.shape(), tokens_first(q.view()), tokens_first(k.view()),
                    tokens_first(v.view()), x.mix, tokens_first(out.view()));
  CHECK(bitwise_equal(tokens_first(out.view()), y.view()));
  auto dq = q, dk = k, dv = v;
  auto dmix = x.mix;
  backward_on<float>(
      image, x.shape(), tokens_first(q.view()), tokens_first(k.view()), tokens_first(v.view()),
      x.mix, tokens_first(dy.view()),
      {tokens_first(dq.view()), tokens_first(dk.view()), tokens_first(dv.view()), dmix.view()});
  CHECK(bitwise_equal(tokens_first(dq.view()), gradients.query.view()));
  CHECK(bitwise_equal(tokens_first(dk.view()), gradients.key.view()));
  CHECK(bitwise_equal(tokens_first(dv.view()), gradients.value.view()));
  CHECK(bitwise_equal(dmix.view(), gradients.mix.view()));
}

// One buffer [batch, tokens, 3, heads, dim], as a fused projection leaves it, and one like it for
// the gradients: address ranges overlap everywhere, elements nowhere.
TEST_CASE("strided: packed qkv, and its gradients packed alike", "[cpu]") {
  constexpr Index batch = 2, heads = 3, tokens = 35, dim = 5;
  const Operands<float> x = operands<float>(image, {batch, heads, heads, tokens, tokens, dim, dim});
  std::vector<float> packed(batch * tokens * 3 * heads * dim);
  std::vector<float> grad_packed(packed.size());
  const auto slice = [](std::vector<float>& buffer, Index which) {
    constexpr Index row = 3 * heads * dim;
    return TensorView<float, 4>{buffer.data() + which * heads * dim,
                                {batch, heads, tokens, dim},
                                {tokens * row, dim, row, 1}};
  };
  const HostTensor<float, 4>* sources[] = {&x.q, &x.k, &x.v};
  for (Index i = 0; i < 3; ++i)
    mhla::testing::for_each_element([](float& to, const float& from) { to = from; },
                                    slice(packed, i), sources[i]->view());
  auto y = call::forward(image, x);
  auto gradients = call::backward(image, x);
  auto out = x.dy;
  forward_on<float>(image, x.shape(), slice(packed, 0), slice(packed, 1), slice(packed, 2), x.mix,
                    out.view());
  CHECK(bitwise_equal(out.view(), y.view()));
  auto dmix = x.mix;
  backward_on<float>(
      image, x.shape(), slice(packed, 0), slice(packed, 1), slice(packed, 2), x.mix, x.dy,
      {slice(grad_packed, 0), slice(grad_packed, 1), slice(grad_packed, 2), dmix.view()});
  CHECK(bitwise_equal(slice(grad_packed, 0), gradients.query.view()));
  CHECK(bitwise_equal(slice(grad_packed, 1), gradients.key.view()));
  CHECK(bitwise_equal(slice(grad_packed, 2), gradients.value.view()));
  CHECK(bitwise_equal(dmix.view(), gradients.mix.view()));
}

TEST_CASE("strided: axes of stride 0 on operands", "[cpu]") {
  Operands<float> x = operands<float>(image, {3, 4, 2, 35, 35, 5, 7, 4});
  // k and v are one for the whole batch, mix one for all heads, dy one number: the gradient of a
  // sum.
  const auto expand = [](auto& tensor, auto view) {
    mhla::testing::for_each_element([](float& to, const float& from) { to = from; }, tensor.view(),
                                    view);
    return view;
  };
  const auto one_k = x.k, one_v = x.v;
  const auto one_mix = x.mix;
  const float one = 0.75f;
  auto k_view = one_k.view(), v_view = one_v.view();
  auto mix_view = one_mix.view();
  k_view.stride[0] = v_view.stride[0] = mix_view.stride[0] = 0;
  const TensorView<const float, 4> dy_view{&one, {3, 4, 35, 7}, {0, 0, 0, 0}};
  const auto k = expand(x.k, k_view), v = expand(x.v, v_view);
  const auto mix = expand(x.mix, mix_view);
  const auto dy = expand(x.dy, dy_view);

  auto y = call::forward(image, x);
  auto out = x.dy;
  forward_on<float>(image, x.shape(), x.q, k, v, mix, out.view());
  CHECK(bitwise_equal(out.view(), y.view()));
  auto gradients = call::backward(image, x);
  call::Gradients<float> others(x);
  backward_on<float>(image, x.shape(), x.q, k, v, mix, dy, others.views());
  check_same_bits(gradients, others);
}
