// SPDX-License-Identifier: MIT
// Copies and fills of tensors; copies of sums of blocks, in a plan's arrays or in rows of the
// caller's that hold all that a block leaves; and rows of sums as they travel between ranks.
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

/// Moves an element between rows of sums and bytes that travel: all of S as bfloat16, then all of
/// z. With const Sum it rounds, with const Byte it widens.
template <class Sum, class Byte>
struct RoundSums {
  using A = std::remove_const_t<Sum>;
  SumsLayout of;
  TensorView<Sum, 2> rows;
  Byte* travelling;
  Index bytes;     // of a row that travels
  Index key_sums;  // where z begins in them

  MHLA_HOST_DEVICE void operator()(Index i) const {
    const Index row = i / rows.extent[1];
    const Index element = i % rows.extent[1];
    const Index unit = element / (of.summary + of.key_sum);
    const Index c = element % (of.summary + of.key_sum);
    if (c < of.summary)
      move(rows(row, element), place<BFloat16>(row, 0)[unit * of.summary + c]);
    else
      move(rows(row, element), place<A>(row, key_sums)[unit * of.key_sum + c - of.summary]);
  }

 private:
  template <class X>
  MHLA_HOST_DEVICE auto* place(Index row, Index first) const {
    return reinterpret_cast<std::conditional_t<std::is_const_v<Byte>, const X, X>*>(
        travelling + row * bytes + first);
  }
  template <class X>
  MHLA_HOST_DEVICE static void move(Sum& sum, X& travels) {
    if constexpr (!std::is_const_v<Sum>)
      sum = static_cast<A>(travels);
    else if constexpr (std::is_same_v<X, A>)
      travels = sum;
    else
      travels = X(static_cast<float>(sum));
  }
};
template <class Sum, class Byte>
void round_sums(const CudaDevice& device, const SumsLayout& of, const TensorView<Sum, 2>& rows,
                Byte* travelling) {
  using A = std::remove_const_t<Sum>;
  const Index bytes = of.bytes<A>(Wire::bfloat16);
  const Index key_sums = of.count * of.key_sum * static_cast<Index>(sizeof(A));
  launch(device, rows.size(), RoundSums<Sum, Byte>{of, rows, travelling, bytes, bytes - key_sums});
}

}  // namespace cuda

MHLA_NAMESPACE_END
