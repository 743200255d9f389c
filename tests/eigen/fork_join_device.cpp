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
