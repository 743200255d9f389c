// SPDX-License-Identifier: MIT
#include "attention_kinds.hpp"

#include <mhla/diagnostics/attention_matrix.hpp>
#include <mhla/mixing_matrix.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/feature_map.hpp>
#include <mhla/reference/softmax_attention.hpp>

namespace figures {

AttentionMatrix attention_matrix(AttentionKind kind, const Scene& scene, Index dim) {
  const auto q = scene.queries(dim);
  AttentionMatrix weights(scene.tokens(), scene.tokens());
  if (kind == AttentionKind::softmax) {
    mhla::reference::softmax_attention_weights(mhla::reference::SoftmaxAttention<>{}, q.view(),
                                               q.view(), 0, 0, weights.view());
    return weights;
  }
  const mhla::Attention<mhla::Relu, mhla::Blocks2D> attention{
      .blocks = scene.blocks(kind == AttentionKind::linear ? 1 : layout)};
  const mhla::Grid grid = attention.blocks.grid_of(scene.tokens());
  mhla::testing::HostTensor<double, 3> mix(1, grid.num_blocks(), grid.num_blocks());
  mhla::initialize(mix.view(), attention);
  mhla::diagnostics::attention_matrix(attention, q.view(), q.view(), mix.view(), 0, 0,
                                      weights.view());
  mhla::diagnostics::normalize_rows(weights.view());
  return weights;
}

}  // namespace figures
