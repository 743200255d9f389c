// SPDX-License-Identifier: MIT
// How much memory calls of the CUDA backend may take. In a file of its own because the tests put
// smaller numbers in its place.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// What cuBLAS gets for itself, as its manual recommends for the chips since sm_90.
inline constexpr Index cublas_workspace_bytes = Index{32} << 20;

/// A call is cut into parts of the batch that take about so much memory at the most, or one item.
inline constexpr Index affordable_bytes = Index{1} << 30;

}  // namespace cuda

MHLA_NAMESPACE_END
