// SPDX-License-Identifier: MIT
// What cuda_head_parallel does to tensors besides forward_into and backward_into.
#pragma once

#include <mhla/cuda/device.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// What is done to tensors of T besides running heads. An undefined reference to a member means
/// that no .cu of the program has MHLA_INSTANTIATE_CUDA_HEADS(T).
template <class T>
struct HeadKernels {
  using A = Accumulator<T>;

  /// Copies these tokens, or all, of x [batch, heads, tokens, dim] to a message, in this order.
  static void pack(const CudaDevice& device, const TensorView<const T, 4>& x,
                   const GridPart* tokens, T* message);
  /// Writes a message's tokens to x, or adds them.
  static void unpack(const CudaDevice& device, const T* message, const TensorView<T, 4>& x,
                     const GridPart* tokens, Update update);
  static void copy_tensor(const CudaDevice& device, const TensorView<const A, 4>& from,
                          const TensorView<A, 4>& to);
  static void clear_tensor(const CudaDevice& device, const TensorView<A, 3>& tensor);
  static void fill(const CudaDevice& device, const TensorView<T, 4>& tensor, T value);
  /// Throws unless CUDA knows it.
  static void require_memory(const Footprint& memory);
};

}  // namespace cuda

MHLA_NAMESPACE_END
