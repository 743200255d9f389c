// SPDX-License-Identifier: MIT
// What tests/cpu/structured_mixing.cpp, which is compiled for this backend too, does not see of
// structured mixings on a device: the CPU's results, in parts of the batch, by a mixing of one's
// own and from a saved state; exact workspaces; and what explain says.
#include <algorithm>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/cuda/pipeline.hpp>
#include <mhla/packed.hpp>
#include <string>
#include <vector>

#include "tests/cpu/call.hpp"
#include "tests/cuda/call_memory.hpp"
#include "tests/support/error_message.hpp"

namespace {

using namespace call;
using call_memory::Affordable;
using call_memory::check_exact;
using namespace mhla;

using Recurrent =
    Attention<EluPlusOne, Blocks1D, Causal, MixedKeySum, HalfSplitRotary, RecurrentMixing>;
using BlockRecurrent =
    Attention<EluPlusOne, Blocks1D, BlockCausal, Unnormalized, NoRotation, RecurrentMixing>;
template <class Geometry>
using Separable =
    Attention<EluPlusOne, Geometry, Bidirectional, MixedKeySum, NoRotation, SeparableMixing>;

/// S~_i = w_0 S_i + w_1 S_(i+1): one product for each block, and no part of the coefficients
/// without the others.
struct Neighbours {
  static constexpr bool causal = false;

  void require_parameters(const MixingLayout&, Index rows, Index columns) const {
    if (rows != 1 || columns != 2) throw ShapeError("Neighbours: mix is [.., 1, 2]");
  }
  Index num_rows(const MixingLayout& layout) const { return 2 * layout.key_blocks(); }
  Index num_coefficients(const MixingLayout& layout) const { return 2 * layout.key_blocks(); }
  template <class Visit>
  void for_each_product(const MixingLayout& layout, Visit&& visit) const {
    const Index blocks = layout.key_blocks();
    for (Index i = 0; i < blocks; ++i)
      visit(MixingProduct{2 * i, 2, blocks + i, i, 1, std::min(Index{2}, blocks - i)});
  }
  template <class A>
  MHLA_HOST_DEVICE void coefficients(const MixingLayout& layout, const TensorView<const A, 2>& mix,
                                     const Span<A>& to) const {
    for (Index i = 0; i < 2 * layout.key_blocks(); ++i) to[i] = mix(0, i % 2);
  }
  template <class A>
  MHLA_HOST_DEVICE void vjp(const MixingLayout& layout, const TensorView<const A, 2>&,
                            const Span<const A>& grad, const TensorView<A, 2>& grad_mix) const {
    for (Index i = 0; i < 2 * layout.key_blocks() - 1; ++i) grad_mix(0, i % 2) += grad[i];
  }
};
using Own = Attention<EluPlusOne, Blocks1D, Bidirectional, MixedKeySum, NoRotation, Neighbours>;

/// The CPU's y and gradients, in double.
template <class V>
HostTensor<double, 4> on_cpu(const V& attention, const Operands<double>& x, Gradients<double>& to) {
  const mhla::SerialExecutor serial;
  HostTensor<double, 4> y = x.dy;
  const Workspace memory(
      std::max(mhla::forward_workspace_size<double>(attention, x.shape(), serial),
               mhla::backward_workspace_size<double>(attention, x.shape(), serial)));
  mhla::forward_into(attention, serial, x.q, x.k, x.v, x.mix, y.view(), memory);
  mhla::backward_into(attention, serial, x.q.view(), x.k, x.v, x.mix, x.dy, to.views(),
                      Update::overwrite, memory);
  return y;
}

template <class T, class V>
void check_agreement(const V& attention, const Shape& shape) {
  CAPTURE(sizeof(T), shape.mix_heads, shape.heads);
  const auto x = operands<T>(attention, shape);
  const auto wide = call::converted<double>(x);
  Gradients<double> expected(wide);
  const auto y = on_cpu(attention, wide, expected);
  check_close("y", call::forward(attention, x), y, tolerance::forward_rms<T>,
              tolerance::forward_max<T>);
  check_close(call::backward(attention, x), expected);
}

/// Calls f(attention, shape) for a batch of 3 with 4 heads, with shared parameters, with those of
/// each head, and of each head of each item.
template <class F>
void for_each_call(const F& f) {
  for (const Index mix_heads : {1, 4, 12}) {
    const auto shape = [&](Index tokens, Index kv_heads) {
      return Shape{3, 4, kv_heads, tokens, tokens, 6, 5, mix_heads};
    };
    f(Recurrent{.blocks = {.block = 3}, .mixing = {.states = 2}}, shape(122, 2));
    Shape constant = shape(122, 2);
    constant.mix_query_blocks = 1;
    f(Recurrent{.blocks = {.block = 3}, .mixing = {.states = 3}}, constant);
    f(BlockRecurrent{.blocks = {.block = 3}, .mixing = {.states = 2}}, shape(50, 4));
    f(Separable<Blocks2D>{.blocks = {.grid = {6, 8}, .block = {2, 2}}, .mixing = {.rank = 2}},
      shape(48, 1));
    f(Separable<Blocks3D>{.blocks = {.grid = {2, 4, 6}, .block = {1, 2, 2}}, .mixing = {.rank = 3}},
      shape(48, 2));
    // Copies of a product that are no neighbours: more of them than units.
    f(Separable<Blocks3D>{.blocks = {.grid = {4, 4, 5}, .block = {1, 1, 1}}, .mixing = {.rank = 1}},
      shape(80, 1));
  }
}

/// The shape of a call with Neighbours.
Shape of_neighbours(Index mix_heads, Index tokens) {
  return {3, 4, 2, tokens, tokens, 4, 3, mix_heads, 1, 2};
}

}  // namespace

TEMPLATE_TEST_CASE("cuda structured mixing: the CPU's results", "[cuda][mixing]", double, float,
                   mhla::BFloat16) {
  for_each_call([](const auto& attention, const Shape& shape) {
    check_agreement<TestType>(attention, shape);
  });
}

TEST_CASE("cuda structured mixing: longer lists than are kept at once", "[cuda][mixing]") {
  // 19 chunks of blocks of one token, 4 products each.
  check_agreement<double>(BlockRecurrent{.blocks = {.block = 1}, .mixing = {.states = 2}},
                          {1, 2, 2, 300, 300, 3, 2, 2});
  for (const Index tokens : {63, 64, 65, 128, 130})
    check_agreement<double>(Own{.blocks = {.block = 1}}, of_neighbours(4, tokens));
}

TEST_CASE("cuda structured mixing: one of one's own", "[cuda][mixing]") {
  for (const Index mix_heads : {1, 4, 12})
    check_agreement<double>(Own{.blocks = {.block = 5}}, of_neighbours(mix_heads, 43));
}

TEST_CASE("cuda structured mixing: queries that see no key, and none", "[cuda][mixing]") {
  const auto attention = [](Index keys) {
    return Separable<Blocks1D>{
        .blocks = {.block = 3}, .key_blocks = {.block = keys}, .mixing = {.rank = 2}};
  };
  check_agreement<double>(attention(2), {2, 2, 1, 13, 9, 4, 3});
  Shape no_keys{2, 2, 1, 13, 0, 4, 3, 1, 2, 0};
  const auto x = operands<double>(attention(2), no_keys);
  for (const double element : call::forward(attention(2), x).elements()) CHECK(element == 0);
  for (const double element : call::backward(attention(2), x).query.elements()) CHECK(element == 0);
}

TEST_CASE("cuda structured mixing: a batch in parts, in exact workspaces", "[cuda][mixing]") {
  const auto check = [](const auto& attention, const Shape& shape) {
    const auto device = backend::device();
    const auto x = operands<double>(attention, shape);
    const auto y = call::forward(attention, x);
    const Gradients<double> whole = call::backward(attention, x);
    const Index of_all = mhla::backward_workspace_size<double>(attention, x.shape(), device);
    for (const Index percent : {75, 0}) {  // 2 and 1 of the 3 items
      CAPTURE(percent, shape.mix_heads);
      const Affordable limit(of_all * percent / 100);
      auto parts_y = x.dy;
      check_exact(mhla::forward_workspace_size<double>(attention, x.shape(), device),
                  [&](WorkspaceView workspace) {
                    forward_into(attention, device, x.q, x.k, x.v, x.mix, parts_y.view(),
                                 workspace);
                  });
      CHECK(bitwise_equal(parts_y.view(), y.view()));
      Gradients<double> parts(x);
      const Index size = mhla::backward_workspace_size<double>(attention, x.shape(), device);
      CHECK(size < of_all);
      check_exact(size, [&](WorkspaceView workspace) {
        backward_into(attention, device, x.q.view(), x.k, x.v, x.mix, x.dy, parts.views(),
                      Update::overwrite, workspace);
      });
      CHECK(bitwise_equal(parts.query.view(), whole.query.view()));
      CHECK(bitwise_equal(parts.key.view(), whole.key.view()));
      CHECK(bitwise_equal(parts.value.view(), whole.value.view()));
      check_close("dmix", parts.mix, whole.mix, tolerance::gradient_rms<double>,
                  tolerance::gradient_max<double>);
      Gradients<double> sums(x);
      call::backward_to(sums.views(), Update::accumulate, attention, x);
      for (std::size_t i = 0; i < sums.mix.elements().size(); ++i)
        CHECK(sums.mix.elements()[i] ==
              Approx(x.mix.elements()[i] + parts.mix.elements()[i]).epsilon(1e-12));
    }
  };
  for_each_call(check);
  // Dense matrices of each item, too.
  check(Attention<EluPlusOne, Blocks1D, Causal>{.blocks = {.block = 4}},
        {3, 4, 2, 29, 29, 4, 3, 12});
  check(Attention<EluPlusOne, Blocks1D, Bidirectional, mhla::MixedProduct>{.blocks = {.block = 4}},
        {3, 4, 2, 28, 28, 4, 3, 12});
}

TEST_CASE("cuda structured mixing: summaries of a forward state", "[cuda][mixing]") {
  for_each_call([](const auto& attention, const Shape& shape) {
    const auto device = backend::device();
    const auto x = operands<double>(attention, shape);
    std::vector<double> memory(
        static_cast<std::size_t>(mhla::forward_state_size(attention, x.shape(), device)));
    mhla::CudaForwardState<double> state({memory.data(), static_cast<Index>(memory.size())});
    const auto room = [](Index bytes) { return call::poisoned_workspace(bytes); };
    HostTensor<double, 4> y = x.dy;
    forward_into(attention, device, x.q, x.k, x.v, x.mix, y.view(),
                 room(mhla::forward_workspace_size<double>(attention, x.shape(), device)), &state);
    CHECK(bitwise_equal(y.view(), call::forward(attention, x).view()));
    Gradients<double> saved(x);
    backward_into(
        attention, device, x.q.view(), x.k, x.v, x.mix, x.dy, saved.views(), Update::overwrite,
        room(mhla::backward_workspace_size<double>(attention, x.shape(), device)), &state);
    Gradients<double> expected = call::backward(attention, x);
    call::check_same_bits(saved, expected);
  });
}
