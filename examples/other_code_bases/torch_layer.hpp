// SPDX-License-Identifier: MIT
// Attention as a layer of LibTorch, in C++, on PyTorch's threads, with gradients by autograd.
#pragma once

#include <torch/torch.h>

#include <mhla/executors/at_parallel.hpp>
#include <mhla/views.hpp>

/// x [batch, tokens, dim] -> [batch, tokens, dim], causal. After each step of the optimizer call
/// project().
struct MhlaAttentionImpl : torch::nn::Module {
  using Attention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Causal>;

  MhlaAttentionImpl(std::int64_t dim, std::int64_t heads, std::int64_t blocks)
      : heads(heads),
        qkv(register_module("qkv", torch::nn::Linear(dim, 3 * dim))),
        out(register_module("out", torch::nn::Linear(dim, dim))),
        mix(register_parameter("mix", torch::empty({heads, blocks, blocks}))) {
    torch::NoGradGuard constant;
    mhla::initialize(view<3>(mix), attention());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto heads_of_qkv = qkv(x).unflatten(2, {3, heads, -1}).permute({2, 0, 3, 1, 4});
    const auto y = Function::apply(heads_of_qkv[0], heads_of_qkv[1], heads_of_qkv[2], mix);
    return out(y.transpose(1, 2).flatten(2));
  }
  void project() { mhla::project(view<3>(mix)); }

  std::int64_t heads;
  torch::nn::Linear qkv, out;
  torch::Tensor mix;

 private:
  static Attention attention() { return {.blocks = {.block = 64}}; }

  /// Of any strides.
  template <int Rank>
  static mhla::TensorView<float, Rank> view(const torch::Tensor& t) {
    mhla::TensorView<float, Rank> view{t.data_ptr<float>(), {}, {}};
    for (int axis = 0; axis < Rank; ++axis) {
      view.extent[axis] = t.size(axis);
      view.stride[axis] = t.stride(axis);
    }
    return view;
  }

  struct Function : torch::autograd::Function<Function> {
    static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor q,
                                 torch::Tensor k, torch::Tensor v, torch::Tensor mix) {
      context->save_for_backward({q, k, v, mix});
      const torch::Tensor y = torch::empty_like(q);
      mhla::forward_into(attention(), mhla::AtParallelExecutor{}, view<4>(q), view<4>(k),
                         view<4>(v), view<3>(mix), view<4>(y));
      return y;
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list dy) {
      const torch::autograd::variable_list x = context->get_saved_variables();
      torch::autograd::variable_list d;
      for (const torch::Tensor& one : x) d.push_back(torch::empty_like(one));
      mhla::backward_into(attention(), mhla::AtParallelExecutor{}, view<4>(x[0]), view<4>(x[1]),
                          view<4>(x[2]), view<3>(x[3]), view<4>(dy[0]),
                          {view<4>(d[0]), view<4>(d[1]), view<4>(d[2]), view<3>(d[3])});
      return d;
    }
  };
};
TORCH_MODULE(MhlaAttention);
