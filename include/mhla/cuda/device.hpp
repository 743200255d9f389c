// SPDX-License-Identifier: MIT
// Where the CUDA backend runs: a stream, a cuBLAS handle and scratch memory, all the caller's.
#pragma once

#include <mhla/core/shape.hpp>
#include <mhla/core/workspace.hpp>

// CUDA's own handles, declared as its headers declare them.
struct CUstream_st;
struct cublasContext;

MHLA_NAMESPACE_BEGIN

/// \addtogroup cuda
/// \{

/// How products of float are computed. Those of double are always in double.
enum class FloatProducts {
  exact,  ///< in float: neither TF32 nor any other shorter format, whatever the handle's mode
  tf32    ///< in TF32 on tensor cores: relative errors of 2^-11
};

/// What runs a call. mhla::explain prints which one it is and why.
enum class CudaPath {
  automatic,  ///< whichever of the others is fastest by a cost model
  cublas,     ///< cuBLAS products with element-wise kernels around them: runs every call
  summaries,  ///< fused kernels over block summaries: linear in the tokens
  quadratic,  ///< fused kernels over pairs of tokens, without summaries: for short sequences
  resident    ///< a fused kernel whose block summaries stay in shared memory: few blocks, forward
              ///< only, not Causal
};

/// Whether a call keeps its summaries in a CudaForwardState, or takes them from one: such a call
/// may run on another path, whose workspace is larger.
enum class StateUse {
  none,  ///< neither
  given  ///< either
};

class CudaPlan;

/// A stream, a cuBLAS handle and a workspace, all the caller's: borrowed, cheap to copy, nothing is
/// owned. One call uses a handle and a workspace at a time.
///
/// Every call runs in `stream` order and returns at once: it allocates nothing and waits for
/// nothing, so that it can be captured in a CUDA graph. For the call, the cuBLAS handle is put on
/// the stream and given a workspace; its stream, math mode and pointer mode are restored
/// afterwards. Its workspace is then cuBLAS's default one, since cuBLAS has no query for it.
///
/// Tensors, workspace, saved states and what a variant borrows (masks, Favor's projection; but not
/// the offsets of packed sequences) are in memory that CUDA knows: device memory, managed, or
/// registered host memory. Every call checks this before it launches anything, and throws CudaError
/// for an address, null included, that CUDA does not know. CudaError is also thrown, with the
/// reason, if a CUDA or cuBLAS call fails; if the program has no code for the device, the message
/// names the architecture to compile for. The error that a failed call leaves for cudaGetLastError
/// is cleared then; the caller's own errors are neither reported nor cleared.
class CudaDevice {
 public:
  /// `workspace` is device memory for expressions that bring none with `.with(...)`.
  /// \throws ShapeError if `products` or `path` is not an enumerator.
  CudaDevice(CUstream_st* stream, cublasContext* cublas, WorkspaceView workspace = {},
             FloatProducts products = FloatProducts::exact, CudaPath path = CudaPath::automatic)
      : stream_(stream), cublas_(cublas), workspace_(workspace), products_(products), path_(path) {
    require_enumerator("products", products, FloatProducts::tf32);
    require_enumerator("path", path, CudaPath::resident);
  }

  /// \cond INTERNAL
  template <class... More>
  CudaDevice(AnyArgument, AnyArgument, AnyArgument = {}, AnyArgument = {}, AnyArgument = {},
             const More&...)
      : CudaDevice(nullptr, nullptr) {
    static_assert(no_such_call<More...>,
                  "mhla: make a CudaDevice from (stream, cublas, {memory, bytes}, products, "
                  "path): a cudaStream_t, a cublasHandle_t, device memory as cudaMalloc returns "
                  "it and, where they are not the defaults, an mhla::FloatProducts and an "
                  "mhla::CudaPath");
  }
  /// \endcond

  /// A cudaStream_t.
  CUstream_st* stream() const { return stream_; }
  /// A cublasHandle_t.
  cublasContext* cublas() const { return cublas_; }
  /// For expressions that bring none.
  WorkspaceView workspace() const { return workspace_; }
  /// How float is multiplied.
  FloatProducts products() const { return products_; }
  /// What runs calls. A call that the requested path cannot run throws a ShapeError that says why.
  CudaPath path() const { return path_; }
  /// This device, whose calls take their paths from `plan`, of <mhla/cuda/pipeline.hpp>, which
  /// outlives them. A call that it is not for throws ShapeError.
  CudaDevice with(const CudaPlan& plan) const {
    CudaDevice device = *this;
    device.plan_ = &plan;
    return device;
  }
  /// \cond INTERNAL
  template <class Plan = AnyArgument>
  CudaDevice with(const Plan&& = {}) const {
    static_assert(no_such_call<Plan>,
                  "mhla: a CudaDevice borrows its plan: device.with(plan) takes an "
                  "mhla::CudaPlan that has a name");
    return *this;
  }
  /// \endcond
  /// Null if there is none.
  const CudaPlan* plan() const { return plan_; }

 private:
  CUstream_st* stream_;
  cublasContext* cublas_;
  WorkspaceView workspace_;
  FloatProducts products_;
  CudaPath path_;
  const CudaPlan* plan_ = nullptr;
};

/// \}

MHLA_NAMESPACE_END
