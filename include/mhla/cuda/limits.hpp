// SPDX-License-Identifier: MIT
// Memory limits of the CUDA backend's calls. A separate file, because the tests replace it with
// smaller numbers.
#pragma once

#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// cuBLAS's own workspace, as its manual recommends from sm_90 on.
inline constexpr Index cublas_workspace_bytes = Index{32} << 20;

/// A call is split into parts of the batch that take at most about this much memory, or one item.
inline constexpr Index affordable_bytes = Index{1} << 30;
/// What a call may expect to stay in the L2 cache: three quarters of that of an H100.
inline constexpr Index cached_bytes = 37'500'000;

}  // namespace cuda

MHLA_NAMESPACE_END
