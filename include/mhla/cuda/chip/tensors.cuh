// SPDX-License-Identifier: MIT
// Tensors copied, and filled.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/chip/launch.cuh>
#include <mhla/cuda/device.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

template <class T, int Rank>
struct CopyTensor {
  TensorView<const T, Rank> from;
  TensorView<T, Rank> to;

  MHLA_HOST_DEVICE void operator()(Index i) const { to.element(i) = from.element(i); }
};
template <class T, int Rank>
void copy(const CudaDevice& device, const TensorView<const T, Rank>& from,
          const TensorView<T, Rank>& to) {
  launch(device, to.size(), CopyTensor<T, Rank>{from, to});
}

template <class T, int Rank>
struct FillTensor {
  TensorView<T, Rank> tensor;
  T value;

  MHLA_HOST_DEVICE void operator()(Index i) const { tensor.element(i) = value; }
};
template <class T, int Rank>
void fill(const CudaDevice& device, const TensorView<T, Rank>& tensor, T value) {
  launch(device, tensor.size(), FillTensor<T, Rank>{tensor, value});
}

}  // namespace cuda

MHLA_NAMESPACE_END
