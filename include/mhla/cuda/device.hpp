// SPDX-License-Identifier: MIT
// Where the CUDA backend runs: a stream, a cuBLAS handle and scratch memory, all the caller's.
// Needs no CUDA header, so that a plain .cpp can name it.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/workspace.hpp>

// CUDA's own handles, declared as its headers declare them.
struct CUstream_st;
struct cublasContext;

MHLA_NAMESPACE_BEGIN

/// How products of float are computed. Those of double are exact always.
enum class FloatProducts {
  exact,  ///< in float: neither TF32 nor any other shorter format, whatever mode the handle is in
  tf32    ///< in TF32 on tensor cores: relative errors of 2^-11
};

/// What runs a call: see <mhla/cuda/path.hpp>.
enum class CudaPath {
  automatic,  ///< whichever of the others takes the least time, by a model of it
  cublas,     ///< cuBLAS products with element-wise kernels around them: runs every call
  summaries,  ///< fused kernels by way of block summaries: linear in the tokens
  quadratic,  ///< fused kernels over pairs of tokens, without summaries: for short sequences
  resident,   ///< a fused kernel whose block summaries stay on the chip: few blocks, forward alone
  /// One launch for all that `summaries` does, whose block summaries stay in the chip's L2: up to
  /// 128 blocks, forward alone. Not among those that `automatic` takes yet.
  persistent
};

/// A CUDA device as the caller sees it. Borrowed and cheap to copy; nothing is owned.
///
/// Every call runs in `stream` order and returns at once: it allocates nothing and waits for
/// nothing, so that it can be captured into a CUDA graph. The cuBLAS handle is put on the stream
/// and given a workspace for the call; stream, math mode and pointer mode are the caller's again
/// afterwards, its workspace is cuBLAS's default one, since that cannot be asked for.
///
/// Tensors, workspace, saved states and what a variant borrows (masks, Favor's projection; not the
/// offsets of packed sequences) lie in memory that CUDA knows: device memory, managed, or
/// registered host memory. Every call asks CUDA so before it launches anything, and throws
/// CudaError where an address, or none, is given that CUDA does not know; likewise where CUDA or
/// cuBLAS refuses, with the reason, and for which chip to compile where the program holds no code
/// for the device. The error that a failed call leaves for cudaGetLastError is taken back then; the
/// caller's own errors are neither reported nor cleared.
class CudaDevice {
 public:
  CudaDevice(CUstream_st* stream, cublasContext* cublas, WorkspaceView workspace = {},
             FloatProducts products = FloatProducts::exact, CudaPath path = CudaPath::automatic)
      : stream_(stream), cublas_(cublas), workspace_(workspace), products_(products), path_(path) {}

  CUstream_st* stream() const { return stream_; }
  cublasContext* cublas() const { return cublas_; }
  /// What expressions use that bring no workspace of their own.
  WorkspaceView workspace() const { return workspace_; }
  FloatProducts products() const { return products_; }
  /// What runs calls; one that it cannot run is a ShapeError that says why.
  CudaPath path() const { return path_; }

 private:
  CUstream_st* stream_;
  cublasContext* cublas_;
  WorkspaceView workspace_;
  FloatProducts products_;
  CudaPath path_;
};

MHLA_NAMESPACE_END
