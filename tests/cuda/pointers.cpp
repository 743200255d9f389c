// SPDX-License-Identifier: MIT
// Addresses that no kernel can follow: memory that CUDA does not know is refused, whichever
// argument it belongs to, with a CudaError that names the argument and before anything is launched.
// And what is said where a call of CUDA's fails.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mhla/cuda/instantiate.cuh>
#include <mhla/packed.hpp>
#include <string>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;

// A variant whose kernels read everything that there is to borrow.
using Random = mhla::Attention<mhla::Favor<double>, mhla::Blocks1D>;
using Variant = mhla::Padded<Random>;

constexpr const char* why = "the address is not in memory that CUDA knows";

// Memory that CUDA does not know, and what else goes wrong, for as long as it lives.
class Trouble {
 public:
  Trouble() = default;
  explicit Trouble(const stand_in::AddressRange& unknown) {
    stand_in::runtime().unknown = {unknown};
  }
  ~Trouble() { stand_in::runtime() = {}; }
  Trouble(const Trouble&) = delete;
  Trouble& operator=(const Trouble&) = delete;
};

// The memory of one argument, and who reads or writes it.
struct Argument {
  const char* name;
  stand_in::AddressRange memory;
  bool forward, backward, saved;  // saved: where summaries are
};

// All arguments of a forward and a backward call.
struct Call {
  call::HostTensor<double, 2> projection{6, 5};
  call::HostTensor<std::uint8_t, 2> query_mask{2, 12}, key_mask{2, 12};
  Variant attention;
  call::Operands<double> x;
  call::HostTensor<double, 4> y;
  call::Gradients<double> gradients;
  mhla::GradientViews<double> wanted;
  Workspace workspace, state_memory;
  mhla::CudaForwardState<double> state;

  explicit Call(Index value_dim = 3)
      : attention(Random{.feature_map = {projection.view()}, .blocks = {.block = 3}},
                  {query_mask.view(), key_mask.view()}),
        x(call::operands<double>(Random{.blocks = {.block = 3}}, {2, 4, 2, 12, 12, 5, value_dim})),
        y(x.dy),
        gradients(x),
        wanted(gradients.views()),
        workspace(std::max(
            mhla::forward_workspace_size<double>(attention, x.shape(), machine::device()),
            mhla::backward_workspace_size<double>(attention, x.shape(), machine::device()))),
        state_memory(Index{sizeof(double)} *
                     mhla::forward_state_size(attention, x.shape(), machine::device())),
        state({reinterpret_cast<double*>(state_memory.data()),
               state_memory.size() / Index{sizeof(double)}}) {
    for (double& weight : projection.elements()) weight = 0.25;
    for (auto* mask : {&query_mask, &key_mask})
      for (std::uint8_t& entry : mask->elements()) entry = 1;
    for (const Workspace* memory : {&workspace, &state_memory})
      std::fill_n(memory->data(), memory->size(), std::byte{0x5a});
  }
  Call(const Call&) = delete;

  void forward(bool save) {
    forward_into(attention, machine::device(), x.q, x.k, x.v, x.mix, y.view(), workspace,
                 save ? &state : nullptr);
  }
  void backward(bool saved) {
    backward_into(attention, machine::device(), x.q.view(), x.k, x.v, x.mix, x.dy, wanted,
                  Update::overwrite, workspace, saved ? &state : nullptr);
  }

  template <class Tensor>
  static stand_in::AddressRange range(const Tensor& tensor) {
    return {tensor.elements().data(), tensor.elements().size() * sizeof(tensor.elements()[0])};
  }
  static stand_in::AddressRange range(const Workspace& memory) {
    return {memory.data(), static_cast<std::size_t>(memory.size())};
  }
  std::vector<Argument> arguments() const {
    return {{"q", range(x.q), true, true, false},
            {"k", range(x.k), true, true, false},
            {"v", range(x.v), true, true, false},
            {"mix", range(x.mix), true, true, false},
            {"y", range(y), true, false, false},
            {"dy", range(x.dy), false, true, false},
            {"dq", range(gradients.query), false, true, false},
            {"dk", range(gradients.key), false, true, false},
            {"dv", range(gradients.value), false, true, false},
            {"dmix", range(gradients.mix), false, true, false},
            {"workspace", range(workspace), true, true, false},
            {"feature_map.projection", range(projection), true, true, false},
            {"masks.query", range(query_mask), true, true, false},
            {"masks.key", range(key_mask), true, true, false},
            {"state", range(state_memory), true, true, true}};
  }
  // Every byte of every argument, one after the other.
  std::vector<char> bytes() const {
    std::vector<char> all;
    for (const Argument& argument : arguments()) {
      const auto* const begin = static_cast<const char*>(argument.memory.begin);
      all.insert(all.end(), begin, begin + argument.memory.bytes);
    }
    return all;
  }
};

// Fails unless `run` throws a CudaError of these parts and has done nothing else.
template <class Run, class... Parts>
void check_refused(const Call& call, const Run& run, const Parts&... parts) {
  const std::vector<char> before = call.bytes();
  const long launches = machine::context().launches;
  const std::string message = error_message<CudaError>(run);
  INFO(message);
  CHECK(says(message, parts...));
  CHECK(call.bytes() == before);
  CHECK(machine::context().launches == launches);
}

}  // namespace

TEST_CASE("pointers: memory that CUDA does not know is refused, whose ever it is", "[cuda]") {
  for (const bool saved : {false, true}) {
    Call call;
    if (saved) call.forward(true);  // there is something to go back from
    for (const Argument& argument : call.arguments()) {
      CAPTURE(saved, argument.name);
      const Trouble trouble(argument.memory);
      const std::string prefix = std::string("mhla: ") + argument.name + ": ";
      // Backward first: a save that fails leaves nothing.
      const auto backward = [&] { call.backward(saved); };
      if (argument.backward && (saved || !argument.saved))
        check_refused(call, backward, prefix, why, "cudaMalloc");
      else
        CHECK_NOTHROW(backward());
    }
    for (const Argument& argument : call.arguments()) {
      CAPTURE(saved, argument.name);
      const Trouble trouble(argument.memory);
      const std::string prefix = std::string("mhla: ") + argument.name + ": ";
      const auto forward = [&] { call.forward(saved); };
      if (argument.forward && (saved || !argument.saved))
        check_refused(call, forward, prefix, why, "cudaMalloc");
      else
        CHECK_NOTHROW(forward());
    }
  }
}

TEST_CASE("pointers: what is not asked for needs no memory", "[cuda]") {
  Call call;
  call.wanted.query.wanted = call.wanted.value.wanted = call.wanted.mix.wanted = false;
  for (const Argument& argument : call.arguments()) {
    CAPTURE(argument.name);
    const std::string name = argument.name;
    if (name != "dq" && name != "dv" && name != "dmix") continue;
    const Trouble trouble(argument.memory);
    CHECK_NOTHROW(call.backward(false));
  }
  const Trouble trouble(Call::range(call.query_mask));
  call.attention.masks.query.data = nullptr;  // all take part
  CHECK_NOTHROW(call.forward(false));

  Call empty(0);  // no value, and no memory for it
  for (const void* address : {empty.x.v.view().data, empty.y.view().data, empty.x.dy.view().data,
                              empty.gradients.value.view().data})
    CHECK(!stand_in::runtime().knows(address));
  CHECK_NOTHROW(empty.forward(false));
  CHECK_NOTHROW(empty.backward(false));
}

TEST_CASE("pointers: no address at all is not memory either", "[cuda]") {
  Call call;
  const Workspace nothing;
  const Index size = call.workspace.size();
  const auto refused = [&](const char* name, const auto& run) {
    check_refused(call, run, std::string("mhla: ") + name + ": ", why);
  };
  const auto device = machine::device();
  const auto forward = [&](TensorView<const double, 4> q, TensorView<double, 4> y,
                           mhla::WorkspaceView workspace,
                           mhla::CudaForwardState<double>* save = nullptr) {
    forward_into(call.attention, device, q, call.x.k, call.x.v, call.x.mix, y, workspace, save);
  };
  TensorView<const double, 4> no_q = call.x.q.view();
  no_q.data = nullptr;
  refused("q", [&] { forward(no_q, call.y.view(), call.workspace); });
  TensorView<double, 4> no_y = call.y.view();
  no_y.data = nullptr;
  refused("y", [&] { forward(call.x.q.view(), no_y, call.workspace); });
  refused("workspace", [&] { forward(call.x.q.view(), call.y.view(), {nullptr, size}); });
  mhla::CudaForwardState<double> state({nullptr, 1 << 20});  // would be saved nowhere
  refused("state", [&] { forward(call.x.q.view(), call.y.view(), call.workspace, &state); });
  CHECK_THROWS_AS(
      backward_into(call.attention, device, call.x.q.view(), call.x.k, call.x.v, call.x.mix,
                    call.x.dy, call.wanted, Update::overwrite, call.workspace, &state),
      mhla::StateError);
}

TEST_CASE("pointers: every kind of memory that CUDA knows will do", "[cuda]") {
  Call call;
  for (const auto type : {cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged}) {
    const Trouble trouble;
    stand_in::runtime().type = type;
    CHECK_NOTHROW(call.forward(true));
    CHECK_NOTHROW(call.backward(true));
  }
}

TEST_CASE("pointers: a question that CUDA cannot answer is a CudaError", "[cuda]") {
  Call call;
  for (const auto status : {cudaErrorInsufficientDriver, cudaErrorNoDevice}) {
    const Trouble trouble;
    stand_in::runtime().refuse_pointers_with = status;
    const auto check = [&](const char* first, const auto& run) {
      check_refused(call, run, std::string("mhla: ") + first + ": cudaPointerGetAttributes",
                    cudaGetErrorString(status));
      CHECK(cudaPeekAtLastError() == cudaSuccess);  // it was ours, and has been told
    };
    check("y", [&] { call.forward(false); });
    check("dq", [&] { call.backward(false); });
  }
  // What the caller did before is the caller's.
  const Trouble trouble(Call::range(call.x.v));
  stand_in::runtime().last_error = cudaErrorMemoryAllocation;
  check_refused(
      call, [&] { call.forward(false); }, "mhla: v: ", why);
  stand_in::runtime().unknown.clear();
  CHECK_NOTHROW(call.forward(false));
  CHECK(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
}

TEST_CASE("pointers: a program without code for the device says for which it lacks it", "[cuda]") {
  const auto message = [](cudaError_t status) {
    return error_message<CudaError>([&] { mhla::cuda::check_cuda(status, "it cannot be"); });
  };
  const Trouble trouble;
  stand_in::runtime().device = 1;
  stand_in::runtime().major = 12;
  stand_in::runtime().minor = 1;
  const char* const advice = "MHLA_INSTANTIATE_CUDA has to be compiled for";
  for (const auto status : {cudaErrorNoKernelImageForDevice, cudaErrorUnsupportedPtxVersion,
                            cudaErrorInvalidDeviceFunction}) {
    CHECK(says(message(status),
               std::string("mhla: it cannot be: ") + cudaGetErrorString(status) + "; ", advice,
               "compute capability 12.1, which device 1 has", "CMAKE_CUDA_ARCHITECTURES",
               "-gencode"));
  }
  stand_in::runtime().refuse_device_with = cudaErrorNoDevice;
  CHECK(says(message(cudaErrorNoKernelImageForDevice), advice, "the compute capability of the"));
  CHECK(message(cudaErrorInvalidConfiguration) ==
        "mhla: it cannot be: invalid configuration argument");
  CHECK(message(cudaSuccess) == "nothing was thrown");
}
