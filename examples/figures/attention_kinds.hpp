// SPDX-License-Identifier: MIT
// The attention matrices that are compared: softmax attention's, linear attention's and MHLA's.
#pragma once

#include <mhla/testing/host_tensor.hpp>

#include "scene.hpp"

namespace figures {

enum class AttentionKind { softmax, linear, mhla };
inline constexpr AttentionKind all_kinds[] = {AttentionKind::softmax, AttentionKind::linear,
                                              AttentionKind::mhla};

/// As the pictures write it, and colour it.
inline const char* name_of(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::softmax:
      return "softmax";
    case AttentionKind::linear:
      return "linear";
    case AttentionKind::mhla:
      return "MHLA";
  }
  return "";
}

using AttentionMatrix = mhla::testing::HostTensor<double, 2>;

constexpr Index layout = 4;  ///< MHLA's blocks are 4 x 4, as in DeiT and DiT

/// Of q = k over the tokens of a scene, with rows that sum to one. Linear attention is MHLA of one
/// block; MHLA's mix is as initialized.
AttentionMatrix attention_matrix(AttentionKind kind, const Scene& scene, Index dim);

}  // namespace figures
