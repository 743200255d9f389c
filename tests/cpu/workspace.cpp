// SPDX-License-Identifier: MIT
// Workspaces: as many bytes as are asked for are enough, whoever runs the call, and nothing beside
// them is touched; one byte less, or a crooked address, is refused before anything is written.
#include <cstddef>
#include <cstring>
#include <mhla/cpu/pipeline.hpp>
#include <string>

#include "tests/cpu/call.hpp"
#include "tests/cpu/executors.hpp"
#include "tests/support/error_message.hpp"

namespace {

using call::bitwise_equal;
using call::operands;
using executors::ShuffledExecutor;
using namespace mhla;

const Attention<Relu, Blocks1D> sequence{.blocks = {.block = 4}};
const Attention<Relu, Blocks2D> image{.blocks = {.grid = {3, 5}, .block = {2, 2}}};
constexpr Shape shape{2, 6, 3, 15, 15, 5, 7};

// A forward and a backward call on any workspace, on an executor.
template <class V, class E>
struct Call {
  const V& attention;
  const E& executor;
  call::Operands<float> x;
  call::HostTensor<float, 4> y;
  call::Gradients<float> gradients;

  Call(const V& variant, const Shape& of, const E& runner)
      : attention(variant),
        executor(runner),
        x(operands<float>(variant, of)),
        y(x.dy),
        gradients(x) {}

  Index forward_size() const {
    return mhla::forward_workspace_size<float>(attention, x.shape(), executor);
  }
  Index backward_size() const {
    return mhla::backward_workspace_size<float>(attention, x.shape(), executor);
  }
  void forward(WorkspaceView workspace) {
    forward_into(attention, executor, x.q, x.k, x.v, x.mix, y.view(), workspace);
  }
  void backward(WorkspaceView workspace) {
    backward_into(attention, executor, x.q.view(), x.k, x.v, x.mix, x.dy, gradients.views(),
                  Update::overwrite, workspace);
  }
  bool untouched() {
    return bitwise_equal(y.view(), x.dy.view()) &&
           bitwise_equal(gradients.query.view(), x.q.view()) &&
           bitwise_equal(gradients.key.view(), x.k.view()) &&
           bitwise_equal(gradients.value.view(), x.v.view()) &&
           bitwise_equal(gradients.mix.view(), x.mix.view());
  }
};

// Runs on exactly `size` bytes between guards.
template <class Run>
void check_exact(Index size, const Run& run) {
  constexpr Index guard = 4096;
  const Workspace memory(size + 2 * guard);
  std::memset(memory.data(), 0x5a, static_cast<std::size_t>(memory.size()));
  run(WorkspaceView{memory.data() + guard, size});
  Index touched = 0;
  for (Index i = 0; i < guard; ++i)
    touched += (memory.data()[i] != std::byte{0x5a}) +
               (memory.data()[guard + size + i] != std::byte{0x5a});
  CHECK(touched == 0);
}

template <class V, class E>
void check_exact_call(const V& attention, const Shape& of, const E& executor) {
  Call<V, E> call(attention, of, executor);
  check_exact(call.forward_size(), [&](WorkspaceView w) { call.forward(w); });
  check_exact(call.backward_size(), [&](WorkspaceView w) { call.backward(w); });
}

}  // namespace

TEST_CASE("workspace: the size asked for is enough, and nothing beyond it is touched", "[cpu]") {
  const auto check = [](const auto& attention, const Shape& of) {
    check_exact_call(attention, of, SerialExecutor{});
    for (const Index num_slots : {2, 5, 50})
      check_exact_call(attention, of, ShuffledExecutor{num_slots});
  };
  for (const Shape& s : {shape, Shape{2, 6, 3, 15, 15, 5, 7, 6}, Shape{1, 1, 1, 15, 15, 1, 1},
                         Shape{2, 2, 1, 15, 15, 6, 64}, Shape{9, 2, 1, 15, 15, 2, 3},
                         Shape{1, 1, 1, 15, 15, 16, 160}}) {
    check(sequence, s);
    check(image, s);
    check(Attention<Relu, Blocks1D, Bidirectional, MixedProduct>{.blocks = {.block = 5}}, s);
    check(Attention<Relu, Blocks1D, Bidirectional, Unnormalized>{.blocks = {.block = 200}}, s);
    // More blocks than are mixed at once: dM's triangle is larger than a group's weights.
    check(Attention<Relu, Blocks1D, BlockCausal>{.blocks = {.block = 1}}, s);
    check(Attention<Relu, Blocks1D, Causal, Unnormalized>{.blocks = {.block = 1}}, s);
  }
}

TEST_CASE("workspace: one that is too small is refused", "[cpu]") {
  const SerialExecutor serial;
  Call call(sequence, shape, serial);
  const Workspace memory(call.backward_size());
  const auto check = [&](const char* function, Index size, const auto& run) {
    CAPTURE(size);
    const std::string message = error_message<WorkspaceError>([&] {
      run(WorkspaceView{memory.data(), size});
    });
    INFO(message);
    CHECK(says(message, function, "workspace", "bytes are needed", std::to_string(size)));
    CHECK(call.untouched());
  };
  for (const Index size : {Index{0}, Index{1}, call.forward_size() - 1})
    check("mhla::forward_into", size, [&](WorkspaceView w) { call.forward(w); });
  for (const Index size : {Index{0}, call.forward_size(), call.backward_size() - 1})
    check("mhla::backward_into", size, [&](WorkspaceView w) { call.backward(w); });
  CHECK_THROWS_AS(call.forward({}), WorkspaceError);
  CHECK_THROWS_AS(call.backward({}), WorkspaceError);
}

TEST_CASE("workspace: a crooked address is refused", "[cpu]") {
  const SerialExecutor serial;
  Call call(sequence, shape, serial);
  const Workspace memory(call.backward_size() + 64);
  for (const Index shift : {1, 4, 8, 32}) {
    const WorkspaceView crooked{memory.data() + shift, call.backward_size()};
    for (const bool forward : {true, false}) {
      const std::string message = error_message<WorkspaceError>(
          [&] { forward ? call.forward(crooked) : call.backward(crooked); });
      INFO(message);
      CHECK(says(message, "workspace", "multiple of 64"));
      CHECK(call.untouched());
    }
  }
}
