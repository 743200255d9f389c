// SPDX-License-Identifier: MIT
/// \file
/// A sequence shared out over GPUs, by blocks: SequenceParallel on CudaStages. From a plain .cpp;
/// the kernels are those of MHLA_INSTANTIATE_CUDA_STAGES.
#pragma once

#include <cstddef>
#include <mhla/core/config.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/device.hpp>
#include <mhla/cuda/stages.hpp>
#include <mhla/distributed/communicator.hpp>
#include <mhla/distributed/sequence_parallel.hpp>
#include <mhla/distributed/shares.hpp>
#include <mhla/policy/sums_layout.hpp>
#include <mhla/policy/variant.hpp>
#include <utility>

MHLA_NAMESPACE_BEGIN

/// \addtogroup distributed
/// \{

/// \cond INTERNAL
// What SequenceParallel does besides stages, found by argument-dependent lookup.
template <class V, class T, class From, class To, int Rank>
void copy_tensor(const CudaStages<V, T>&, const CudaDevice& device,
                 const TensorView<From, Rank>& from, const TensorView<To, Rank>& to) {
  CudaStages<V, T>::Kernels::copy_tensor(device, from, to);
}
template <class V, class T, class A>
void clear_tensor(const CudaStages<V, T>&, const CudaDevice& device,
                  const TensorView<A, 3>& tensor) {
  CudaStages<V, T>::Kernels::clear_tensor(device, tensor);
}
template <class V, class T, class A>
void clear_tensor(const CudaStages<V, T>& stages, const CudaDevice& device,
                  const TensorView<A, 2>& rows) {
  clear_tensor(stages, device, TensorView<A, 3>(rows));
}
template <class V, class T, class A>
void round_rows(const CudaStages<V, T>&, const CudaDevice& device, const SumsLayout& of,
                const TensorView<A, 2>& rows, std::byte* to) {
  CudaStages<V, T>::Kernels::round_rows(device, of, rows, to);
}
template <class V, class T, class A>
void widen_rows(const CudaStages<V, T>&, const CudaDevice& device, const SumsLayout& of,
                const std::byte* from, const TensorView<A, 2>& rows) {
  CudaStages<V, T>::Kernels::widen_rows(device, of, from, rows);
}
/// \endcond

/// SequenceParallel of tensors of T in device memory: its calls take a CudaDevice in place of an
/// executor, views and a workspace of device memory, and run in stream order on
/// CudaPath::cublas. The communicator moves device memory, and waits for the device's stream before
/// it sends: NcclCommunicator does on that stream.
template <StorageScalar T, AttentionVariant V, Communicator C>
SequenceParallel<CudaStages<V, T>, C> cuda_sequence_parallel(const V& attention, const Shape& whole,
                                                             const C& communicator, Shares queries,
                                                             Shares keys = {},
                                                             Wire wire = Wire::exact) {
  return {attention, whole, communicator, std::move(queries), std::move(keys), wire};
}

/// \}

MHLA_NAMESPACE_END
