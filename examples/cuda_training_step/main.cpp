// SPDX-License-Identifier: MIT
// A training loop that owns its stream and its memory, and embeds the attention in it: q, k, v and
// mix are fitted by gradient descent to what the attention makes of others. On the GPU where there
// is one, else the same numbers on the CPU.
//
// Built with gpu.cu and MHLA_EXAMPLE_HAS_CUDA it can run on a GPU; without, on the CPU alone.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/cuda/pipeline.hpp>
#include <mhla/mixing_matrix.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>

#include "cpu_machine.hpp"
#include "gpu_machine.hpp"
#include "variant.hpp"

namespace {

using mhla::Index;
using mhla::testing::HostTensor;

constexpr Index batch = 2, heads = 4, side = 16, dim = 32, blocks = 16;
constexpr int steps = 100;
constexpr float rate = 1, mix_rate = 1e-4f;  // each entry of mix moves many tokens

/// A tensor of the loop's in a machine's memory, and its gradient.
struct Parameter {
  mhla::TensorView<float, 4> value, gradient;
};

template <class Machine>
mhla::TensorView<float, 4> tensor(Machine& machine) {
  return mhla::make_view(machine.allocate(batch * heads * side * side * dim), batch, heads,
                         side * side, dim);
}
template <class Machine>
Parameter parameter(Machine& machine, std::uint64_t seed) {
  const Parameter made{tensor(machine), tensor(machine)};
  const auto start = mhla::testing::random_tensor<float>(mhla::testing::Normal{}, seed, batch,
                                                         heads, side * side, dim);
  machine.upload(start.elements().data(), start.size(), made.value.data);
  return made;
}

/// Half the mean square of what is left to learn, before the first step and after the last one.
struct Losses {
  double first, last;
};

template <class Machine>
Losses train(Machine& machine) {
  const ImageAttention attention{.blocks = {.grid = {side, side}, .block = {4, 4}}};
  const auto executor = machine.executor();

  // All memory is taken here; the steps take none.
  const Parameter q = parameter(machine, 1), k = parameter(machine, 2), v = parameter(machine, 3);
  const mhla::TensorView<float, 4> y = tensor(machine), dy = tensor(machine);
  const mhla::TensorView<float, 4> target = tensor(machine);
  HostTensor<float, 3> weights(1, blocks, blocks);
  const Index size = weights.size();
  const auto mix = mhla::make_view(machine.allocate(size), 1, blocks, blocks);
  const auto dmix = mhla::make_view(machine.allocate(size), 1, blocks, blocks);
  const mhla::Shape shape = mhla::shape_of(q.value, k.value, v.value, mix);
  const mhla::WorkspaceView workspace =
      machine.workspace(std::max(mhla::forward_workspace_size<float>(attention, shape, executor),
                                 mhla::backward_workspace_size<float>(attention, shape, executor)));

  // What the attention makes of others, with each block looking at its neighbours alone.
  const auto set_mix = [&](mhla::Transform transform) {
    mhla::initialize(weights.view(), attention, {.transform = transform});
    machine.upload(weights.elements().data(), size, mix.data);
  };
  set_mix(mhla::Transform::local);
  mhla::forward_into(attention, executor, parameter(machine, 4).value, parameter(machine, 5).value,
                     parameter(machine, 6).value, mix, target, workspace);
  set_mix(mhla::Transform::linear);

  HostTensor<float, 4> difference(batch, heads, side * side, dim);
  const auto loss = [&] {
    machine.download(dy.data, dy.size(), difference.elements().data());
    double sum = 0;
    for (const float d : difference.elements())
      sum += static_cast<double>(d) * static_cast<double>(d);
    return sum / 2 / static_cast<double>(dy.size());
  };
  Losses losses{};
  for (int step = 0; step <= steps; ++step) {
    mhla::forward_into(attention, executor, q.value, k.value, v.value, mix, y, workspace);
    machine.loss_gradient(y.data, target.data, y.size(), dy.data);
    if (step % 10 == 0) {
      losses.last = loss();
      if (step == 0) losses.first = losses.last;
      std::printf("step %3d: loss %.6f\n", step, losses.last);
    }
    if (step == steps) break;

    mhla::backward_into(attention, executor, q.value, k.value, v.value, mix, dy,
                        {q.gradient, k.gradient, v.gradient, dmix}, mhla::Update::overwrite,
                        workspace);
    for (const Parameter& p : {q, k, v})
      machine.descend(p.gradient.data, rate, p.value.size(), p.value.data);
    // The mixing matrix is small and projected after every update, which the CPU does.
    machine.descend(dmix.data, mix_rate, size, mix.data);
    machine.download(mix.data, size, weights.elements().data());
    mhla::project(weights.view());
    machine.upload(weights.elements().data(), size, mix.data);
  }
  return losses;
}

Losses train_where_it_can() {
#ifdef MHLA_EXAMPLE_HAS_CUDA
  const std::string why_not = GpuMachine::why_not();
  if (why_not.empty()) {
    GpuMachine machine;
    std::printf("On the GPU: %s\n", machine.name().c_str());
    return train(machine);
  }
  std::printf("On the CPU: there is no GPU to use: %s\n", why_not.c_str());
#else
  std::printf("On the CPU: built without CUDA\n");
#endif
  CpuMachine machine;
  return train(machine);
}

}  // namespace

int main() try {
  const Losses losses = train_where_it_can();
  std::printf("loss %.6f -> %.6f\n", losses.first, losses.last);
  return losses.last < losses.first / 10 ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "cuda_training_step: %s\n", error.what());
  return 1;
}
