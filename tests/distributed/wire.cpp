// SPDX-License-Identifier: MIT
// Summaries that travel as bfloat16: the same bits for any number of ranks, as near to exact ones
// as Precision::fast is; and those of Precision::fast.
#include <mhla/distributed.hpp>
#include <mutex>
#include <string>
#include <vector>

#include "tests/distributed/calls.hpp"
#include "tests/distributed/thread_ranks.hpp"
#include "tests/support/catch.hpp"

namespace {

using call::HostTensor;
using mhla::Index;
using mhla::Shape;
using parts::put_back;

// y and all gradients of a call, in one place.
template <class T>
struct Results {
  HostTensor<T, 4> y;
  call::Gradients<T> gradients;

  explicit Results(const call::Operands<T>& x) : y(x.dy), gradients(x) {
    for (Index i = 0; i < gradients.mix.view().size(); ++i) gradients.mix.view().element(i) = 0;
  }
};

// Values with a mean, whose rounding would show in gradients.
template <class T, class V>
call::Operands<T> operands(const V& attention, const Shape& shape) {
  auto x = call::operands<T>(attention, shape, 1);
  for (T& v : x.v.elements()) mhla::store(v, mhla::load(v) + 1);
  return x;
}

template <class T, class V>
Results<T> run(const V& attention, const Shape& shape, Index ranks, mhla::Wire wire) {
  const auto x = operands<T>(attention, shape);
  Results<T> whole(x);
  std::mutex mutex;
  for (const std::string& outcome : thread_ranks::run(ranks, [&](const auto& communicator) {
         distributed_calls::SharedCall<T, V> part(attention, shape, ranks, communicator.rank(), 0);
         part.local.v = distributed_calls::taken(x.v, part.key_tokens);
         const mhla::SerialExecutor executor;
         const auto layer = mhla::sequence_parallel<T>(attention, part.shape, communicator,
                                                       part.queries, part.keys, wire);
         auto y = part.local.dy;
         call::Gradients<T> gradients(part.local);
         std::vector<mhla::Accumulator<T>> memory(static_cast<std::size_t>(layer.kept_size()));
         const mhla::Span<mhla::Accumulator<T>> kept{memory.data(), layer.kept_size()};
         layer.forward(executor, part.operands(), y.view(),
                       call::poisoned_workspace(layer.forward_workspace_size(executor)), kept);
         layer.backward(executor, part.operands(), part.local.dy.view(), gradients.views(),
                        mhla::Update::overwrite,
                        call::poisoned_workspace(layer.backward_workspace_size(executor)), kept);
         const std::lock_guard<std::mutex> lock(mutex);
         put_back(y, part.query_tokens, whole.y);
         put_back(gradients.query, part.query_tokens, whole.gradients.query);
         put_back(gradients.key, part.key_tokens, whole.gradients.key);
         put_back(gradients.value, part.key_tokens, whole.gradients.value);
         for (Index i = 0; i < gradients.mix.view().size(); ++i)
           whole.gradients.mix.view().element(i) += gradients.mix.view().element(i);
       }))
    CHECK(outcome == "");
  return whole;
}

template <class T, class V>
void check(const V& attention, const Shape& shape, mhla::Wire wire = mhla::Wire::bfloat16) {
  auto one = run<T>(attention, shape, 1, wire);
  for (const Index ranks : {2, 5}) {
    auto several = run<T>(attention, shape, ranks, wire);
    CHECK(mhla::testing::bitwise_equal(one.y.view(), several.y.view()));
    call::check_same_bits(one.gradients, several.gradients);
  }
  auto as_exact = attention;
  as_exact.precision = mhla::Precision::exact;
  const auto x = operands<T>(attention, shape);
  const auto exact = call::forward(as_exact, x);
  const auto gradients = call::backward(as_exact, x);
  if (wire == mhla::Wire::bfloat16)
    CHECK_FALSE(mhla::testing::bitwise_equal(exact.view(), one.y.view()));
  constexpr double any = 1;
  call::check_close("y", one.y, exact, 3e-3, any);
  call::check_close("dq", one.gradients.query, gradients.query, 5e-3, any);
  call::check_close("dk", one.gradients.key, gradients.key, 5e-3, any);
  call::check_close("dv", one.gradients.value, gradients.value, 5e-3, any);
  call::check_close("dmix", one.gradients.mix, gradients.mix, 5e-3, any);
  if (attention.precision == mhla::Precision::exact) return;
  auto of_exact = run<T>(as_exact, shape, 2, wire);  // gradients take no sums that were rounded
  call::check_same_bits(one.gradients, of_exact.gradients);
}

}  // namespace

TEST_CASE("summaries as bfloat16") {
  using namespace mhla;
  SECTION("normalized") {
    check<float>(Attention<Relu, Blocks1D>{.blocks = {.block = 9}}, Shape{2, 4, 2, 100, 100, 8, 7});
  }
  SECTION("in double, not normalized, a matrix per head") {
    check<double>(Attention<Relu, Blocks1D, Bidirectional, Unnormalized>{.blocks = {.block = 9}},
                  Shape{2, 4, 2, 100, 100, 5, 7, 4});
  }
  SECTION("causal") {
    check<float>(Attention<Relu, Blocks1D, Causal>{.blocks = {.block = 9}},
                 Shape{2, 4, 2, 100, 100, 8, 7});
  }
  SECTION("of Precision::fast") {
    check<BFloat16>(Attention<Relu, Blocks1D>{.blocks = {.block = 9}, .precision = Precision::fast},
                    Shape{2, 4, 2, 100, 100, 34, 33}, Wire::exact);
  }
  SECTION("an image") {
    check<float>(Attention<Relu, Blocks2D>{.blocks = {.grid = {11, 13}, .block = {3, 4}}},
                 Shape{1, 2, 2, 143, 143, 16, 8});
  }
}
