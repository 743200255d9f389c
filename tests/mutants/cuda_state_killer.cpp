// SPDX-License-Identifier: MIT
// Forward states of fused kernels, executed on the CPU: they change no bit, of parts of the batch
// and of the whole, are used, and belong to the path and the type that kept them.
#include <cstring>
#include <mhla/cuda/pipeline.cuh>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>

#include "killer.hpp"

using Variant = mhla::Attention<mhla::Relu, mhla::Blocks1D>;
template <>
struct mhla::cuda::FusedHeadDims<Variant, mhla::BFloat16> {
  using List = HeadDimsOf<HeadDims<32, 32>>;
};

namespace {

using namespace mhla;
using killer::expect;
using killer::expect_throw;
using mhla::testing::bitwise_equal;
using mhla::testing::HostTensor;
using mhla::testing::random_tensor;

constexpr Index dim = 32, tokens = 20, blocks = 4;
const Variant attention{.blocks = {.block = 5}};
const mhla::testing::ExactInBFloat16<mhla::testing::Normal> normal;

cublasContext context;

struct Call {
  HostTensor<BFloat16, 4> q = random_tensor<BFloat16>(normal, 1, 2, 1, tokens, dim);
  HostTensor<BFloat16, 4> k = random_tensor<BFloat16>(normal, 2, 2, 1, tokens, dim);
  HostTensor<BFloat16, 4> v = random_tensor<BFloat16>(normal, 3, 2, 1, tokens, dim);
  HostTensor<BFloat16, 4> dy = random_tensor<BFloat16>(normal, 4, 2, 1, tokens, dim);
  HostTensor<float, 3> mix =
      random_tensor<float>(mhla::testing::Uniform{0.1f, 1.0f}, 5, 1, blocks, blocks);
  HostTensor<BFloat16, 4> y = dy, dq = q, dk = k, dv = v;

  CudaDevice device(CudaPath path) {
    return CudaDevice(nullptr, &context, {}, FloatProducts::exact, path);
  }
  Shape shape() const { return shape_of(q.view(), k.view(), v.view(), mix.view()); }

  void forward(const CudaDevice& device, CudaForwardState<float>* save) {
    context.under_way = stand_in::UnderWay::anything;
    const StateUse use = save == nullptr ? StateUse::none : StateUse::given;
    const Workspace workspace(forward_workspace_size<BFloat16>(attention, shape(), device, use));
    forward_into(attention, device, q.view(), k.view(), v.view(), mix.view(), y.view(), workspace,
                 save);
  }
  void backward(const CudaDevice& device, const CudaForwardState<float>* saved) {
    context.under_way = stand_in::UnderWay::anything;
    const StateUse use = saved == nullptr ? StateUse::none : StateUse::given;
    const Workspace workspace(backward_workspace_size<BFloat16>(attention, shape(), device, use));
    backward_into(attention, device, q.view(), k.view(), v.view(), mix.view(), dy.view(),
                  {dq.view(), dk.view(), dv.view(), skip}, Update::overwrite, workspace, saved);
  }
  bool same(Call& other) {
    return bitwise_equal(dq.view(), other.dq.view()) && bitwise_equal(dk.view(), other.dk.view()) &&
           bitwise_equal(dv.view(), other.dv.view());
  }
};

}  // namespace

int main() {
  killer::run([] {
    Call plain, saving;
    const CudaDevice fused = plain.device(CudaPath::summaries);
    const Index size = forward_state_size(attention, plain.shape(), fused);
    const Workspace memory(size * Index{sizeof(float)} + 16);
    auto* const elements = reinterpret_cast<float*>(memory.data());
    CudaForwardState<float> state({elements, size});
    plain.forward(fused, nullptr);
    plain.backward(fused, nullptr);

    for (const bool parts_save : {false, true})
      for (const bool parts_take : {false, true}) {
        std::memset(memory.data(), 0xff, static_cast<std::size_t>(memory.size()));
        const auto cut = [](bool parts) { cuda::affordable_bytes = parts ? 0 : Index{1} << 30; };
        cut(parts_save);
        saving.forward(fused, &state);
        expect(bitwise_equal(plain.y.view(), saving.y.view()), "a state changes no bit of y");
        cut(parts_take);
        saving.backward(fused, &state);
        expect(plain.same(saving), "a state changes no bit of the gradients");
      }
    expect_throw<StateError>([&] { saving.backward(saving.device(CudaPath::cublas), &state); },
                             "a state of another path");
    expect_throw<ShapeError>([&] { saving.forward(saving.device(CudaPath::quadratic), &state); },
                             "a path without summaries");
    std::memset(memory.data(), 0, static_cast<std::size_t>(memory.size()));
    saving.backward(fused, &state);
    expect(!plain.same(saving), "summaries are taken from the state");
    CudaForwardState<float> unaligned({elements + 1, size});
    expect_throw<WorkspaceError>([&] { saving.forward(fused, &unaligned); },
                                 "a state that is not aligned");
  });
}
