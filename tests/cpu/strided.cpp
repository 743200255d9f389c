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
