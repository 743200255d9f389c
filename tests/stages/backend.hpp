// SPDX-License-Identifier: MIT
// The stages of the backend that a test's source runs (tests/support/backend.hpp).
#pragma once

#include <cstdint>

#include "tests/support/backend.hpp"
#if defined(MHLA_TEST_CUDA)
#include <mhla/cuda/instantiate_stages.cuh>
#else
#include <mhla/stages.hpp>

#include "tests/cpu/executors.hpp"
#endif

namespace backend {

#if defined(MHLA_TEST_CUDA)
template <class V, class T>
using Stages = mhla::CudaStages<V, T>;
inline constexpr const char* name_of_stages = "CudaStages";
inline constexpr bool stages_count_blocks = false;
/// What runs the next call.
inline Device shuffled_device(std::uint64_t) { return device(); }
#else
template <class V, class T>
using Stages = mhla::Stages<V, T>;
inline constexpr const char* name_of_stages = "Stages";
/// How far the items of a padded batch reach.
inline constexpr bool stages_count_blocks = true;
inline executors::ShuffledExecutor shuffled_device(std::uint64_t seed) { return {3, seed}; }
#endif

// Tokens of many blocks, and of blocks of 130.
inline constexpr mhla::Index many_tokens = runs_all_cases ? 599 : 199;
inline constexpr mhla::Index long_tokens = runs_all_cases ? 700 : 300;

// Of these splits, 2 adds to gradients. An emulated thread takes its time.
#if defined(MHLA_SMALL_PRODUCT)
inline constexpr std::uint64_t seeds_of_splits[] = {2};
#elif defined(MHLA_TEST_CUDA)
inline constexpr std::uint64_t seeds_of_splits[] = {2, 3};
#else
inline constexpr std::uint64_t seeds_of_splits[] = {1, 2, 3};
#endif

}  // namespace backend
