// SPDX-License-Identifier: MIT
// Attention for a trainer in plain C with OpenMP that keeps q, k and v in one buffer, qkv [B, T, 3
// C], as llm.c does. mix [heads, longest / 64, longest / 64] is one more parameter tensor with a
// gradient; shorter sequences use its leading corner.
#include <mhla/executors/openmp.hpp>
#include <mhla/views.hpp>

namespace {

using Attention = mhla::Attention<mhla::EluPlusOne, mhla::Blocks1D, mhla::Causal>;
constexpr Attention attention{.blocks = {.block = 64}};
constexpr int longest = 1024;  // tokens of a sequence

template <class T>
auto matrices(T* mix, int heads) {
  return mhla::make_view(mix, heads, longest / 64, longest / 64);
}

}  // namespace

extern "C" {

void mhla_initialize(float* mix, int heads) { mhla::initialize(matrices(mix, heads), attention); }
void mhla_project(float* mix, int heads) { mhla::project(matrices(mix, heads)); }

void mhla_forward(float* out, const float* qkv, const float* mix, int B, int T, int C, int heads) {
  const auto [q, k, v] = mhla::qkv_views(qkv, T, heads, C / heads, B);
  mhla::forward_into(attention, mhla::OpenMpExecutor{}, q, k, v, matrices(mix, heads),
                     mhla::heads_view(out, T, heads, C / heads, C, B));
}
void mhla_backward(float* dqkv, float* dmix, const float* dout, const float* qkv, const float* mix,
                   int B, int T, int C, int heads) {
  const auto [q, k, v] = mhla::qkv_views(qkv, T, heads, C / heads, B);
  const auto [dq, dk, dv] = mhla::qkv_views(dqkv, T, heads, C / heads, B);
  mhla::backward_into(attention, mhla::OpenMpExecutor{}, q, k, v, matrices(mix, heads),
                      mhla::heads_view(dout, T, heads, C / heads, C, B),
                      {dq, dk, dv, matrices(dmix, heads)}, mhla::Update::accumulate);
}

}  // extern "C"
