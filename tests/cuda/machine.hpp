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

/// A device of that machine, on the stream that takes none of CUDA to name. The next kernel is the
/// first of a call.
inline mhla::CudaDevice device(mhla::FloatProducts products = mhla::FloatProducts::exact) {
  context().under_way = stand_in::UnderWay::anything;
  context().written_since_kernel.clear();
  return {nullptr, &context(), {}, products};
}
/// The same, for a stage alone: the next kernel stands in the middle of a call, whose stages before
/// have nothing to do with it.
inline mhla::CudaDevice device_within_a_call() {
  const mhla::CudaDevice of_call = device();
  context().under_way = stand_in::UnderWay::nothing;
  return of_call;
}

}  // namespace machine
