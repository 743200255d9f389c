// SPDX-License-Identifier: MIT
// The part of the workspace common to all fused paths: the tables that kernels read besides the
// tensors. Needs no CUDA header.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cuda/head_dims.hpp>
#include <mhla/cuda/plan.hpp>
#include <mhla/cuda/rotation_table.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda::fused {

/// Blocks, angles, and the mixing matrix, packed.
template <class V>
struct TablePlan {
  Extents<V> extents;
  RotationTable<float> rotation;
  Span<float> mixing;  // [mix heads, mix rows, mix columns]

  TablePlan(Arena& arena, const V& attention, const Problem& problem, Index items)
      : extents(arena, attention, problem, items),
        rotation(rotation_table<float>(arena, attention.rotation, V::GeometryType::rank,
                                       problem.feature_dim, problem.query_grid, problem.key_grid,
                                       strip_width(problem.feature_dim))),
        mixing(arena.take<float>(checked_mul(extents.mix_heads, extents.mixing_size()))) {}
};

}  // namespace cuda::fused

MHLA_NAMESPACE_END
