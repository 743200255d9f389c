// SPDX-License-Identifier: MIT
// Everything a program needs to run attention over device memory from a plain .cpp, which sees no
// CUDA header:
//
//   const mhla::CudaDevice cuda(stream, cublas, workspace);  // all the caller's
//   y.device(cuda) = attention(q, k, v, mix);                // TensorMaps of device memory
//   mhla::gradients(dq, dk, dv, dmix).device(cuda) = attention.backward(q, k, v, mix, dy);
//
// The kernels of the variants that it uses are compiled in a .cu of the program, by
// MHLA_INSTANTIATE_CUDA of <mhla/cuda/instantiate.cuh>, which CMake's mhla_add_cuda_variants writes
// if you like. A variant that is missing there is a link error that names it.
#pragma once

#include <mhla/attention.hpp>
#include <mhla/cuda/decoding.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/explain.hpp>
#include <mhla/cuda/forward_state.hpp>
#include <mhla/cuda/pipeline.hpp>
#include <mhla/eigen/cuda_executor.hpp>
#include <mhla/eigen/mixing_matrix.hpp>
#include <mhla/packed.hpp>
#include <mhla/version.hpp>
