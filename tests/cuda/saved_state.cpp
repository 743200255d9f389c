// SPDX-License-Identifier: MIT
// Summaries that a forward pass on the device leaves for the backward pass, the kernels executed on
// the CPU: no bit changes, for every sort of variant and however the batch is cut.
#include <mhla/cuda/instantiate.cuh>
// After it, so that the stand-ins were found first.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mhla/packed.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace call;
using namespace mhla;

template <class Normalizer>
using Variant = Attention<Relu, Blocks1D, Bidirectional, Normalizer>;
using Rotated = Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary>;

// What the device does. Every workspace is full of NaN.
struct Machine {
  mutable cublasContext context;
  CudaDevice device{nullptr, &context};

  explicit Machine(std::uint64_t seed = 1) { context.seed = seed; }
  Machine(const Machine&) = delete;

  static Workspace workspace(Index bytes) {
    Workspace memory(bytes);
    std::memset(memory.data(), 0xff, static_cast<std::size_t>(bytes));
    return memory;
  }
  template <class T, class V>
  HostTensor<T, 4> forward(const V& attention, const Operands<T>& x,
                           CudaForwardState<T>* save = nullptr) const {
    HostTensor<T, 4> y = x.dy;
    const Workspace memory =
        workspace(mhla::forward_workspace_size<T>(attention, x.shape(), device));
    forward_into(attention, device, x.q, x.k, x.v, x.mix, y.view(), memory, save);
    return y;
  }
  template <class T, class V>
  void backward_to(Gradients<T>& gradients, Update update, const V& attention, const Operands<T>& x,
                   const CudaForwardState<T>* saved) const {
    const Workspace memory =
        workspace(mhla::backward_workspace_size<T>(attention, x.shape(), device));
    backward_into(attention, device, x.q.view(), x.k, x.v, x.mix, x.dy, gradients.views(), update,
                  memory, saved);
  }
  template <class T, class V>
  Gradients<T> backward(const V& attention, const Operands<T>& x,
                        const CudaForwardState<T>* saved = nullptr) const {
    Gradients<T> gradients(x);
    backward_to(gradients, Update::overwrite, attention, x, saved);
    return gradients;
  }
};

// Memory of a state between guards.
template <class T>
struct StateMemory {
  std::vector<T> elements;

  explicit StateMemory(Index count)
      : elements(static_cast<std::size_t>(count) + 2, std::numeric_limits<T>::quiet_NaN()) {
    elements.front() = elements.back() = T(42);
  }
  Span<T> span() { return {elements.data() + 1, static_cast<Index>(elements.size()) - 2}; }
  bool exact() const {  // filled, and nothing else
    for (std::size_t i = 1; i + 1 < elements.size(); ++i)
      if (elements[i] != elements[i]) return false;
    return elements.front() == T(42) && elements.back() == T(42);
  }
};

template <class T, class V>
void check_saved(const V& attention, const Shape& shape) {
  const auto x = operands<T>(attention, shape);
  const Machine machine(3);
  StateMemory<T> memory(mhla::forward_state_size(attention, x.shape(), machine.device));
  CudaForwardState<T> state(memory.span());
  const auto plain = machine.forward(attention, x);
  const auto saving = machine.forward(attention, x, &state);
  CHECK(bitwise_equal(plain.view(), saving.view()));
  CHECK(memory.exact());
  const std::vector<T> saved = memory.elements;

  const long before = machine.context.products;
  auto recomputed = machine.backward(attention, x);
  const long recomputing = machine.context.products - before;
  auto from_saved = machine.backward(attention, x, &state);
  const long taking = machine.context.products - before - recomputing;
  CHECK(taking < recomputing);
  check_same_bits(recomputed, from_saved);
  auto again = machine.backward(attention, x, &state);  // it is only read
  check_same_bits(recomputed, again);
  CHECK(memory.elements == saved);
}

constexpr Variant<MixedKeySum> attention{.blocks = {.block = 3}};
constexpr Shape shape{3, 6, 2, 12, 12, 5, 3};

// Parts of one item of the batch each, for as long as it lives.
struct OneItemAtOnce {
  OneItemAtOnce() { mhla::cuda::affordable_bytes = 0; }
  ~OneItemAtOnce() { mhla::cuda::affordable_bytes = Index{1} << 30; }
};

}  // namespace

TEST_CASE("cuda saved state: changes no bit of either pass", "[cuda]") {
  const auto check_all = [] {
    check_saved<double>(attention, {3, 4, 2, 14, 14, 5, 7});
    check_saved<float>(attention, {3, 4, 2, 14, 14, 5, 7, 4});
    check_saved<double>(
        Attention<EluPlusOne, Blocks2D, Bidirectional, MixedProduct>{.blocks = {{6, 4}, {3, 2}}},
        {2, 4, 2, 24, 24, 4, 3});
    check_saved<double>(Rotated{.blocks = {7}}, {3, 4, 2, 40, 40, 4, 3, 4});
    check_saved<double>(Variant<Unnormalized>{.blocks = {4}, .key_blocks = {5}},
                        {2, 4, 2, 11, 23, 4, 3});
  };
  check_all();
  const OneItemAtOnce parts;
  check_all();
}

TEST_CASE("cuda saved state: parts of the batch find their summaries in the state of all",
          "[cuda]") {
  const auto x = operands<double>(attention, shape);
  const Machine machine;
  const Index size = mhla::forward_state_size(attention, x.shape(), machine.device);
  StateMemory<double> whole_memory(size), part_memory(size);
  CudaForwardState<double> whole(whole_memory.span()), part(part_memory.span());
  machine.forward(attention, x, &whole);
  auto expected = machine.backward(attention, x);
  {
    const OneItemAtOnce parts;
    machine.forward(attention, x, &part);
    auto in_parts = machine.backward(attention, x);
    auto gradients = machine.backward(attention, x, &whole);
    check_same_bits(gradients, in_parts);
  }
  CHECK(whole_memory.elements == part_memory.elements);
  auto gradients = machine.backward(attention, x, &part);
  check_same_bits(gradients, expected);
}

TEST_CASE("cuda saved state: packed sequences", "[cuda]") {
  const std::vector<std::int32_t> offsets{0, 5, 5, 30, 31, 40};
  check_saved<double>(mhla::packed(Rotated{.blocks = {7}}, offsets),
                      {1, 4, 2, 40, 40, 4, 3, 4, 4, 4});
}

TEST_CASE("cuda saved state: is used, not computed again", "[cuda]") {
  const auto x = operands<double>(attention, shape);
  auto other = x;
  for (double& element : other.v.elements()) element += 1;
  const Machine machine;
  StateMemory<double> memory(mhla::forward_state_size(attention, x.shape(), machine.device));
  CudaForwardState<double> state(memory.span());
  machine.forward(attention, other, &state);
  auto recomputed = machine.backward(attention, x);
  auto from_saved = machine.backward(attention, x, &state);
  CHECK_FALSE(bitwise_equal(recomputed.query.view(), from_saved.query.view()));
}

TEST_CASE("cuda saved state: a state of another call is refused before anything is written",
          "[cuda]") {
  const auto x = operands<double>(attention, shape);
  const Machine machine;
  const Index size = mhla::forward_state_size(attention, x.shape(), machine.device);
  StateMemory<double> memory(2 * size);  // more than is needed
  CudaForwardState<double> state(memory.span());
  const auto check_refused = [&](const auto& variant, const Operands<double>& call_operands,
                                 const char* part) {
    Gradients<double> before(call_operands);
    Gradients<double> gradients(call_operands);
    const long launches = machine.context.launches;
    const std::string message = error_message<StateError>([&] {
      machine.backward_to(gradients, Update::accumulate, variant, call_operands, &state);
    });
    INFO(message);
    CHECK(says(message, "saved", part));
    CHECK(machine.context.launches == launches);
    check_same_bits(gradients, before);
  };
  check_refused(attention, x, "nothing has been saved");
  machine.forward(attention, x, &state);
  for (const Shape& other :
       {Shape{2, 6, 2, 12, 12, 5, 3}, Shape{3, 4, 2, 12, 12, 5, 3}, Shape{3, 6, 3, 12, 12, 5, 3},
        Shape{3, 6, 2, 11, 12, 5, 3}, Shape{3, 6, 2, 12, 11, 5, 3}, Shape{3, 6, 2, 12, 12, 4, 3},
        Shape{3, 6, 2, 12, 12, 5, 4}, Shape{3, 6, 2, 12, 12, 5, 3, 6}})
    check_refused(attention, operands<double>(attention, other), "another shape or variant");
  check_refused(Variant<MixedKeySum>{.blocks = {.block = 4}, .mixing = {.leading_corner = true}}, x,
                "another shape or variant");
  check_refused(Variant<Unnormalized>{.blocks = {.block = 3}}, x, "another shape or variant");
  const auto check_changed = [&](const auto& change) {
    auto other = attention;
    change(other);
    check_refused(other, x, "another shape or variant");
  };
  check_changed([](auto& a) { a.feature_map.epsilon = 1e-5; });
  check_changed([](auto& a) { a.normalizer.epsilon = 1e-5; });
  check_changed([](auto& a) { a.scale = 0.5; });
  check_changed([](auto& a) {
    a.key_blocks.block = 4;
    a.mixing.leading_corner = true;
  });
  CHECK_NOTHROW(
      machine.backward(Variant<MixedKeySum>{.blocks = {3}, .key_blocks = {3}}, x, &state));
}

TEST_CASE("cuda saved state: a failed save leaves what was there", "[cuda]") {
  const auto x = operands<double>(attention, shape);
  const auto larger = operands<double>(attention, {4, 6, 2, 12, 12, 5, 3});
  const Machine machine;
  const Index size = mhla::forward_state_size(attention, x.shape(), machine.device);
  StateMemory<double> memory(size);
  CudaForwardState<double> state(memory.span());
  machine.forward(attention, x, &state);
  auto y = x.dy;
  CHECK_THROWS_AS(forward_into(attention, machine.device, x.q, x.k, x.v, x.mix, y.view(),
                               mhla::WorkspaceView{}, &state),
                  WorkspaceError);
  const std::string message =
      error_message<WorkspaceError>([&] { machine.forward(attention, larger, &state); });
  INFO(message);
  CHECK(says(message, "save(state)", std::to_string(size) + "; forward_state_size says"));
  auto recomputed = machine.backward(attention, x);
  auto from_saved = machine.backward(attention, x, &state);
  check_same_bits(recomputed, from_saved);

  auto* const odd = reinterpret_cast<double*>(reinterpret_cast<char*>(memory.elements.data()) + 1);
  CudaForwardState<double> unaligned({odd, size});
  CHECK(says(error_message<WorkspaceError>([&] { machine.forward(attention, x, &unaligned); }),
             "aligned"));
}
