// SPDX-License-Identifier: MIT
// The CUDA backend's decoder and saved summaries, executed on the CPU: against the oracle, and a
// backward pass that recomputes. And addresses that no kernel can follow.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mhla/cuda/decoding.cuh>
#include <mhla/cuda/pipeline.cuh>
#include <mhla/reference/mhla.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <utility>

#include "killer.hpp"

namespace {

using killer::expect;
using mhla::CudaDevice;
using mhla::Index;
using mhla::TensorView;
using mhla::Workspace;
using mhla::testing::HostTensor;
using Variant = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Causal, mhla::MixedKeySum,
                                mhla::HalfSplitRotary>;
using Decoder = mhla::CudaDecoder<Variant, double>;

constexpr Index tokens = 23;
constexpr Variant attention{.blocks = {.block = 5}, .normalizer = {.epsilon = 3}, .scale = 0.5};
constexpr mhla::DecoderShape sizes{2, 4, 2, 6, 3};

// A matrix for each of four query heads.
struct Call {
  HostTensor<double, 4> q = random(1, 4, 6), k = random(2, 2, 6), v = random(3, 2, 3),
                        dy = random(4, 4, 3), y{2, 4, tokens, 3};
  HostTensor<double, 3> mix =
      mhla::testing::random_tensor<double>(mhla::testing::Uniform{0.1f, 1.0f}, 5, 4, 5, 5);

  static HostTensor<double, 4> random(std::uint64_t seed, Index heads, Index dim) {
    return mhla::testing::random_tensor<double>(mhla::testing::Normal{}, seed, 2, heads, tokens,
                                                dim);
  }
};

Workspace full_of_nan(Index bytes) {
  Workspace memory(bytes);
  std::memset(memory.data(), 0xff, static_cast<std::size_t>(bytes));
  return memory;
}

template <class View>
View part(View view, Index sequence, Index sequences, Index first, Index count) {
  view.data += sequence * view.stride[0] + first * view.stride[2];
  view.extent[0] = sequences;
  view.extent[2] = count;
  return view;
}

void check_decoding() {
  Call x;
  auto expected = x.y;
  mhla::reference::mhla_forward(attention, x.q, x.k, x.v, x.mix, expected.view());
  const auto check = [&](const std::string& name) {
    expect(mhla::testing::compare(x.y.view(), expected.view()).rms_ratio <= 2e-14, name);
  };
  cublasContext context;
  const CudaDevice device(nullptr, &context);
  const Workspace memory = full_of_nan(Decoder::memory_size(attention, x.mix, sizes));
  Decoder decoder(attention, device, x.mix, sizes, memory);
  const auto prefill = [&](Index sequence, Index first, Index count) {
    decoder.prefill(device, sequence, part(x.q.view(), sequence, 1, first, count),
                    part(x.k.view(), sequence, 1, first, count),
                    part(x.v.view(), sequence, 1, first, count),
                    part(x.y.view(), sequence, 1, first, count));
  };
  const auto record = [&](Index at) {
    decoder.record_step(device, part(x.q.view(), 0, 2, at, 1), part(x.k.view(), 0, 2, at, 1),
                        part(x.v.view(), 0, 2, at, 1), part(x.y.view(), 0, 2, at, 1));
  };
  prefill(1, 0, 12);
  prefill(0, 0, 23);
  prefill(1, 12, 11);
  check("prefill gives what the oracle gives");

  decoder.reset(device);
  for (Index at = 0; at < 7; ++at) record(at);
  const Workspace aside = full_of_nan(decoder.snapshot_size());
  const auto snapshot = decoder.save(device, aside);
  for (Index at = 7; at < 14; ++at) record(at);
  decoder.load(device, snapshot);
  for (Index at = 7; at < 23; ++at) record(at);
  check("recorded steps, after a snapshot, give what the oracle gives");
  for (Index n = 0; n < 2; ++n) record(n);
  expect(!std::isnan(x.y(1, 3, 1, 2)), "there is room for 25 tokens");
  record(2);
  record(3);
  expect(std::isnan(x.y(1, 3, 2, 2)) && std::isnan(x.y(1, 3, 3, 2)), "and for no more");
}

void check_saved_state() {
  Call x;
  cublasContext context;
  const CudaDevice device(nullptr, &context);
  const auto shape = mhla::shape_of(x.q.view(), x.k.view(), x.v.view(), x.mix.view());
  const Index size = mhla::forward_state_size(attention, shape, device);
  const Workspace memory = full_of_nan(size * Index{sizeof(double)});
  mhla::CudaForwardState<double> state({reinterpret_cast<double*>(memory.data()), size});
  const Workspace forward =
      full_of_nan(mhla::forward_workspace_size<double>(attention, shape, device));
  const auto save = [&] {
    mhla::forward_into(attention, device, x.q.view(), x.k.view(), x.v.view(), x.mix.view(),
                       x.y.view(), forward, &state);
  };
  const auto backward = [&](const mhla::CudaForwardState<double>* saved) {
    auto dk = x.k;
    const Workspace workspace =
        full_of_nan(mhla::backward_workspace_size<double>(attention, shape, device));
    mhla::backward_into(attention, device, x.q.view(), x.k.view(), x.v.view(), x.mix.view(),
                        x.dy.view(), {mhla::skip, dk.view(), mhla::skip, mhla::skip},
                        mhla::Update::overwrite, workspace, saved);
    return dk;
  };
  const auto expected = backward(nullptr);
  mhla::cuda::affordable_bytes = 0;  // item by item
  save();
  expect(mhla::testing::bitwise_equal(backward(&state).view(), expected.view()),
         "saved summaries change no bit");
  mhla::cuda::affordable_bytes = Index{1} << 30;
  expect(mhla::testing::bitwise_equal(backward(&state).view(), expected.view()),
         "nor do those of another cut of the batch");
  auto v = x.v;
  for (double& element : x.v.elements()) element += 1;
  save();
  x.v = v;
  expect(!mhla::testing::bitwise_equal(backward(&state).view(), expected.view()),
         "saved summaries are used");
}

/// Expects `run` to throw an E that begins so where CUDA does not know what lies at `address`.
template <class E = mhla::CudaError, class Run>
void expect_refused(const std::string& name, const void* address, const Run& run) {
  stand_in::runtime().unknown = {{address, 1}};
  std::string message = "nothing";
  try {
    run();
  } catch (const E& error) {
    message = error.what();
  }
  stand_in::runtime() = {};
  expect(message.rfind("mhla: " + name + ": the address is no", 0) == 0,
         "a bad address of " + name + " is refused by name: " + message);
}

void check_addresses() {
  Call x;
  cublasContext context;
  const CudaDevice device(nullptr, &context);
  const auto shape = mhla::shape_of(x.q.view(), x.k.view(), x.v.view(), x.mix.view());
  const Index size = mhla::forward_state_size(attention, shape, device);
  const Workspace memory = full_of_nan(size * Index{sizeof(double)});
  mhla::CudaForwardState<double> state({reinterpret_cast<double*>(memory.data()), size});
  const Workspace workspace =
      full_of_nan(std::max(mhla::forward_workspace_size<double>(attention, shape, device),
                           mhla::backward_workspace_size<double>(attention, shape, device)));
  auto dq = x.q, dk = x.k, dv = x.v;
  auto dmix = x.mix;
  mhla::GradientViews<double> gradients{dq.view(), dk.view(), dv.view(), dmix.view()};
  TensorView<const double, 4> q = x.q.view();
  const auto forward = [&] {
    mhla::forward_into(attention, device, q, x.k.view(), x.v.view(), x.mix.view(), x.y.view(),
                       workspace, &state);
  };
  const auto backward = [&] {
    mhla::backward_into(attention, device, q, x.k.view(), x.v.view(), x.mix.view(), x.dy.view(),
                        gradients, mhla::Update::overwrite, workspace, &state);
  };
  forward();
  for (const auto& [name, address] : {std::pair<const char*, const void*>{"q", x.q.view().data},
                                      {"k", x.k.view().data},
                                      {"v", x.v.view().data},
                                      {"mix", x.mix.view().data},
                                      {"dy", x.dy.view().data},
                                      {"dq", dq.view().data},
                                      {"dk", dk.view().data},
                                      {"dv", dv.view().data},
                                      {"dmix", dmix.view().data},
                                      {"workspace", workspace.data()},
                                      {"state", memory.data()}})
    expect_refused(name, address, backward);
  gradients.value.wanted = false;
  stand_in::runtime().unknown = {{dv.view().data, 1}};
  backward();
  for (const auto& [name, address] : {std::pair<const char*, const void*>{"q", x.q.view().data},
                                      {"y", x.y.view().data},
                                      {"workspace", workspace.data()},
                                      {"state", memory.data()}})
    expect_refused(name, address, forward);
  q.data = reinterpret_cast<const double*>(reinterpret_cast<std::uintptr_t>(q.data) + 4);
  expect_refused<mhla::ShapeError>("q", nullptr, forward);
  expect_refused<mhla::ShapeError>("q", nullptr, backward);

  const Workspace own = full_of_nan(Decoder::memory_size(attention, x.mix, sizes));
  const auto make = [&] { Decoder(attention, device, x.mix, sizes, own); };
  expect_refused("memory", own.data(), make);
  expect_refused("mix", x.mix.view().data, make);
  Decoder decoder(attention, device, x.mix, sizes, own);
  const auto step = [&] { decoder.step(device, x.q, x.k, x.v, x.y.view()); };
  for (const auto& [name, address] : {std::pair<const char*, const void*>{"q", x.q.view().data},
                                      {"k", x.k.view().data},
                                      {"v", x.v.view().data},
                                      {"y", x.y.view().data}})
    expect_refused(name, address, step);
  const Workspace aside = full_of_nan(decoder.snapshot_size());
  expect_refused("memory", aside.data(), [&] { decoder.save(device, aside); });

  stand_in::runtime().refuse_pointers_with = cudaErrorNoDevice;
  try {
    step();
  } catch (const mhla::CudaError&) {
  }
  expect(cudaPeekAtLastError() == cudaSuccess, "an error that was thrown is not left behind");
  stand_in::runtime() = {};
  stand_in::runtime().last_error = cudaErrorMemoryAllocation;
  step();
  expect(cudaGetLastError() == cudaErrorMemoryAllocation, "the caller's error is left alone");
}

}  // namespace

int main() {
  killer::run([] {
    check_decoding();
    check_saved_state();
    check_addresses();
  });
}
