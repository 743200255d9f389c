// SPDX-License-Identifier: MIT
// In place of the library's limits.hpp: so little memory for cuBLAS that every call can be given a
// poisoned workspace, and a limit that a test can lower until small batches are cut.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

inline constexpr Index cublas_workspace_bytes = 4096;
inline Index affordable_bytes = Index{1} << 30;
inline constexpr Index cached_bytes = 37'500'000;

}  // namespace cuda

MHLA_NAMESPACE_END
