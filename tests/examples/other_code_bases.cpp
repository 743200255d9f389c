// SPDX-License-Identifier: MIT
// The recipes of examples/other_code_bases, in programs that stand in for the code bases.
#include <ggml.h>

#include <mhla/reference/mhla.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <numeric>
#include <thread>
#include <vector>

#include "examples/other_code_bases/torch_layer.hpp"
#include "tests/support/catch.hpp"

void mhla_op(ggml_tensor* dst, const ggml_tensor* q, const ggml_tensor* k, const ggml_tensor* v,
             int ith, int nth, void* userdata);
extern "C" {
void mhla_initialize(float* mix, int heads);
void mhla_project(float* mix, int heads);
void mhla_forward(float* out, const float* qkv, const float* mix, int B, int T, int C, int heads);
void mhla_backward(float* dqkv, float* dmix, const float* dout, const float* qkv, const float* mix,
                   int B, int T, int C, int heads);
}

namespace testing = mhla::testing;
using mhla::Index;

namespace {

template <class View>
auto in_double(const View& view) {
  return testing::converted<double>(view);
}
/// Whether a call is what the definition says, up to the rounding of float.
template <class Attention, class Mix>
void check_forward(const Attention& attention, const mhla::TensorView<float, 4>& q,
                   const mhla::TensorView<float, 4>& k, const mhla::TensorView<float, 4>& v,
                   const Mix& mix, const mhla::TensorView<float, 4>& y) {
  testing::HostTensor<double, 4> expected(y.extent[0], y.extent[1], y.extent[2], y.extent[3]);
  mhla::reference::mhla_forward(attention, in_double(q), in_double(k), in_double(v), in_double(mix),
                                expected.view());
  const auto error = testing::compare(y, expected.view());
  INFO(error);
  CHECK(error.rms_ratio <= testing::tolerance::forward_rms<float>);
  CHECK(error.max_ratio <= testing::tolerance::forward_max<float>);
}
template <class Attention, class Mix>
void check_backward(const Attention& attention, const mhla::TensorView<float, 4>& q,
                    const mhla::TensorView<float, 4>& k, const mhla::TensorView<float, 4>& v,
                    const Mix& mix, const mhla::TensorView<float, 4>& dy,
                    const mhla::TensorView<float, 4> (&d)[3], const Mix& dmix, double times = 1) {
  const auto same = [](const auto& view) { return in_double(view); };
  auto dq = same(q), dk = same(k), dv = same(v);
  auto expected_dmix = same(mix);
  mhla::reference::mhla_backward(attention, in_double(q), in_double(k), in_double(v),
                                 in_double(mix), in_double(dy),
                                 {dq.view(), dk.view(), dv.view(), expected_dmix.view()});
  const auto check = [times](auto expected, const auto& found) {
    for (Index i = 0; i < expected.view().size(); ++i) expected.view().element(i) *= times;
    const auto error = testing::compare(found, expected.view());
    INFO(error);
    CHECK(error.rms_ratio <= testing::tolerance::gradient_rms<float>);
  };
  check(dq, d[0]);
  check(dk, d[1]);
  check(dv, d[2]);
  check(expected_dmix, dmix);
}

}  // namespace

#ifdef _OPENMP
TEST_CASE("other_code_bases: a trainer in C with packed q, k and v", "[examples]") {
  constexpr int B = 2, T = 70, heads = 3, C = heads * 8, blocks = 16;
  auto qkv = testing::random_tensor<float>(testing::Normal{}, 1, B, T, 3 * C);
  auto dout = testing::random_tensor<float>(testing::Normal{}, 2, B, T, C);
  testing::HostTensor<float, 3> out(B, T, C), dqkv(B, T, 3 * C), mix(heads, blocks, blocks),
      dmix(heads, blocks, blocks);
  mhla_initialize(mix.view().data, heads);
  mhla_forward(out.view().data, qkv.view().data, mix.view().data, B, T, C, heads);
  const auto [q, k, v] = mhla::qkv_views(qkv.view().data, T, heads, C / heads, B);
  const mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Causal> trained{
      .blocks = {.block = 64}};
  check_forward(trained, q, k, v, mix.view(),
                mhla::heads_view(out.view().data, T, heads, C / heads, C, B));

  for (int call = 0; call < 2; ++call)  // gradients accumulate
    mhla_backward(dqkv.view().data, dmix.view().data, dout.view().data, qkv.view().data,
                  mix.view().data, B, T, C, heads);
  const auto [dq, dk, dv] = mhla::qkv_views(dqkv.view().data, T, heads, C / heads, B);
  check_backward(trained, q, k, v, mix.view(),
                 mhla::heads_view(dout.view().data, T, heads, C / heads, C, B), {dq, dk, dv},
                 dmix.view(), 2);

  mix(0, 1, 0) = -3;
  mhla_project(mix.view().data, heads);
  CHECK(mix(0, 1, 0) == 0);
}
#endif

TEST_CASE("other_code_bases: an operation on the threads of a graph library", "[examples]") {
  constexpr Index batch = 2, heads = 5, tokens = 70, dim = 8, blocks = 3;  // one more than needed
  auto mix = testing::random_tensor<float>(testing::Uniform{}, 4, 1, blocks, blocks);
  auto matrix = mhla::make_view(mix.view().data, blocks, blocks);
  std::vector<testing::HostTensor<float, 4>> memory;
  std::vector<ggml_tensor> tensors;
  for (std::uint64_t i = 0; i < 4; ++i) {
    memory.push_back(
        testing::random_tensor<float>(testing::Normal{}, i, batch, heads, tokens, dim));
    tensors.push_back({{dim, tokens, heads, batch},
                       {sizeof(float), dim * sizeof(float), tokens * dim * sizeof(float),
                        heads * tokens * dim * sizeof(float)},
                       memory.back().view().data});
  }
  constexpr int nth = 3;
  std::vector<std::thread> threads;
  for (int ith = 0; ith < nth; ++ith)
    threads.emplace_back([&, ith] {
      mhla_op(&tensors[3], tensors.data(), &tensors[1], &tensors[2], ith, nth, &matrix);
    });
  for (std::thread& thread : threads) thread.join();
  using Op = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized>;
  check_forward(Op{.blocks = {.block = 64}}, memory[0].view(), memory[1].view(), memory[2].view(),
                mix.view(), memory[3].view());
}

TEST_CASE("other_code_bases: a layer of LibTorch", "[examples]") {
  constexpr std::int64_t batch = 2, tokens = 70, heads = 3, dim = heads * 8, blocks = 2;
  MhlaAttention layer(dim, heads, blocks);
  torch::Tensor x({batch, tokens, dim});
  const auto x_view = mhla::make_view(x.data_ptr<float>(), 1, batch, tokens, dim);
  testing::fill_random(testing::Normal{}, 1, x_view);
  const torch::Tensor y = layer.forward(x);
  CHECK(y.sizes() == x.sizes());

  // The stand-in's projections hand x on.
  const MhlaAttentionImpl::Attention attention{.blocks = {.block = 64}};
  const auto q = mhla::heads_view(x.data_ptr<float>(), tokens, heads, dim / heads, dim, batch);
  const auto mix = mhla::make_view(layer.mix.data_ptr<float>(), heads, blocks, blocks);
  check_forward(attention, q, q, q, mix,
                mhla::heads_view(y.data_ptr<float>(), tokens, heads, dim / heads, dim, batch));

  torch::Tensor dy({batch, heads, tokens, dim / heads});
  const auto dy_view = mhla::make_view(dy.data_ptr<float>(), batch, heads, tokens, dim / heads);
  testing::fill_random(testing::Normal{}, 2, dy_view);
  const auto d = torch::autograd::last_backward({dy});
  const auto of_head = [&](const torch::Tensor& t) {
    return mhla::make_view(t.data_ptr<float>(), batch, heads, tokens, dim / heads);
  };
  check_backward(attention, q, q, q, mix, dy_view, {of_head(d[0]), of_head(d[1]), of_head(d[2])},
                 mhla::make_view(d[3].data_ptr<float>(), heads, blocks, blocks));

  mix(0, 1, 0) = -3;
  layer.project();
  CHECK(mix(0, 1, 0) == 0);
}
