// SPDX-License-Identifier: MIT
// Attention as a custom operation of a graph library with threads of its own, as ggml's: each of
// its nth threads calls with its number, and computes its share of the heads. q, k, v and dst: ne =
// [dim, tokens, heads, batch]; userdata: an mhla::TensorView<float, 2> of
// the mixing coefficients; shorter sequences use its leading corner.
#include <ggml.h>

#include <mhla/views.hpp>

using Attention = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::Unnormalized>;
static constexpr Attention attention{.blocks = {.block = 64}};

static mhla::TensorView<float, 4> view(const ggml_tensor* t) {
  const auto stride = [t](int axis) { return mhla::Index(t->nb[axis] / sizeof(float)); };
  return {static_cast<float*>(t->data),
          {t->ne[3], t->ne[2], t->ne[1], t->ne[0]},
          {stride(3), stride(2), stride(1), stride(0)}};
}

void mhla_op(ggml_tensor* dst, const ggml_tensor* q, const ggml_tensor* k, const ggml_tensor* v,
             int ith, int nth, void* mix) {
  const mhla::Index first = dst->ne[2] * ith / nth, count = dst->ne[2] * (ith + 1) / nth - first;
  const auto mine = [&](const ggml_tensor* t) { return mhla::slice(view(t), 1, first, count); };
  mhla::forward_into(attention, mhla::SerialExecutor{}, mine(q), mine(k), mine(v),
                     *static_cast<const mhla::TensorView<float, 2>*>(mix), mine(dst));
}
