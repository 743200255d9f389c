// SPDX-License-Identifier: MIT
/// \defgroup cuda CUDA
/// Attention over device memory, from a plain .cpp that includes no CUDA header:
/// \code
/// const mhla::CudaDevice cuda(stream, cublas, device_workspace);  // all borrowed
/// y_map.device(cuda) = attention(q_map, k_map, v_map, mix_map);   // TensorMaps of device memory
/// mhla::gradients(dq_map, dk_map, dv_map, dmix_map).device(cuda) =
///     attention.backward(q_map, k_map, v_map, mix_map, dy_map);
/// \endcode
/// The kernels of the variants it uses are compiled in a .cu of the program, by
/// MHLA_INSTANTIATE_CUDA of `<mhla/cuda/instantiate.cuh>`, which CMake's mhla_add_cuda_variants can
/// write. A missing variant is a link error that names it.
///
/// Calls are enqueued on the stream: they allocate nothing and wait for nothing, so they can be
/// captured in a CUDA graph. Results have the same bits in every run. See mhla::CudaDevice for
/// memory, errors and the state of handles.
#pragma once

#include <mhla/attention.hpp>
#include <mhla/cuda/decoding.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/pipeline.hpp>
#include <mhla/cuda/stages.hpp>
#include <mhla/eigen/cuda_executor.hpp>
#include <mhla/eigen/mixing_matrix.hpp>
#include <mhla/packed.hpp>
#include <mhla/version.hpp>
