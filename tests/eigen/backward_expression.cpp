// SPDX-License-Identifier: MIT
// Every way to write the backward expression and its gradients gives the bits of the core.
#include <cstddef>
#include <mhla/attention.hpp>

#include "tests/eigen/tensors.hpp"
#include "tests/support/catch.hpp"

namespace {

using mhla::skip;
using mhla::Update;
using namespace test;

using FloatRowMajor = Tensors<float, Eigen::RowMajor>;
using DoubleColMajor = Tensors<double, Eigen::ColMajor>;
using LongDoubleRowMajor = Tensors<long double, Eigen::RowMajor>;

// Destinations shaped as q, k, v and mix, filled with something else.
template <class Case>
struct Targets {
  using T = typename Case::Scalar;

  typename Case::Tensor4 dq = test::tensor<T, Case::layout>(21, 2, 6, 20, 8);
  typename Case::Tensor4 dk = test::tensor<T, Case::layout>(22, 2, 3, 22, 8);
  typename Case::Tensor4 dv = test::tensor<T, Case::layout>(23, 2, 3, 22, 9);
  typename Case::Tensor3 dmix = test::tensor<T, Case::layout>(24, 6, 3, 5);

  Gradients<T> memory() const {
    return {memory_of(dq), memory_of(dk), memory_of(dv), memory_of(dmix)};
  }
  void require(const Gradients<T>& expected) const {
    CHECK(memory_of(dq) == expected.dq);
    CHECK(memory_of(dk) == expected.dk);
    CHECK(memory_of(dv) == expected.dv);
    CHECK(memory_of(dmix) == expected.dmix);
  }
};

}  // namespace

TEMPLATE_TEST_CASE("backward expression: overwrites and accumulates, on every device", "[eigen]",
                   FloatRowMajor, DoubleColMajor, LongDoubleRowMajor) {
  const TestType t;
  const Gradients<typename TestType::Scalar> before = Targets<TestType>().memory();
  const auto overwritten = expected_gradients(t, before, Update::overwrite);
  const auto accumulated = expected_gradients(t, before, Update::accumulate);
  REQUIRE(overwritten.dq != accumulated.dq);

  {
    Targets<TestType> g;
    mhla::gradients(g.dq, g.dk, g.dv, g.dmix) = t.attention.backward(t.q, t.k, t.v, t.mix, t.dy);
    g.require(overwritten);
  }
  {
    Targets<TestType> g;
    mhla::gradients(g.dq, g.dk, g.dv, g.dmix) += t.attention.backward(t.q, t.k, t.v, t.mix, t.dy);
    g.require(accumulated);
  }
  on_device_of<Eigen::ColMajor, TestType>([&](const auto& device) {
    Targets<TestType> g;
    mhla::gradients(g.dq, g.dk, g.dv, g.dmix).device(device) =
        t.attention.backward(t.q, t.k, t.v, t.mix, t.dy);
    g.require(overwritten);
    Targets<TestType> h;
    mhla::gradients(h.dq, h.dk, h.dv, h.dmix).device(device) +=
        t.attention.backward(t.q, t.k, t.v, t.mix, t.dy);
    h.require(accumulated);
  });
}

TEMPLATE_TEST_CASE("backward expression: writes maps, tokens first, views and a mix of rank 2",
                   "[eigen]", FloatRowMajor, DoubleColMajor) {
  using Scalar = typename TestType::Scalar;
  using Tensor4 = typename TestType::Tensor4;
  using mhla::tokens_first;
  TestType t;
  for (Eigen::Index i = 15; i < t.mix.size(); ++i) t.mix.data()[i] = t.mix.data()[i % 15];
  typename TestType::Tensor2 matrix = test::tensor<Scalar, TestType::layout>(0, 3, 5);
  std::copy(t.mix.data(), t.mix.data() + 15, matrix.data());
  const auto before = Targets<TestType>().memory();

  for (const Update update : {Update::overwrite, Update::accumulate}) {
    // dmix of a shared matrix, by the core.
    auto expected = before;
    expected.dmix.resize(15);
    const mhla::SerialExecutor serial;
    const auto mix = mhla::make_view(matrix.data(), 1, 3, 5);
    const mhla::Shape shape = shape_of(t.query_view(), t.key_view(), t.value_view(), mix);
    const mhla::Workspace workspace(
        mhla::backward_workspace_size<Scalar>(t.attention, shape, serial));
    mhla::backward_into(t.attention, serial, t.query_view(), t.key_view(), t.value_view(), mix,
                        t.grad_output_view(),
                        {mhla::make_view(expected.dq.data(), 2, 6, 20, 8),
                         mhla::make_view(expected.dk.data(), 2, 3, 22, 8),
                         mhla::make_view(expected.dv.data(), 2, 3, 22, 9),
                         mhla::make_view(expected.dmix.data(), 1, 3, 5)},
                        update, workspace);

    Targets<TestType> g;
    typename TestType::Tensor2 dmatrix = matrix;
    std::copy(before.dmix.data(), before.dmix.data() + 15, dmatrix.data());
    Tensor4 dk = tokens_first(g.dk);
    const auto backward = t.attention.backward(t.q, t.k, t.v, matrix, t.dy);
    const mhla::TensorView<Scalar, 4> dv = mhla::make_view(g.dv.data(), 2, 3, 22, 9);
    auto targets = [&] {
      return mhla::gradients(Eigen::TensorMap<Tensor4>(g.dq.data(), g.dq.dimensions()),
                             tokens_first(dk), dv, dmatrix);
    };
    if (update == Update::overwrite) {
      targets() = backward;
    } else {
      targets() += backward;
    }
    g.dk = tokens_first(dk);
    CHECK(memory_of(g.dq) == expected.dq);
    CHECK(memory_of(g.dk) == expected.dk);
    CHECK(memory_of(g.dv) == expected.dv);
    CHECK(memory_of(dmatrix) == expected.dmix);

    // A view of rank 2, and views that interleave: dq and dk in one buffer.
    Memory<Scalar> dmix(before.dmix.data(), before.dmix.data() + 15);
    const mhla::TensorView<Scalar, 2> dmix_view = mhla::make_view(dmix.data(), 3, 5);
    if (update == Update::overwrite) {
      mhla::gradients(skip, skip, skip, dmix_view) = backward;
    } else {
      mhla::gradients(skip, skip, skip, dmix_view) += backward;
    }
    CHECK(dmix == expected.dmix);
  }
}

TEMPLATE_TEST_CASE("backward expression: a gradient over an operand goes through a temporary",
                   "[eigen]", FloatRowMajor, DoubleColMajor) {
  using Scalar = typename TestType::Scalar;
  const TestType t;
  on_device_of<Eigen::ColMajor, TestType>([&](const auto& device) {
    // dq over q, dk over k, dv over v and dmix over mix, all at once: accumulated, the operands
    // themselves are what the gradients are added to.
    Targets<TestType> over;
    over.dq = t.q;
    over.dk = t.k;
    over.dv = t.v;
    over.dmix = t.mix;
    const auto before = over.memory();
    const auto overwritten = expected_gradients(t, before, Update::overwrite);
    const auto accumulated = expected_gradients(t, before, Update::accumulate);
    Targets<TestType> g = over;
    mhla::gradients(g.dq, g.dk, g.dv, g.dmix).device(device) =
        t.attention.backward(g.dq, g.dk, g.dv, g.dmix, t.dy);
    g.require(overwritten);
    g = over;
    mhla::gradients(g.dq, g.dk, g.dv, g.dmix).device(device) +=
        t.attention.backward(g.dq, g.dk, g.dv, g.dmix, t.dy);
    g.require(accumulated);

    // dq over dy, of another shape and with its tokens first.
    Memory<Scalar> buffer = memory_of(t.dy);
    const Eigen::TensorMap<const typename TestType::Tensor4> dy(buffer.data(), t.dy.dimensions());
    typename TestType::Tensor4 tokens = mhla::tokens_first(t.q);
    Eigen::TensorMap<typename TestType::Tensor4> dq(buffer.data(), tokens.dimensions());
    mhla::gradients(mhla::tokens_first(dq), skip, skip, skip).device(device) =
        t.attention.backward(t.q, t.k, t.v, t.mix, dy);
    const typename TestType::Tensor4 heads = mhla::tokens_first(dq);
    CHECK(memory_of(heads) == overwritten.dq);
  });
}
