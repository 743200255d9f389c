// SPDX-License-Identifier: MIT
// The backend that a test's source runs, so that one source serves both: the CPU's, one task after
// the other; or, with MHLA_TEST_CUDA, the CUDA backend's true source, executed on the CPU as
// tests/cuda/machine.hpp says.
#pragma once

#include <type_traits>

#if defined(MHLA_TEST_CUDA)
#include <mhla/cuda/instantiate.cuh>

#include "tests/cuda/machine.hpp"
#else
#include <mhla/core/executor.hpp>
#include <mhla/cpu/pipeline.hpp>
#endif

// Whether a source runs all its cases; else, as an emulated thread takes its time, those in which
// CUDA's own code differs.
#if !defined(MHLA_TEST_CUDA) || defined(MHLA_FULL_PRODUCT)
#define MHLA_TEST_ALL_CASES
#endif

namespace backend {

#if defined(MHLA_TEST_ALL_CASES)
inline constexpr bool runs_all_cases = true;
#else
inline constexpr bool runs_all_cases = false;
#endif

#if defined(MHLA_TEST_CUDA)
using Device = mhla::CudaDevice;
inline Device device() { return machine::device(); }
/// Whether summaries can be saved for the backward pass.
inline constexpr bool saves_states = false;
/// Whether a call can ask for a mhla::Path.
inline constexpr bool has_paths = false;
/// What cuBLAS knows.
template <class T>
inline constexpr bool computes_in = std::is_same_v<T, float> || std::is_same_v<T, double>;
#else
using Device = mhla::SerialExecutor;
inline Device device() { return {}; }
inline constexpr bool saves_states = true;
inline constexpr bool has_paths = true;
template <class T>
inline constexpr bool computes_in = true;
#endif

}  // namespace backend
