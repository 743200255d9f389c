// SPDX-License-Identifier: MIT
// A choice of paths that a caller keeps. Needs no CUDA header.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/cuda/call.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/forward_state.hpp>
#include <mhla/policy/fingerprint.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup cuda
/// \{

/// What runs the calls of one variant, scalar type and shape, decided once by mhla::plan: a small
/// value, on the host. Calls on `device.with(plan)` take it instead of choosing anew.
class CudaPlan {
 public:
  /// Bytes of device memory that forward_into takes as workspace: exact.
  Index forward_workspace_size() const { return memory_[0].workspace_bytes; }
  /// Likewise for backward_into, whichever gradients are wanted.
  Index backward_workspace_size() const { return memory_[1].workspace_bytes; }
  /// What runs the forward pass.
  CudaPath forward_path() const { return path_[0]; }
  /// What runs the backward pass.
  CudaPath backward_path() const { return path_[1]; }

  /// \cond INTERNAL
  template <class V, class T>
  explicit CudaPlan(const cuda::Call<V, T>& call)
      : variant_(fingerprint::number_of_types<V, T>()),
        shape_(call.problem.shape),
        query_blocks_(call.problem.query_blocks),
        key_blocks_(call.problem.key_blocks),
        state_(call.state) {}
  void set(cuda::Direction direction, CudaPath path, const cuda::CallMemory& memory) {
    path_[direction == cuda::Direction::backward] = path;
    memory_[direction == cuda::Direction::backward] = memory;
  }
  // The path of a call; throws ShapeError if it is another one than planned.
  template <class V, class T>
  CudaPath path(const cuda::Call<V, T>& call) const {
    const CudaPath path = path_[call.is_backward()];
    if (variant_ != fingerprint::number_of_types<V, T>() || !(shape_ == call.problem.shape) ||
        query_blocks_ != call.problem.query_blocks || key_blocks_ != call.problem.key_blocks ||
        state_ != call.state || path == CudaPath::automatic)
      throw ShapeError(
          "mhla: the CudaPlan is for another variant, scalar type, shape or direction, or for "
          "calls with a forward state or without; mhla::plan makes one for this call");
    return path;
  }
  /// \endcond

 private:
  std::uint64_t variant_;
  Shape shape_;
  Index query_blocks_;
  Index key_blocks_;
  StateUse state_;
  // Of the forward and the backward pass; `automatic` where the path has none.
  CudaPath path_[2] = {CudaPath::automatic, CudaPath::automatic};
  cuda::CallMemory memory_[2] = {};
};

/// \}

MHLA_NAMESPACE_END
