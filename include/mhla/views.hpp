// SPDX-License-Identifier: MIT
/// \defgroup core_calls Calls on views
/// Attention on mhla::TensorView, without Eigen: `<mhla/views.hpp>` has these calls, packed and
/// padded batches, decoding, stages and initial matrices.
/// \code
/// std::vector<float> input(512 * 64), output(512 * 64), matrix(8 * 8);
/// mhla::Attention<mhla::Relu, mhla::Blocks1D> blocks_of_64{.blocks = {.block = 64}};
/// auto x_view = mhla::make_view(input.data(), 1, 1, 512, 64);  // [batch, heads, tokens, dim]
/// mhla::initialize(mhla::make_view(matrix.data(), 1, 8, 8), blocks_of_64);
/// mhla::forward_into(blocks_of_64, mhla::SerialExecutor{}, x_view, x_view, x_view,
///                    mhla::make_view(matrix.data(), 1, 8, 8),
///                    mhla::make_view(output.data(), 1, 1, 512, 64));
/// \endcode
/// The CUDA overloads, which take an mhla::CudaDevice in place of the executor, are in \ref cuda.
#pragma once

#include <mhla/core/executor.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/cpu_plan.hpp>
#include <mhla/cpu/explain.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/decoding.hpp>
#include <mhla/mixing_matrix.hpp>
#include <mhla/packed.hpp>
#include <mhla/policy/expand_mixing.hpp>
#include <mhla/policy/propose_blocks.hpp>
#include <mhla/policy/variant.hpp>
#include <mhla/stages.hpp>
#include <mhla/structured_mixing.hpp>
#include <mhla/version.hpp>
