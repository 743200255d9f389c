// SPDX-License-Identifier: MIT
// The Eigen layer against the core call on the same memory: layouts, tokens_first, composition,
// aliasing, accumulation, errors. All extents differ and mix is not symmetric.
#include <mhla/attention.hpp>
#include <mhla/core/error.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>
#include <unsupported/Eigen/CXX11/Tensor>

#include "killer.hpp"

namespace {

using killer::expect;
using mhla::Index;
template <int Rank>
using RowMajor = Eigen::Tensor<double, Rank, Eigen::RowMajor>;
template <int Rank>
using ColMajor = Eigen::Tensor<double, Rank, Eigen::ColMajor>;
using Attention = mhla::Attention<mhla::Relu, mhla::Blocks2D>;

const Attention attention{.blocks = {.grid = {2, 6}, .block = {1, 2}}};  // 12 tokens, 6 blocks
constexpr Index batch = 2, heads = 3, tokens = 12, key_dim = 4, value_dim = 5, blocks = 6;

template <class Tensor>
Tensor random(std::uint64_t seed, Index a, Index b, Index c, Index d) {
  Tensor tensor(a, b, c, d);
  const mhla::testing::Normal normal;
  for (Index i = 0; i < tensor.size(); ++i)
    tensor.data()[i] = normal(seed, static_cast<std::uint64_t>(i));
  return tensor;
}

bool same(const double* a, const double* b, Index size) {
  for (Index i = 0; i < size; ++i)
    if (!(a[i] == b[i])) return false;
  return true;
}

struct Operands {
  RowMajor<4> q = random<RowMajor<4>>(1, batch, heads, tokens, key_dim);
  RowMajor<4> k = random<RowMajor<4>>(2, batch, heads, tokens, key_dim);
  RowMajor<4> v = random<RowMajor<4>>(3, batch, heads, tokens, value_dim);
  RowMajor<4> dy = random<RowMajor<4>>(4, batch, heads, tokens, value_dim);
  RowMajor<2> mix{blocks, blocks};
  RowMajor<4> y{batch, heads, tokens, value_dim};
  RowMajor<4> dq{batch, heads, tokens, key_dim};
  RowMajor<4> dk{batch, heads, tokens, key_dim};
  RowMajor<4> dv{batch, heads, tokens, value_dim};
  RowMajor<2> dmix{blocks, blocks};

  Operands() {
    const mhla::testing::Uniform uniform{0, 1};
    for (Index i = 0; i < mix.size(); ++i)
      mix.data()[i] = uniform(5, static_cast<std::uint64_t>(i));
  }
  template <class T, class Tensor>
  static mhla::TensorView<T, 4> view(Tensor& tensor, Index dim) {
    return mhla::make_view<T>(tensor.data(), batch, heads, tokens, dim);
  }
  /// y and the gradients by the core.
  void run_core() {
    const mhla::SerialExecutor serial;
    const auto q_view = view<const double>(q, key_dim);
    const auto k_view = view<const double>(k, key_dim);
    const auto v_view = view<const double>(v, value_dim);
    const auto mix_view = mhla::make_view<const double>(mix.data(), 1, blocks, blocks);
    const mhla::Shape shape = mhla::shape_of(q_view, k_view, v_view, mix_view);
    const mhla::Workspace workspace(
        mhla::backward_workspace_size<double>(attention, shape, serial));
    mhla::forward_into(attention, serial, q_view, k_view, v_view, mix_view,
                       view<double>(y, value_dim), workspace);
    mhla::backward_into(
        attention, serial, q_view, k_view, v_view, mix_view, view<const double>(dy, value_dim),
        {view<double>(dq, key_dim), view<double>(dk, key_dim), view<double>(dv, value_dim),
         mhla::make_view<double>(dmix.data(), 1, blocks, blocks)},
        mhla::Update::overwrite, workspace);
  }
};

/// The same memory as a tensor of the other layout, its axes reversed.
ColMajor<4> reversed(const RowMajor<4>& tensor) {
  ColMajor<4> result(tensor.dimension(3), tensor.dimension(2), tensor.dimension(1),
                     tensor.dimension(0));
  std::copy_n(tensor.data(), tensor.size(), result.data());
  return result;
}
ColMajor<2> reversed(const RowMajor<2>& tensor) {
  ColMajor<2> result(tensor.dimension(1), tensor.dimension(0));
  std::copy_n(tensor.data(), tensor.size(), result.data());
  return result;
}

void check_layer() {
  Operands o;
  o.run_core();

  RowMajor<4> y(batch, heads, tokens, value_dim);
  y = attention(o.q, o.k, o.v, o.mix);
  expect(same(y.data(), o.y.data(), y.size()), "RowMajor");
  y = o.v + attention(o.q, o.k, o.v, o.mix) * 0.5;
  const RowMajor<4> composed = o.v + o.y * 0.5;
  expect(same(y.data(), composed.data(), y.size()), "part of an expression");
  RowMajor<4> in_place = o.v;
  in_place = attention(o.q, o.k, in_place, o.mix);
  expect(same(in_place.data(), o.y.data(), y.size()), "over its own values");

  const ColMajor<4> q = reversed(o.q), k = reversed(o.k), v = reversed(o.v), dy = reversed(o.dy);
  const ColMajor<2> mix = reversed(o.mix);
  ColMajor<4> col_y(value_dim, tokens, heads, batch);
  col_y = attention(q, k, v, mix);
  expect(same(col_y.data(), o.y.data(), y.size()), "ColMajor");

  using Axes = Eigen::array<int, 4>;
  const RowMajor<4> q_tokens_first = o.q.shuffle(Axes{0, 2, 1, 3});
  RowMajor<4> y_tokens_first(batch, tokens, heads, value_dim);
  mhla::tokens_first(y_tokens_first) =
      attention(mhla::tokens_first(q_tokens_first), o.k, o.v, o.mix);
  const RowMajor<4> back = y_tokens_first.shuffle(Axes{0, 2, 1, 3});
  expect(same(back.data(), o.y.data(), y.size()), "tokens_first");

  ColMajor<4> dq(key_dim, tokens, heads, batch), dk(key_dim, tokens, heads, batch);
  ColMajor<4> dv(value_dim, tokens, heads, batch);
  ColMajor<2> dmix(blocks, blocks);
  mhla::gradients(dq, dk, dv, dmix) = attention.backward(q, k, v, mix, dy);
  expect(same(dq.data(), o.dq.data(), dq.size()), "ColMajor dq");
  expect(same(dk.data(), o.dk.data(), dk.size()), "ColMajor dk");
  expect(same(dv.data(), o.dv.data(), dv.size()), "ColMajor dv");
  expect(same(dmix.data(), o.dmix.data(), dmix.size()), "ColMajor dmix");

  RowMajor<4> sum = o.dq;
  mhla::gradients(sum, mhla::skip, mhla::skip, mhla::skip) +=
      attention.backward(o.q, o.k, o.v, o.mix, o.dy);
  const RowMajor<4> twice = o.dq + o.dq;
  expect(same(sum.data(), twice.data(), sum.size()), "accumulated dq");
  mhla::gradients(sum, mhla::skip, mhla::skip, mhla::skip) =
      attention.backward(o.q, o.k, o.v, o.mix, o.dy);
  expect(same(sum.data(), o.dq.data(), sum.size()), "overwritten dq");

  RowMajor<4> short_y(batch, heads, tokens - 1, value_dim);
  killer::expect_throw<mhla::ShapeError>(
      [&] { short_y.device(Eigen::DefaultDevice{}) = attention(o.q, o.k, o.v, o.mix); },
      "a destination of another shape");
}

}  // namespace

int main() { killer::run(check_layer); }
