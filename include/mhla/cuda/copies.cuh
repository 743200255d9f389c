// SPDX-License-Identifier: MIT
// Copies and fills of tensors, and copies of sums of blocks, in a plan's arrays or in rows of the
// caller's that hold all that a block leaves.
#pragma once

#include <mhla/cuda/chip/divisor.hpp>
#include <mhla/cuda/chip/launch.cuh>

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

template <class T, int Rank>
void set_zero(const CudaDevice& device, const TensorView<T, Rank>& tensor) {
  fill(device, tensor, T());
}

/// `size` numbers of every block of every unit, for each of its matrices or query heads.
template <class A>
struct BlockRows {
  A* data = nullptr;
  Index size = 0;
  Index of_head = 0;  // from head to head
  Index of_block = 0;
  Index of_unit = 0;

  MHLA_HOST_DEVICE A* at(Index unit, Index block, Index head) const {
    return data + unit * of_unit + block * of_block + head * of_head;
  }
};
/// Contiguous: [units, blocks, heads, size].
template <class A>
BlockRows<A> block_rows(const Span<A>& rows, Index blocks, Index heads, Index size) {
  return {rows.data, size, size, heads * size, blocks * heads * size};
}

/// S and z of blocks, mixed ones or their gradients.
template <class A>
struct BlockSums {
  BlockRows<A> summaries;
  BlockRows<A> key_sums;
  Index blocks = 0;
};

template <class A>
struct CopyBlockRows {
  Divisor heads;
  Divisor blocks;
  BlockRows<A> from;
  BlockRows<A> to;

  MHLA_HOST_DEVICE void operator()(std::uint32_t row, const RowShare& share) const {
    const std::uint32_t head = heads.divide(row);
    const std::uint32_t block = blocks.divide(row);
    const A* const in = from.at(row, block, head);
    A* const out = to.at(row, block, head);
    for (Index i = share.first; i < to.size; i += share.step) out[i] = in[i];
  }
};
/// Copies what every unit has of so many blocks and heads.
template <class A>
void copy(const CudaDevice& device, Index units, Index blocks, Index heads,
          const BlockRows<A>& from, const BlockRows<A>& to) {
  launch_rows(device, units * blocks * heads, to.size,
              CopyBlockRows<A>{Divisor(heads), Divisor(blocks), from, to});
}

}  // namespace cuda

MHLA_NAMESPACE_END
