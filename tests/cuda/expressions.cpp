// SPDX-License-Identifier: MIT
// Expressions on a CudaDevice, executed on the CPU: they give what the CPU backend gives, read and
// write tensors where they lie, stay inside their workspace, and throw before anything is launched.
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <mhla/cuda.hpp>
#include <mhla/cuda/instantiate.cuh>
#include <string>
#include <vector>

#include "tests/eigen/tensors.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;
using test::Memory;
using test::memory_of;

// Exactly `bytes` of workspace, full of NaN, between two canaries.
class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(Index bytes) : bytes_(bytes), memory_(bytes + 2 * guard) {
    std::memset(memory_.data(), 0xff, static_cast<std::size_t>(memory_.size()));
    std::memset(memory_.data(), canary, guard);
    std::memset(memory_.data() + guard + bytes, canary, guard);
  }

  operator mhla::WorkspaceView() const { return {memory_.data() + guard, bytes_}; }  // NOLINT

  bool is_intact() const {
    for (Index i = 0; i < guard; ++i)
      if (memory_.data()[i] != std::byte{canary} ||
          memory_.data()[guard + bytes_ + i] != std::byte{canary})
        return false;
    return true;
  }

 private:
  static constexpr Index guard = 256;
  static constexpr unsigned char canary = 0x5a;
  Index bytes_;
  mhla::Workspace memory_;
};

// The largest difference, relative to the largest expected value.
template <class T>
double error(const Memory<T>& got, const Memory<T>& expected) {
  REQUIRE(got.size() == expected.size());
  double difference = 0;
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double distance =
        std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    if (!(distance <= difference)) difference = distance;  // NaN, too
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return difference / largest;
}
constexpr double tolerance = 1e-13;

using RowMajor = test::Tensors<double, Eigen::RowMajor>;
using ColMajor = test::Tensors<double, Eigen::ColMajor>;

// A machine, and the tensors of a call.
template <class Tensors>
struct Call : Tensors {
  using Tensor4 = typename Tensors::Tensor4;
  using Tensor3 = typename Tensors::Tensor3;
  using Map4 = Eigen::TensorMap<Tensor4>;
  using ConstMap4 = Eigen::TensorMap<const Tensor4>;

  cublasContext machine{};
  CudaDevice bare{nullptr, &machine};
  GuardedWorkspace forward{
      mhla::forward_workspace_size<double>(this->attention, this->shape(), bare)};
  GuardedWorkspace backward{
      mhla::backward_workspace_size<double>(this->attention, this->shape(), bare)};

  CudaDevice with(mhla::WorkspaceView workspace) { return {nullptr, &machine, workspace}; }
  bool was_idle() const { return machine.launches == 0 && machine.products == 0; }
};

// Destinations shaped as q, k, v and mix, filled with something else.
template <class Tensors>
struct Targets {
  using Gradients = test::Gradients<double>;

  typename Tensors::Tensor4 dq = test::tensor<double, Tensors::layout>(21, 2, 6, 20, 8);
  typename Tensors::Tensor4 dk = test::tensor<double, Tensors::layout>(22, 2, 3, 22, 8);
  typename Tensors::Tensor4 dv = test::tensor<double, Tensors::layout>(23, 2, 3, 22, 9);
  typename Tensors::Tensor3 dmix = test::tensor<double, Tensors::layout>(24, 6, 3, 5);

  Gradients memory() const {
    return {memory_of(dq), memory_of(dk), memory_of(dv), memory_of(dmix)};
  }
  void require(const Gradients& expected) const {
    CHECK(error(memory_of(dq), expected.dq) < tolerance);
    CHECK(error(memory_of(dk), expected.dk) < tolerance);
    CHECK(error(memory_of(dv), expected.dv) < tolerance);
    CHECK(error(memory_of(dmix), expected.dmix) < tolerance);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("cuda expressions: forward", "[cuda]", RowMajor, ColMajor) {
  Call<TestType> t;
  using Tensor4 = typename TestType::Tensor4;
  const auto expected = t.expected();

  Tensor4 y = t.output();
  typename Call<TestType>::Map4 map(y.data(), y.dimensions());
  map.device(t.bare) = t.attention(t.q, t.k, t.v, t.mix).with(t.forward);
  CHECK(error(memory_of(y), expected) < tolerance);
  CHECK(t.forward.is_intact());
  CHECK(!t.was_idle());

  // The device's own workspace; maps of const tensors, and views.
  const typename Call<TestType>::ConstMap4 q(t.q.data(), t.q.dimensions());
  Tensor4 z = t.output();
  z.device(t.with(t.forward)) = t.attention(q, t.key_view(), t.v, t.mix);
  CHECK(memory_of(z) == memory_of(y));

  // The expression's workspace comes before the device's.
  const GuardedWorkspace small(64);
  z = t.output();
  z.device(t.with(small)) = t.attention(t.q, t.k, t.v, t.mix).with(t.forward);
  CHECK(memory_of(z) == memory_of(y));
  CHECK(small.is_intact());
}

TEMPLATE_TEST_CASE("cuda expressions: gradients, overwritten and added to", "[cuda]", RowMajor,
                   ColMajor) {
  Call<TestType> t;
  const auto before = Targets<TestType>().memory();
  const auto overwritten = expected_gradients(t, before, Update::overwrite);
  const auto accumulated = expected_gradients(t, before, Update::accumulate);

  Targets<TestType> g;
  mhla::gradients(g.dq, g.dk, g.dv, g.dmix).device(t.bare) =
      t.attention.backward(t.q, t.k, t.v, t.mix, t.dy).with(t.backward);
  g.require(overwritten);
  CHECK(t.backward.is_intact());

  Targets<TestType> h;
  mhla::gradients(h.dq, h.dk, h.dv, h.dmix).device(t.with(t.backward)) +=
      t.attention.backward(t.q, t.k, t.v, t.mix, t.dy);
  h.require(accumulated);
}

TEST_CASE("cuda expressions: tensors of 16 bits give the bits of the core", "[cuda]") {
  const auto check = [](auto zero) {
    using Scalar = decltype(zero);
    using Core = mhla::eigen::Storage<Scalar>;
    using Tensor4 = Eigen::Tensor<Scalar, 4, Eigen::RowMajor>;
    const test::Tensors<float, Eigen::RowMajor> t;
    const Tensor4 q = t.q.cast<Scalar>();
    const Tensor4 k = t.k.cast<Scalar>();
    const Tensor4 v = t.v.cast<Scalar>();
    const Tensor4 dy = t.dy.cast<Scalar>();
    cublasContext machine;
    const CudaDevice bare(nullptr, &machine);
    const Index bytes = mhla::backward_workspace_size<Scalar>(t.attention, t.shape(), bare);
    REQUIRE(bytes == mhla::backward_workspace_size<Core>(t.attention, t.shape(), bare));
    REQUIRE(bytes >= mhla::forward_workspace_size<Scalar>(t.attention, t.shape(), bare));
    CHECK(mhla::explain<Scalar>(t.attention, t.shape(), bare) ==
          mhla::explain<Core>(t.attention, t.shape(), bare));
    const GuardedWorkspace workspace(bytes);
    const CudaDevice device(nullptr, &machine, workspace);
    const auto core = [](const Tensor4& tensor) {
      return mhla::storage_view(mhla::make_view(tensor.data(), tensor.dimension(0),
                                                tensor.dimension(1), tensor.dimension(2),
                                                tensor.dimension(3)));
    };
    const auto target = [](Tensor4& tensor) {
      return mhla::storage_view(mhla::make_view(tensor.data(), tensor.dimension(0),
                                                tensor.dimension(1), tensor.dimension(2),
                                                tensor.dimension(3)));
    };
    const auto same_bits = [](const auto& a, const auto& b) {
      return std::memcmp(a.data(), b.data(),
                         static_cast<std::size_t>(a.size()) * sizeof(*a.data())) == 0;
    };

    Tensor4 y = dy;
    Tensor4 expected = dy;
    mhla::forward_into(t.attention, device, core(q), core(k), core(v), t.mix_view(),
                       target(expected), workspace);
    y.device(device) = t.attention(q, k, v, t.mix);
    CHECK(same_bits(y, expected));
    CHECK(!same_bits(y, dy));
    const mhla::CudaPlan plan = mhla::plan<Scalar>(t.attention, t.shape(), bare);
    CHECK(plan.forward_workspace_size() ==
          mhla::forward_workspace_size<Scalar>(t.attention, t.shape(), bare));
    Tensor4 planned = dy;
    planned.device(device.with(plan)) = t.attention(q, k, v, t.mix);
    CHECK(same_bits(planned, expected));

    Tensor4 dq = q, dk = k, dv = v, expected_dq = q, expected_dk = k, expected_dv = v;
    auto dmix = t.mix;
    auto expected_dmix = t.mix;
    mhla::backward_into(t.attention, device, core(q), core(k), core(v), t.mix_view(), core(dy),
                        {target(expected_dq), target(expected_dk), target(expected_dv),
                         mhla::make_view(expected_dmix.data(), 6, 3, 5)},
                        Update::overwrite, workspace);
    mhla::gradients(dq, dk, dv, dmix).device(device) = t.attention.backward(q, k, v, t.mix, dy);
    CHECK(same_bits(dq, expected_dq));
    CHECK(same_bits(dk, expected_dk));
    CHECK(same_bits(dv, expected_dv));
    CHECK(same_bits(dmix, expected_dmix));
    CHECK(!same_bits(dq, q));
    CHECK(workspace.is_intact());
  };
  check(Eigen::bfloat16());
  check(Eigen::half());
}

TEST_CASE("cuda expressions: what is wrong is thrown before anything is launched", "[cuda]") {
  Call<RowMajor> t;
  using Tensor4 = RowMajor::Tensor4;
  const CudaDevice device = t.with(t.backward);
  Tensor4 y = t.output();
  const auto untouched = memory_of(y);
  Targets<RowMajor> g;
  const auto before = g.memory();
  const auto forward = t.attention(t.q, t.k, t.v, t.mix);
  const auto backward = t.attention.backward(t.q, t.k, t.v, t.mix, t.dy);
  const auto number = [](Index n) { return std::to_string(n); };
  const Index forward_bytes = mhla::forward_workspace_size<double>(t.attention, t.shape(), device);
  const Index backward_bytes =
      mhla::backward_workspace_size<double>(t.attention, t.shape(), device);

  SECTION("no workspace") {
    CHECK(says(error_message<WorkspaceError>([&] { y.device(t.bare) = forward; }),
               "attention(q, k, v, mix) on a CudaDevice", number(forward_bytes)));
    CHECK(says(error_message<WorkspaceError>(
                   [&] { mhla::gradients(g.dq, g.dk, g.dv, g.dmix).device(t.bare) = backward; }),
               "attention.backward(q, k, v, mix, dy) on a CudaDevice", number(backward_bytes)));
  }
  SECTION("too small a workspace, or one at an odd address") {
    const GuardedWorkspace small(forward_bytes - 64);
    CHECK(says(error_message<WorkspaceError>([&] { y.device(t.with(small)) = forward; }),
               number(forward_bytes), number(forward_bytes - 64)));
    CHECK(says(error_message<WorkspaceError>([&] { y.device(device) = forward.with(small); }),
               number(forward_bytes)));
    CHECK(says(error_message<WorkspaceError>([&] {
                 mhla::gradients(g.dq, g.dk, g.dv, g.dmix).device(t.with(small)) += backward;
               }),
               number(backward_bytes)));
    mhla::WorkspaceView odd = t.backward;
    odd.data += 8;
    CHECK(says(error_message<WorkspaceError>([&] { y.device(t.with(odd)) = forward; }),
               "multiple of 64"));
    CHECK(small.is_intact());
  }
  SECTION("shapes") {
    Tensor4 other(2, 6, 19, 9);
    CHECK(says(error_message<ShapeError>([&] { other.device(device) = forward; }), "y", "tokens",
               "19", "20"));
    CHECK(says(
        error_message<ShapeError>([&] { y.device(device) = t.attention(t.q, t.v, t.v, t.mix); }),
        "k: axis key_dim is 9 but must be 8"));
    CHECK(says(error_message<ShapeError>(
                   [&] { mhla::gradients(g.dk, g.dq, g.dv, g.dmix).device(device) = backward; }),
               "dq: axis heads is 3 but must be 6"));
    // A shape that does not fit is said before a workspace is asked for.
    CHECK(says(
        error_message<ShapeError>([&] { y.device(t.bare) = t.attention(t.q, t.v, t.v, t.mix); }),
        "k: axis key_dim"));
  }
  SECTION("memory that is shared") {
    Tensor4 x = t.output();
    const auto same = memory_of(x);
    const mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D> itself{.blocks = {.block = 7}};
    CHECK(says(error_message<ShapeError>([&] {
                 x.device(device) = itself(x, x, x, mhla::make_view(t.mix.data(), 1, 3, 3));
               }),
               "y: shares memory with q;"));
    CHECK(memory_of(x) == same);
    CHECK(says(error_message<ShapeError>(
                   [&] { mhla::gradients(g.dq, t.k, g.dv, g.dmix).device(device) = backward; }),
               "dk: shares memory with"));
    CHECK(says(error_message<ShapeError>([&] {
                 mhla::gradients(g.dq, g.dk, g.dk, g.dmix).device(device) =
                     t.attention.backward(t.q, t.k, t.k, t.mix, t.q);
               }),
               "dk: shares memory with"));
  }
  SECTION("a state in host memory") {
    mhla::ForwardState<double> state;
    CHECK(says(error_message<mhla::StateError>([&] { y.device(device) = forward.save(state); }),
               "host memory"));
    CHECK(says(error_message<mhla::StateError>([&] {
                 mhla::gradients(g.dq, g.dk, g.dv, g.dmix).device(device) = backward.saved(state);
               }),
               "host memory"));
  }
  SECTION("a plan for the CPU") {
    auto plan = mhla::plan<double>(t.attention, t.shape(), mhla::SerialExecutor{});
    CHECK(says(
        error_message<mhla::StateError>([&] { y.device(device) = plan(t.q, t.k, t.v, t.mix); }),
        "runs on the CPU"));
    CHECK(says(error_message<mhla::StateError>([&] {
                 mhla::gradients(g.dq, g.dk, g.dv, g.dmix).device(device) =
                     plan.backward(t.q, t.k, t.v, t.mix, t.dy);
               }),
               "runs on the CPU"));
  }
  CHECK(t.was_idle());
  CHECK(memory_of(y) == untouched);
  g.require(before);
}
