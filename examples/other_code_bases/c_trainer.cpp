// SPDX-License-Identifier: MIT
// Attention for a trainer in plain C with OpenMP that keeps q, k and v in one buffer, qkv [B, T, 3
// C], as llm.c does. mix [heads, T / block, T / block] is one more parameter tensor with a
// gradient.
#include <mhla/executors/openmp.hpp>
#include <mhla/views.hpp>

namespace {

using Attention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Causal>;
constexpr Attention attention{.blocks = {.block = 64}};

template <class T>
auto matrices(T* mix, int T_max, int heads) {
  const auto blocks = mhla::ceil_div<mhla::Index>(T_max, attention.blocks.block);
  return mhla::make_view(mix, heads, blocks, blocks);
}

}  // namespace

extern "C" {

void mhla_initialize(float* mix, int T, int heads) {
  mhla::initialize(matrices(mix, T, heads), attention);
}
void mhla_project(float* mix, int T, int heads) { mhla::project(matrices(mix, T, heads)); }

void mhla_forward(float* out, const float* qkv, const float* mix, int B, int T, int C, int heads) {
  const auto [q, k, v] = mhla::qkv_views(qkv, T, heads, C / heads, B);
  mhla::forward_into(attention, mhla::OpenMpExecutor{}, q, k, v, matrices(mix, T, heads),
                     mhla::heads_view(out, T, heads, C / heads, C, B));
}
void mhla_backward(float* dqkv, float* dmix, const float* dout, const float* qkv, const float* mix,
                   int B, int T, int C, int heads) {
  const auto [q, k, v] = mhla::qkv_views(qkv, T, heads, C / heads, B);
  const auto [dq, dk, dv] = mhla::qkv_views(dqkv, T, heads, C / heads, B);
  mhla::backward_into(attention, mhla::OpenMpExecutor{}, q, k, v, matrices(mix, T, heads),
                      mhla::heads_view(dout, T, heads, C / heads, C, B),
                      {dq, dk, dv, matrices(dmix, T, heads)}, mhla::Update::accumulate);
}

}  // extern "C"
