// SPDX-License-Identifier: MIT
// The CUDA backend on a machine without a GPU: its true source, compiled with the headers in
// machine/ in place of <cublas_v2.h> and of the few of the library's that only a CUDA compiler
// understands. machine/ must come before include/.
#pragma once

#include <mhla/cuda/device.hpp>

#include "tests/cuda/machine/cublas_v2.h"

namespace machine {

/// The stand-in for cuBLAS and for the machine, which counts what it is asked for.
inline cublasContext& context() {
  static cublasContext context;
  return context;
}

/// A device of that machine, on the stream that takes none of CUDA to name.
inline mhla::CudaDevice device(mhla::FloatProducts products = mhla::FloatProducts::exact) {
  return {nullptr, &context(), {}, products};
}

}  // namespace machine
