// SPDX-License-Identifier: MIT
// The CUDA backend, executed on the CPU, against the oracle: causal blocks with a rotation and a
// matrix per head, MixedProduct on an image, packed and padded batches, batches in parts; and the
// borrowed cuBLAS handle.
#include <cstdint>
#include <mhla/cuda/pipeline.cuh>
#include <mhla/packed.hpp>
#include <vector>

#include "cpu_call.hpp"
#include "tests/cuda/machine.hpp"

namespace {

using killer::Call;
using killer::expect;
using killer::expect_close;
using killer::FencedWorkspace;
using mhla::Index;
using mhla::Shape;
using mhla::TensorView;
using mhla::Update;

template <class V>
void run(const V& attention, const Shape& shape, Call& call, Update update,
         const mhla::CudaDevice& device = machine::device()) {
  const FencedWorkspace forward(mhla::forward_workspace_size<double>(attention, shape, device));
  mhla::forward_into(attention, device, call.q.view(), call.k.view(), call.v.view(),
                     call.mix.view(), call.y.view(), forward.view());
  const FencedWorkspace backward(mhla::backward_workspace_size<double>(attention, shape, device));
  mhla::backward_into(attention, device, call.q.view(), call.k.view(), call.v.view(),
                      call.mix.view(), call.dy.view(), call.gradients(), update, backward.view());
  expect(forward.fence_untouched() && backward.fence_untouched(),
         "calls stay within their workspace");
  expect(call.gaps_untouched(), "gaps are not written");
}

/// Both passes, replaced and added, as a whole and item by item, against oracle(call, update).
template <class V, class Oracle>
void check(const std::string& name, const V& attention, const Shape& shape, const Oracle& oracle) {
  for (const Index affordable : {Index{1} << 30, Index{0}})
    for (const Update update : {Update::overwrite, Update::accumulate}) {
      mhla::cuda::affordable_bytes = affordable;
      Call expected(shape), call(shape);
      const double before =
          update == Update::accumulate ? 0.5 : std::numeric_limits<double>::quiet_NaN();
      call.fill_gradients(before);
      expected.fill_gradients(update == Update::accumulate ? 0.5 : 0);
      oracle(expected, update);
      run(attention, shape, call, update);
      expect_close(call.y.view(), expected.y.view(), name + ": y");
      expect_close(call, expected, name);
    }
}

template <class V>
void check_plain(const std::string& name, const V& attention, const Shape& shape) {
  check(name, attention, shape, [&](Call& call, Update update) {
    mhla::reference::mhla_forward(attention, call.q.view(), call.k.view(), call.v.view(),
                                  call.mix.view(), call.y.view());
    mhla::reference::mhla_backward(attention, call.q.view(), call.k.view(), call.v.view(),
                                   call.mix.view(), call.dy.view(), call.gradients(), update);
  });
}

using Causal = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Causal, mhla::MixedKeySum,
                               mhla::HalfSplitRotary>;
using Image = mhla::Attention<mhla::Softmax, mhla::Blocks2D, mhla::Bidirectional,
                              mhla::MixedProduct, mhla::AxialRotary>;
using Bare =
    mhla::Attention<mhla::Identity, mhla::Blocks1D, mhla::Bidirectional, mhla::Unnormalized>;

using Rows = mhla::Attention<mhla::Softmax, mhla::Blocks1D>;

Causal causal(Index block) {
  return {.blocks = {.block = block}, .normalizer = {.epsilon = 3}, .scale = 0.5};
}

void check_variants() {
  // Blocks longer than a slab, a ragged last one; then many blocks.
  check_plain("causal, long blocks", causal(70), Shape{2, 4, 2, 150, 150, 4, 3, 4, 3, 3});
  check_plain("causal, many blocks", causal(2), Shape{2, 4, 2, 75, 75, 4, 3, 1, 38, 40});
  const Image image{
      .blocks = {.grid = {4, 6}, .block = {2, 3}}, .normalizer = {.epsilon = 3}, .scale = 0.5};
  check_plain("image, a matrix per head", image, Shape{2, 6, 3, 24, 24, 4, 5, 6, 4, 4});
  check_plain("image, one matrix", image, Shape{2, 6, 2, 24, 24, 4, 3, 1, 4, 4});
}

template <class V>
void check_masks(const V& attention) {
  const Shape shape{3, 2, 1, 11, 11, 4, 3, 1, 3, 3};
  mhla::testing::HostTensor<std::uint8_t, 2> mask(3, 11);
  for (Index n = 0; n < 3; ++n)
    for (Index t = 0; t < 11; ++t) mask(n, t) = (t + n) % 3 == 0 || t > 9 - 2 * n ? 0 : 1;
  const auto masked = mhla::padded(attention, mask.view());
  check("padded", masked, shape, [&](Call& call, Update update) {
    mhla::reference::mhla_forward(attention, call.q.view(), call.k.view(), call.v.view(),
                                  call.mix.view(), call.y.view(), masked.masks);
    mhla::reference::mhla_backward(attention, call.q.view(), call.k.view(), call.v.view(),
                                   call.mix.view(), call.dy.view(), call.gradients(), update,
                                   masked.masks);
  });
}

/// Of the oracle, one sequence after the other; more of them than a kernel's arguments hold.
void check_packed() {
  const Causal attention = causal(3);
  std::vector<std::int32_t> offsets = {0};
  for (int s = 0; s < 100; ++s) offsets.push_back(offsets.back() + (s == 7 ? 8 : s % 3));
  const Index tokens = offsets.back();
  const Shape shape{1, 2, 1, tokens, tokens, 4, 3, 1, 4, 4};
  check("packed", mhla::packed(attention, offsets), shape, [&](Call& call, Update update) {
    if (update == Update::overwrite) call.fill_gradients(0);
    for (std::size_t s = 0; s + 1 < offsets.size(); ++s) {
      const auto cut = [&](TensorView<double, 4> tensor) {
        tensor.data += offsets[s] * tensor.stride[2];
        tensor.extent[2] = offsets[s + 1] - offsets[s];
        return tensor;
      };
      mhla::reference::mhla_forward(attention, cut(call.q.view()), cut(call.k.view()),
                                    cut(call.v.view()), call.mix.view(), cut(call.y.view()));
      mhla::reference::mhla_backward(
          attention, TensorView<const double, 4>(cut(call.q.view())), cut(call.k.view()),
          cut(call.v.view()), call.mix.view(), cut(call.dy.view()),
          mhla::GradientViews<double>{cut(call.dq.view()), cut(call.dk.view()), cut(call.dv.view()),
                                      call.dmix.view()},
          Update::accumulate);
    }
  });
}

void check_handle() {
  static char streams[2];
  cublasContext handle;
  handle.stream = reinterpret_cast<cudaStream_t>(&streams[0]);
  handle.math_mode = CUBLAS_TF32_TENSOR_OP_MATH;
  handle.pointer_mode = CUBLAS_POINTER_MODE_DEVICE;
  const mhla::CudaDevice device(reinterpret_cast<cudaStream_t>(&streams[1]), &handle);
  const auto x = mhla::testing::random_tensor<float>(mhla::testing::Normal{}, 1, 1, 1, 9, 4);
  const auto mix = mhla::testing::random_tensor<float>(mhla::testing::Normal{}, 2, 1, 3, 3);
  auto y = x;
  const Bare bare{.blocks = {.block = 3}};
  const FencedWorkspace workspace(mhla::forward_workspace_size<float>(
      bare, mhla::shape_of(x.view(), x.view(), x.view(), mix.view()), device));
  mhla::forward_into(bare, device, x.view(), x.view(), x.view(), mix.view(), y.view(),
                     workspace.view());
  expect(handle.last_stream == device.stream(), "products run on the call's stream");
  expect(handle.last_workspace_size == mhla::cuda::cublas_workspace_bytes,
         "cuBLAS has the workspace it was given");
  expect(handle.last_compute == CUBLAS_COMPUTE_32F_PEDANTIC, "float means float");
  expect(handle.stream == reinterpret_cast<cudaStream_t>(&streams[0]), "the stream is restored");
  expect(handle.math_mode == CUBLAS_TF32_TENSOR_OP_MATH, "the math mode is restored");
  expect(handle.pointer_mode == CUBLAS_POINTER_MODE_DEVICE, "the pointer mode is restored");
}

}  // namespace

int main() {
  killer::run([] {
    check_handle();
    check_variants();
    check_masks(causal(4));
    check_masks(Rows{.blocks = {.block = 4}, .normalizer = {.epsilon = 3}});
    check_packed();
  });
}
