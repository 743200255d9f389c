// SPDX-License-Identifier: MIT
// What is wrong is thrown before anything is evaluated, allocated or written, in release builds
// too: Eigen's own checks are off here.
#ifndef NDEBUG
#define NDEBUG
#endif
#define EIGEN_USE_THREADS
#include <mhla/attention.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/eigen/tensors.hpp"
#include "tests/support/allocation_counter.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace mhla;
using test::memory_of;
using test::on_every_device;

using Tensors = test::Tensors<float, Eigen::RowMajor>;
using Tensor4 = Tensors::Tensor4;
using Tensor3 = Tensors::Tensor3;

// A lazy operand that counts how often it is evaluated.
struct Counted {
  int* evaluations;
  float operator()(float x) const {
    ++*evaluations;
    return x;
  }
};

// A lazy operand that fails halfway.
struct Failing {
  int* left;
  float operator()(float x) const {
    if (--*left < 0) throw std::runtime_error("the operand fails");
    return x;
  }
};

}  // namespace

TEST_CASE("errors: a destination of another shape", "[eigen]") {
  const Tensors t;
  int evaluations = 0;
  on_every_device([&](const auto& device) {
    const auto assign = [&](Tensor4& y) {
      return error_message<ShapeError>([&] {
        y.device(device) = t.attention(t.q.unaryExpr(Counted{&evaluations}), t.k, t.v, t.mix);
      });
    };
    const auto require_untouched = [&](Tensor4 y, const char* axis, const char* got,
                                       const char* expected) {
      const auto before = memory_of(y);
      const std::string message = assign(y);
      INFO(message);
      CHECK(says(message, "mhla: y: axis ", axis, got, expected));
      CHECK(memory_of(y) == before);
    };
    require_untouched(test::tensor<float, Eigen::RowMajor>(1, 3, 6, 20, 9), "batch", "is 3",
                      "must be 2");
    require_untouched(test::tensor<float, Eigen::RowMajor>(1, 2, 3, 20, 9), "heads", "is 3",
                      "must be 6");
    require_untouched(test::tensor<float, Eigen::RowMajor>(1, 2, 6, 22, 9), "tokens", "is 22",
                      "must be 20");
    require_untouched(test::tensor<float, Eigen::RowMajor>(1, 2, 6, 20, 8), "dim", "is 8",
                      "must be 9");
    require_untouched(Tensor4(), "batch", "is 0", "must be 2");

    // Axes in the wrong order, tokens_first where it does not belong, and a slice too small.
    require_untouched(test::tensor<float, Eigen::RowMajor>(1, 2, 20, 6, 9), "heads", "is 20",
                      "must be 6");
    Tensor4 y = t.output();
    CHECK_THROWS_AS(mhla::tokens_first(y).device(device) = t.attention(t.q, t.k, t.v, t.mix),
                    ShapeError);
    const Eigen::array<Eigen::Index, 4> offsets{{0, 0, 0, 0}};
    const Eigen::array<Eigen::Index, 4> extents{{2, 6, 19, 9}};
    CHECK_THROWS_AS(y.slice(offsets, extents).device(device) = t.attention(t.q, t.k, t.v, t.mix),
                    ShapeError);
    CHECK(memory_of(y) == memory_of(t.output()));
  });
  Eigen::TensorMap<Tensor4> map(nullptr, 2, 6, 20, 8);
  CHECK_THROWS_AS(map = t.attention(t.q, t.k, t.v, t.mix), ShapeError);
  CHECK(evaluations == 0);
}

TEST_CASE("errors: `tensor = expression` leaves the tensor alone where it throws", "[eigen]") {
  const Tensors t;
  const Tensor4 k = test::tensor<float, Eigen::RowMajor>(1, 3, 3, 22, 8);
  std::vector<char> bytes(sizeof(float) * 2 * 3 * 22 * 9 + 1);
  const auto misaligned =
      mhla::make_view(reinterpret_cast<const float*>(bytes.data() + 1), 2, 3, 22, 9);
  const mhla::Workspace memory(64);
  const auto refused = [&](auto error, const auto& expression) {
    Tensor4 y = test::tensor<float, Eigen::RowMajor>(1, 3, 1, 2, 2);
    const auto before = memory_of(y);
    const float* const data = y.data();
    CHECK_THROWS_AS(y = expression(y), decltype(error));
    CHECK(y.dimension(0) == 3);
    CHECK(y.data() == data);
    CHECK(memory_of(y) == before);
    CHECK_THROWS_AS(y = expression(y) * 2.f + t.x, decltype(error));
    CHECK(y.dimension(0) == 3);
    CHECK(memory_of(y) == before);
  };
  int left = 0;
  refused(ShapeError(""), [&](auto&) { return t.attention(t.q, k, t.v, t.mix); });
  refused(ShapeError(""), [&](auto& y) { return t.attention(t.q, t.k, y, t.mix); });
  refused(ShapeError(""), [&](auto&) { return t.attention(t.q, t.k, misaligned, t.mix); });
  refused(WorkspaceError(""),
          [&](auto&) { return t.attention(t.q, t.k, t.v, t.mix).with(memory); });
  refused(std::runtime_error(""),
          [&](auto&) { return t.attention(t.q, t.k, t.v.unaryExpr(Failing{&left}), t.mix); });
}

TEST_CASE("errors: gradients of another shape, or over each other", "[eigen]") {
  const Tensors t;
  int evaluations = 0;
  const auto random = [](auto... extents) {
    return test::tensor<float, Eigen::RowMajor>(1, extents...);
  };
  on_every_device([&](const auto& device) {
    const auto message_of = [&](auto&& dq, auto&& dk, auto&& dv, auto&& dmix) {
      return error_message<ShapeError>([&] {
        mhla::gradients(dq, dk, dv, dmix).device(device) =
            t.attention.backward(t.q, t.k, t.v, t.mix, t.dy.unaryExpr(Counted{&evaluations}));
      });
    };
    Tensor4 dq = t.q;
    Tensor4 dk = t.k;
    Tensor4 dv = t.v;
    Tensor3 dmix = t.mix;
    Tensor4 wrong = random(2, 6, 20, 9);
    CHECK(says(message_of(wrong, dk, dv, dmix), "dq: axis dim is 9", "8", "the shape of q"));
    CHECK(says(message_of(dq, wrong, dv, dmix), "dk: axis heads is 6", "3", "the shape of k"));
    CHECK(says(message_of(dq, dk, wrong, dmix), "dv: axis heads is 6", "3", "the shape of v"));
    wrong = random(2, 6, 22, 8);
    CHECK(says(message_of(wrong, dk, dv, dmix), "dq: axis tokens is 22", "20"));
    Tensor3 mix = random(5, 3, 5);
    CHECK(says(message_of(dq, dk, dv, mix), "dmix: axis heads is 5", "6"));
    mix = random(6, 5, 5);
    CHECK(says(message_of(dq, dk, dv, mix), "dmix: axis query blocks is 5", "3"));
    mix = random(6, 3, 3);
    CHECK(says(message_of(dq, dk, dv, mix), "dmix: axis key blocks is 3", "5"));
    Tensors::Tensor2 matrix = random(3, 5);
    CHECK(says(message_of(dq, dk, dv, matrix), "dmix: axis heads is 1", "6"));
    Tensor4 empty;
    CHECK(says(message_of(empty, dk, dv, dmix), "dq: axis batch is 0", "2"));
    CHECK(empty.size() == 0);

    // Two gradients that share an element, at the far end of one and the beginning of the other.
    std::vector<float> buffer(4000);
    Eigen::TensorMap<Tensor4> first(buffer.data(), t.k.dimensions());
    Eigen::TensorMap<Tensor4> second(buffer.data() + t.k.size() - 1, t.v.dimensions());
    CHECK(says(message_of(dq, first, second, dmix), "dk: shares memory with dv"));
    CHECK(says(message_of(skip, first, second, skip), "dk: shares memory with dv"));
    Eigen::TensorMap<Tensor3> third(buffer.data() + 7, t.mix.dimensions());
    CHECK(says(message_of(skip, skip, first, third), "dv: axis dim is 8"));
    CHECK(says(message_of(skip, first, skip, third), "dk: shares memory with dmix"));

    // An expanded axis gives two elements one address.
    mhla::TensorView<float, 4> expanded = mhla::make_view(buffer.data(), 2, 6, 20, 8);
    expanded.stride[0] = 0;
    CHECK(says(message_of(expanded, dk, dv, dmix), "dq: the strides"));

    const Tensor4 dy = random(2, 6, 20, 8);
    CHECK(says(error_message<ShapeError>([&] {
                 mhla::gradients(dq, dk, dv, dmix).device(device) =
                     t.attention.backward(t.q, t.k, t.v, t.mix, dy);
               }),
               "dy: axis dim is 8", "9"));

    CHECK(memory_of(dq) == memory_of(t.q));
    CHECK(memory_of(dk) == memory_of(t.k));
    CHECK(memory_of(dv) == memory_of(t.v));
    CHECK(memory_of(dmix) == memory_of(t.mix));
    CHECK(buffer == std::vector<float>(4000));
  });
  CHECK(evaluations == 0);
}

TEST_CASE("errors: calls that a plan is not for", "[eigen]") {
  const Tensors t;
  int evaluations = 0;
  const auto q = t.q.unaryExpr(Counted{&evaluations});
  Tensor4 y = t.output();
  Tensor4 dk = t.k;
  const auto refuse = [&](auto& plan, const char* why) {
    const std::string messages[] = {
        error_message<ShapeError>([&] { y = plan(q, t.k, t.v, t.mix); }),
        error_message<ShapeError>([&] {
          mhla::gradients(skip, dk, skip, skip) = plan.backward(q, t.k, t.v, t.mix, t.dy);
        })};
    INFO(messages[0] << messages[1]);
    CHECK(says(messages[0], "mhla: CpuPlan", why));
    CHECK(says(messages[1], "mhla: CpuPlan", why));
    CHECK(evaluations == 0);
    CHECK(memory_of(y) == memory_of(t.output()));
    CHECK(memory_of(dk) == memory_of(t.k));
  };
  Shape other = t.shape();
  other.batch = 3;
  auto plan = mhla::plan<float>(t.attention, other, SerialExecutor{});
  refuse(plan, "planned shape");
  const auto moved = std::move(plan);
  refuse(plan, "moved from");  // NOLINT
  plan = mhla::plan<float>(t.attention, t.shape(), SerialExecutor{}, PlannedPasses::forward);
  y = plan(q, t.k, t.v, t.mix);
  CHECK(memory_of(y) == t.expected());
  evaluations = 0;
  CHECK(says(error_message<ShapeError>([&] {
               mhla::gradients(skip, dk, skip, skip) = plan.backward(q, t.k, t.v, t.mix, t.dy);
             }),
             "PlannedPasses::forward"));
  CHECK(memory_of(dk) == memory_of(t.k));
  CHECK(evaluations == 0);
}

TEST_CASE("errors: a run that throws leaks nothing and changes nothing", "[eigen]") {
  const Tensors t;
  const Eigen::DefaultDevice device;
  Tensor4 y = t.output();
  Tensor4 dq = t.q;
  const auto before = memory_of(y);
  const auto live_after = [&](const auto& run) {
    int left = 50;
    const AllocationCounter counter;
    bool thrown = false;
    try {
      run(Failing{&left});
    } catch (const std::exception&) {
      thrown = true;
    }
    const long live = counter.live();
    CHECK(thrown);
    CHECK(memory_of(y) == before);
    CHECK(memory_of(dq) == memory_of(t.q));
    return live;
  };

  // The operand that fails comes last, when the others have their temporaries.
  CHECK(live_after([&](Failing failing) {
          y.device(device) = t.attention(t.q * 2.f, t.k * 2.f, t.v.unaryExpr(failing), t.mix);
        }) == 0);
  CHECK(live_after([&](Failing failing) {
          y.device(device) = t.attention(t.q, t.k, t.v, t.mix) * 2.f +
                             t.attention(t.q * 2.f, t.k, t.v.unaryExpr(failing), t.mix);
        }) == 0);
  CHECK(live_after([&](Failing failing) {
          y.device(device) = t.attention(t.attention(t.q * 2.f, t.k, t.v.unaryExpr(failing), t.mix),
                                         t.v, t.v, t.mix);
        }) == 0);
  CHECK(live_after([&](Failing failing) {
          y.slice(Eigen::array<Eigen::Index, 4>{{0, 0, 0, 0}}, t.x.dimensions()).device(device) =
              t.attention(t.q * 2.f, t.k * 2.f, t.v, t.mix.unaryExpr(failing));
        }) == 0);
  CHECK(live_after([&](Failing failing) {
          mhla::gradients(dq, skip, skip, skip) =
              t.attention.backward(t.q, t.k * 2.f, t.v * 2.f, t.mix, t.dy.unaryExpr(failing));
        }) == 0);
  // Wrong shapes.
  CHECK(live_after([&](Failing) {
          y.device(device) = t.attention(t.k * 2.f, t.k * 2.f, t.v * 2.f, t.mix);
        }) == 0);
  Tensor4 small(2, 6, 20, 8);
  CHECK(live_after([&](Failing) {
          small.device(device) = t.attention(t.q * 2.f, t.k * 2.f, t.v * 2.f, t.mix);
        }) == 0);
  CHECK(live_after([&](Failing) {
          const Tensor4 constructed = t.attention(t.k * 2.f, t.k * 2.f, t.v * 2.f, t.mix);
        }) == 0);
  CHECK(live_after([&](Failing) {
          mhla::gradients(dq, skip, small, skip) +=
              t.attention.backward(t.q * 2.f, t.k * 2.f, t.v * 2.f, t.mix, t.dy);
        }) == 0);
}

TEST_CASE("errors: an asynchronous assignment that throws still calls back", "[eigen]") {
  const Tensors t;
  Eigen::ThreadPool pool(2);
  const Eigen::ThreadPoolDevice device(&pool, 2);
  Tensor4 wrong = test::tensor<float, Eigen::RowMajor>(1, 2, 6, 20, 8);
  const auto before = memory_of(wrong);
  int calls = 0;
  const AllocationCounter counter;
  bool thrown = false;
  try {
    wrong.device(device, [&calls] { ++calls; }) = t.attention(t.q, t.k, t.v, t.mix);
  } catch (const ShapeError&) {
    thrown = true;
  }
  const long live = counter.live();
  CHECK(thrown);
  CHECK(live == 0);
  CHECK(calls == 1);
  CHECK(memory_of(wrong) == before);
}
