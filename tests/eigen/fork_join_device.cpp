// SPDX-License-Identifier: MIT
// Expressions on a ForkJoinDevice: on the threads of the team, with the bits of a DefaultDevice.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <mhla/attention.hpp>
#include <mhla/eigen/fork_join_device.hpp>
#include <thread>
#include <type_traits>

#include "tests/eigen/tensors.hpp"
#include "tests/support/allocation_counter.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"
#include "tests/support/whole_team.hpp"

using namespace mhla;
using test::memory_of;

static_assert(std::is_same_v<mhla::eigen::DeviceExecutor<ForkJoinDevice>, mhla::ExecutorRef>);
static_assert(!std::is_convertible_v<const ForkJoin&, ForkJoinDevice>);

namespace {

// Threads that wait for each other where they first meet a feature map: what they compute ends only
// where so many threads take part, or without them after a while.
class Meeting {
 public:
  explicit Meeting(int threads) {
    arrived = 0;
    awaited = threads;
    ++number;
  }
  ~Meeting() { awaited = 0; }

  bool took_place() const { return arrived >= awaited; }

  static void attend() {
    if (awaited == 0) return;
    static thread_local int attended = 0;
    if (attended == number) return;
    attended = number;
    ++arrived;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (arrived < awaited && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }

 private:
  static inline std::atomic<int> arrived{0}, awaited{0}, number{0};
};

struct WatchedRelu {
  template <class T>
  T value(T x) const {
    Meeting::attend();
    return x < T(0) ? T(0) : x;
  }
  template <class T>
  T derivative(T x) const {
    return x < T(0) ? T(0) : T(1);
  }
};

const mhla::Attention<WatchedRelu, mhla::Blocks1D> attention{.blocks = {.block = 7},
                                                             .key_blocks = {.block = 5}};

// Destinations shaped as q, k, v and mix, filled with something else.
template <class Case>
struct Targets {
  using T = typename Case::Scalar;

  typename Case::Tensor4 dq = test::tensor<T, Case::layout>(21, 2, 6, 20, 8);
  typename Case::Tensor4 dk = test::tensor<T, Case::layout>(22, 2, 3, 22, 8);
  typename Case::Tensor4 dv = test::tensor<T, Case::layout>(23, 2, 3, 22, 9);
  typename Case::Tensor3 dmix = test::tensor<T, Case::layout>(24, 6, 3, 5);

  auto all() { return mhla::gradients(dq, dk, dv, dmix); }

  bool operator==(const Targets& other) const {
    return memory_of(dq) == memory_of(other.dq) && memory_of(dk) == memory_of(other.dk) &&
           memory_of(dv) == memory_of(other.dv) && memory_of(dmix) == memory_of(other.dmix);
  }
};

using RowMajor = test::Tensors<float, Eigen::RowMajor>;
using ColMajor = test::Tensors<float, Eigen::ColMajor>;

const Eigen::DefaultDevice serial;

// Calls f with the device of a team of 1, 2 and 3 threads.
template <class F>
void on_every_team(F&& f) {
  for (const int threads : {1, 2, 3}) {
    CAPTURE(threads);
    const ForkJoin team(threads);
    f(ForkJoinDevice(team));
  }
}

}  // namespace

TEST_CASE("fork-join device: attention runs on the threads of the team", "[eigen]") {
  const RowMajor t;
  RowMajor::Tensor4 y = t.output();
  Targets<RowMajor> g;
  for (const int threads : {1, 2, 3}) {
    CAPTURE(threads);
    const ForkJoin team(threads);
    const ForkJoinDevice device(team);
    REQUIRE(&device.team() == &team);
    {
      const Meeting meeting(threads);
      y.device(device) = attention(t.q, t.k, t.v, t.mix);
      CHECK(meeting.took_place());
    }
    {
      const Meeting meeting(threads);
      y.device(device) = t.x + attention(t.q, t.k, t.v, t.mix);
      CHECK(meeting.took_place());
    }
    {
      const Meeting meeting(threads);
      g.all().device(device) = attention.backward(t.q, t.k, t.v, t.mix, t.dy);
      CHECK(meeting.took_place());
    }
  }
}

TEST_CASE("fork-join device: forward, plain and into every kind of destination", "[eigen]") {
  using Tensor4 = RowMajor::Tensor4;
  const RowMajor t;
  Tensor4 expected = t.output();
  expected.device(serial) = attention(t.q, t.k, t.v, t.mix);

  on_every_team([&](const ForkJoinDevice& device) {
    Tensor4 y = t.output();
    y.device(device) = attention(t.q, t.k, t.v, t.mix);
    CHECK(memory_of(y) == memory_of(expected));

    Tensor4 z = tokens_first(t.output());
    tokens_first(z).device(device) = attention(t.q, t.k, t.v, t.mix);
    const Tensor4 back = tokens_first(z);
    CHECK(memory_of(back) == memory_of(expected));

    // Not in one piece: a temporary, and its copy.
    Tensor4 longer(2, 6, 30, 9), expected_longer(2, 6, 30, 9);
    longer.setZero();
    expected_longer.setZero();
    const Eigen::array<Eigen::Index, 4> first{{0, 0, 3, 0}};
    longer.slice(first, y.dimensions()).device(device) = attention(t.q, t.k, t.v, t.mix);
    expected_longer.slice(first, y.dimensions()) = expected;
    CHECK(memory_of(longer) == memory_of(expected_longer));
  });
}

TEST_CASE("fork-join device: forward, part of an expression", "[eigen]") {
  using Tensor4 = RowMajor::Tensor4;
  const RowMajor t;
  Tensor4 expected = t.output();
  expected.device(serial) = t.x + attention(t.q, t.k, t.v, t.mix) * 0.5f;
  // 135 elements, which no packet divides.
  const Eigen::array<Eigen::Index, 4> first{{1, 2, 4, 0}}, odd{{1, 3, 5, 9}};
  Tensor4 expected_odd(odd);
  expected_odd.device(serial) =
      t.x.slice(first, odd) - attention(t.q, t.k, t.v, t.mix).slice(first, odd);
  Eigen::Tensor<float, 0, Eigen::RowMajor> expected_sum;
  expected_sum.device(serial) = attention(t.q, t.k, t.v, t.mix).sum();

  on_every_team([&](const ForkJoinDevice& device) {
    Tensor4 y = t.output();
    y.device(device) = t.x + attention(t.q, t.k, t.v, t.mix) * 0.5f;
    CHECK(memory_of(y) == memory_of(expected));

    y = t.x;
    y.device(device) += attention(t.q, t.k, t.v, t.mix) * 0.5f;
    CHECK(memory_of(y) == memory_of(expected));

    Tensor4 small(odd);
    small.setZero();
    small.device(device) =
        t.x.slice(first, odd) - attention(t.q, t.k, t.v, t.mix).slice(first, odd);
    CHECK(memory_of(small) == memory_of(expected_odd));

    Eigen::Tensor<float, 0, Eigen::RowMajor> sum;
    sum.device(device) = attention(t.q, t.k, t.v, t.mix).sum();
    CHECK(sum() == expected_sum());
  });
}

TEST_CASE("fork-join device: forward, over an operand and of lazy operands", "[eigen]") {
  using Tensor4 = RowMajor::Tensor4;
  const RowMajor t;
  const Tensor4 start = t.output();
  const Tensor4 k = test::tensor<float, Eigen::RowMajor>(1, 2, 3, 22, 9);
  Tensor4 expected_in_place = start, expected = start;
  expected_in_place.device(serial) = attention(start, k, t.v, t.mix);
  expected.device(serial) = attention(t.q * 2.f, t.k, t.v, t.mix * 3.f);

  on_every_team([&](const ForkJoinDevice& device) {
    Tensor4 y = start;
    y.device(device) = attention(y, k, t.v, t.mix);
    CHECK(memory_of(y) == memory_of(expected_in_place));

    y = start;
    y.device(device) = attention(t.q * 2.f, t.k, t.v, t.mix * 3.f);
    CHECK(memory_of(y) == memory_of(expected));
  });
}

TEST_CASE("fork-join device: gradients, replaced and added", "[eigen]") {
  const RowMajor t;
  const auto backward = attention.backward(t.q, t.k, t.v, t.mix, t.dy);
  Targets<RowMajor> replaced, added, over_an_operand;
  replaced.all().device(serial) = backward;
  added.all().device(serial) += backward;
  REQUIRE_FALSE(replaced == added);
  RowMajor::Tensor4 q = t.q;
  over_an_operand.dq = replaced.dq;
  over_an_operand.dk = replaced.dk;

  on_every_team([&](const ForkJoinDevice& device) {
    Targets<RowMajor> g;
    g.all().device(device) = backward;
    CHECK(g == replaced);

    Targets<RowMajor> h;
    h.all().device(device) += backward;
    CHECK(h == added);

    // dq takes the memory of q; two are not wanted.
    Targets<RowMajor> some;
    some.dq = t.q;
    mhla::gradients(some.dq, some.dk, skip, skip).device(device) =
        attention.backward(some.dq, t.k, t.v, t.mix, t.dy);
    CHECK(some == over_an_operand);
  });
}

TEST_CASE("fork-join device: ColMajor, with a saved state", "[eigen]") {
  const ColMajor t;
  ColMajor::Tensor4 expected = t.output(), expected_sum = expected;
  mhla::ForwardState<float> state;
  const auto backward = attention.backward(t.q, t.k, t.v, t.mix, t.dy);
  expected.device(serial) = attention(t.q, t.k, t.v, t.mix);
  expected_sum = expected + t.x;
  Targets<ColMajor> added;
  added.all().device(serial) += backward;

  on_every_team([&](const ForkJoinDevice& device) {
    ColMajor::Tensor4 y = t.output();
    y.device(device) = attention(t.q, t.k, t.v, t.mix).save(state);
    CHECK(memory_of(y) == memory_of(expected));
    Targets<ColMajor> g;
    g.all().device(device) += backward.saved(state);
    CHECK(g == added);
    y.device(device) = attention(t.q, t.k, t.v, t.mix) + t.x;
    CHECK(memory_of(y) == memory_of(expected_sum));
  });
}

TEST_CASE("fork-join device: with a workspace nothing is allocated", "[eigen]") {
  const RowMajor t;
  RowMajor::Tensor4 y = t.output();
  Targets<RowMajor> g;
  on_every_team([&](const ForkJoinDevice& device) {
    const ForkJoin& team = device.team();
    const mhla::Workspace forward(mhla::forward_workspace_size<float>(attention, t.shape(), team));
    const mhla::Workspace backward(
        mhla::backward_workspace_size<float>(attention, t.shape(), team));
    wait_for_whole_team(team);
    const AllocationCounter counter;
    y.device(device) = attention(t.q, t.k, t.v, t.mix).with(forward);
    g.all().device(device) = attention.backward(t.q, t.k, t.v, t.mix, t.dy).with(backward);
    g.all().device(device) += attention.backward(t.q, t.k, t.v, t.mix, t.dy).with(backward);
    CHECK(counter.allocations() == 0);
    y.device(device) = attention(t.q, t.k, t.v, t.mix);
    CHECK(counter.allocations() == 1);  // the workspace
  });
}

TEST_CASE("fork-join device: what is wrong is thrown, and the team works on", "[eigen]") {
  const RowMajor t;
  const ForkJoin team(3);
  const ForkJoinDevice device(team);
  RowMajor::Tensor4 expected = t.output();
  expected.device(serial) = attention(t.q, t.k, t.v, t.mix);

  RowMajor::Tensor4 shorter = test::tensor<float, Eigen::RowMajor>(7, 2, 6, 19, 9);
  const auto before = memory_of(shorter);
  CHECK(says(error_message<mhla::ShapeError>(
                 [&] { shorter.device(device) = attention(t.q, t.k, t.v, t.mix); }),
             "y", "query tokens"));
  CHECK(memory_of(shorter) == before);
  // A workspace for one thread does not do for three.
  const mhla::Workspace small(
      mhla::forward_workspace_size<float>(attention, t.shape(), mhla::SerialExecutor()));
  RowMajor::Tensor4 y = t.output();
  CHECK_THROWS_AS((y.device(device) = attention(t.q, t.k, t.v, t.mix).with(small)),
                  mhla::WorkspaceError);
  CHECK(memory_of(y) == memory_of(t.output()));

  // A call from inside a task of the team.
  team.parallel_for(2, [&](mhla::Index task, mhla::Index) {
    if (task == 0) y.device(device) = attention(t.q, t.k, t.v, t.mix);
  });
  CHECK(memory_of(y) == memory_of(expected));
}
