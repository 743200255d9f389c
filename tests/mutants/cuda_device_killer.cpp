// SPDX-License-Identifier: MIT
// Expressions on a CudaDevice against the core call on the same memory, executed on the CPU: which
// workspace, which tensor, which update; and what explain counts.
#include <mhla/cuda.hpp>
#include <mhla/cuda/pipeline.cuh>
#include <string>
#include <unsupported/Eigen/CXX11/Tensor>

#include "killer.hpp"

namespace {

using killer::expect;
using killer::expect_throw;
using mhla::CudaDevice;
using mhla::Index;
using Tensor4 = Eigen::Tensor<double, 4, Eigen::RowMajor>;
using Tensor3 = Eigen::Tensor<double, 3, Eigen::RowMajor>;
using Attention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Causal>;

constexpr Index heads = 2, tokens = 5, key_dim = 3, value_dim = 4, blocks = 3;

template <class Tensor>
Tensor filled(Tensor tensor, double first) {
  for (Index i = 0; i < tensor.size(); ++i)
    tensor.data()[i] = first + static_cast<double>((7 * i) % 11) / 16;
  return tensor;
}
mhla::TensorView<double, 4> view(Tensor4& t) {
  return mhla::make_view(t.data(), t.dimension(0), t.dimension(1), t.dimension(2), t.dimension(3));
}
bool same(const Tensor4& a, const Tensor4& b) {
  for (Index i = 0; i < a.size(); ++i)
    if (!(a.data()[i] == b.data()[i])) return false;
  return true;
}

void check_device() {
  const Attention attention{.blocks = {.block = 2}};
  Tensor4 q = filled(Tensor4(1, heads, tokens, key_dim), -0.25);
  Tensor4 k = filled(Tensor4(1, heads, tokens, key_dim), -0.5);
  Tensor4 v = filled(Tensor4(1, heads, tokens, value_dim), 0.125);
  Tensor4 dy = filled(Tensor4(1, heads, tokens, value_dim), 0.25);
  Tensor3 mix = filled(Tensor3(1, blocks, blocks), 0.5);
  const auto mix_view = mhla::make_view(mix.data(), 1, blocks, blocks);
  const mhla::Shape shape = mhla::shape_of(view(q), view(k), view(v), mix_view);

  cublasContext machine;
  const CudaDevice bare(nullptr, &machine);
  const mhla::Workspace workspace(mhla::backward_workspace_size<double>(attention, shape, bare));
  const CudaDevice device(nullptr, &machine, workspace);

  Tensor4 expected = dy, y = dy;
  mhla::forward_into(attention, device, view(q), view(k), view(v), mix_view, view(expected),
                     workspace);
  y.device(device) = attention(q, k, v, mix);
  expect(same(y, expected), "y");
  y = dy;
  y.device(CudaDevice(nullptr, &machine, {workspace.data(), 64})) =
      attention(q, k, v, mix).with(workspace);
  expect(same(y, expected), "y, in the expression's own workspace");
  Tensor4 transposed(1, tokens, heads, value_dim);
  mhla::tokens_first(transposed).device(device) = attention(q, k, v, mix);
  y = mhla::tokens_first(transposed);
  expect(same(y, expected), "y, tokens first");

  const auto gradient = [&](mhla::Update update, const char* what) {
    Tensor4 wanted_dq = q, wanted_dk = k, wanted_dv = v, dq = q, dk = k, dv = v;
    mhla::backward_into(attention, device, view(q), view(k), view(v), mix_view, view(dy),
                        {view(wanted_dq), view(wanted_dk), view(wanted_dv), mhla::skip}, update,
                        workspace);
    auto gradients = mhla::gradients(dq, dk, dv, mhla::skip).device(device);
    const auto backward = attention.backward(q, k, v, mix, dy);
    update == mhla::Update::overwrite ? gradients = backward : gradients += backward;
    expect(same(dq, wanted_dq) && same(dk, wanted_dk) && same(dv, wanted_dv), what);
  };
  gradient(mhla::Update::overwrite, "gradients, overwritten");
  gradient(mhla::Update::accumulate, "gradients, added to");

  mhla::ForwardState<double> state;
  expect_throw<mhla::StateError>([&] { y.device(device) = attention(q, k, v, mix).save(state); },
                                 "a state in host memory");
  expect(
      mhla::cuda::call_cost<double>(attention, shape, device, mhla::cuda::Direction::forward)
              .flops == 2 * heads * (2 * 6 + 3) * key_dim * value_dim + 2 * heads * 6 * 2 * (3 + 4),
      "operations");
}

}  // namespace

int main() { killer::run(check_device); }
