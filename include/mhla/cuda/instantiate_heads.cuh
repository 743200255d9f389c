// SPDX-License-Identifier: MIT
// The kernels of cuda_head_parallel, for a .cu file of the program: MHLA_INSTANTIATE_CUDA_HEADS.
// They pack and unpack messages of tokens, and copy.
#pragma once

#include <mhla/cuda/copies.cuh>
#include <mhla/cuda/heads.hpp>

MHLA_NAMESPACE_BEGIN

namespace cuda {

/// Moves a row of x: a head of a token in the box that holds all tokens of the message, if it is
/// one of those. Its place among them is the number of them that come before it in the sequence.
/// From const T it goes to the message, otherwise it comes from there.
template <class T, class Message>
struct MoveRow {
  TensorView<T, 4> x;
  GridPart tokens;
  Index begin[3];  // of the box
  Grid box;
  Index count;       // tokens of the message
  Message* message;  // [batch, heads, count, dim]
  Update update;     // of x

  MHLA_HOST_DEVICE void operator()(std::uint32_t row, const RowShare& share) const {
    const Index at = row % box.num_tokens();
    const Index unit = row / box.num_tokens();
    const auto& [grid, blocks] = tokens;
    Index token = 0;
    for (int axis = 0; axis < 3; ++axis)
      token = token * grid.extent[axis] + begin[axis] + box.coordinate(at, axis);
    const Index block = grid.block_of(token);
    if (block < blocks.first || block >= blocks.end()) return;
    const Index place =
        grid.tokens_before(blocks.end(), token) - grid.tokens_before(blocks.first, token);
    T* const here = &x(unit / x.extent[1], unit % x.extent[1], token, 0);
    Message* const there = message + (unit * count + place) * x.extent[3];
    for (Index c = share.first; c < x.extent[3]; c += share.step) {
      T& element = here[c * x.stride[3]];
      if constexpr (std::is_const_v<T>)
        there[c] = element;
      else if (update == Update::overwrite)
        element = there[c];
      else
        store(element, load(element) + load(there[c]));
    }
  }
};
template <class T, class Message>
void move_rows(const CudaDevice& device, const TensorView<T, 4>& x, const GridPart* some,
               Message* message, Update update) {
  const GridPart tokens =
      some == nullptr ? consecutive_tokens(x.extent[2], {0, x.extent[2]}) : *some;
  const GridBox box = tokens.grid.grid_box(tokens.blocks);
  const MoveRow<T, Message> body{x,
                                 tokens,
                                 {box.begin[0], box.begin[1], box.begin[2]},
                                 {{box.extent(0), box.extent(1), box.extent(2)}, {1, 1, 1}},
                                 tokens.size(),
                                 message,
                                 update};
  launch_rows(device, x.extent[0] * x.extent[1] * body.box.num_tokens(), x.extent[3], body);
}

template <class T>
void HeadKernels<T>::pack(const CudaDevice& device, const TensorView<const T, 4>& x,
                          const GridPart* tokens, T* message) {
  move_rows(device, x, tokens, message, Update::overwrite);
}
template <class T>
void HeadKernels<T>::unpack(const CudaDevice& device, const T* message, const TensorView<T, 4>& x,
                            const GridPart* tokens, Update update) {
  move_rows(device, x, tokens, message, update);
}

template <class T>
void HeadKernels<T>::copy_tensor(const CudaDevice& device, const TensorView<const A, 4>& from,
                                 const TensorView<A, 4>& to) {
  cuda::copy(device, from, to);
}
template <class T>
void HeadKernels<T>::clear_tensor(const CudaDevice& device, const TensorView<A, 3>& tensor) {
  cuda::fill(device, tensor, A(0));
}
template <class T>
void HeadKernels<T>::fill(const CudaDevice& device, const TensorView<T, 4>& tensor, T value) {
  cuda::fill(device, tensor, value);
}
template <class T>
void HeadKernels<T>::require_memory(const Footprint& memory) {
  require_device_memory(memory);
}

}  // namespace cuda

MHLA_NAMESPACE_END

/// \ingroup cuda
/// Compiles what mhla::cuda_head_parallel does to tensors of `Scalar`, of any variant, besides the
/// passes of MHLA_INSTANTIATE_CUDA, once in the global namespace of a .cu file of the program.
#define MHLA_INSTANTIATE_CUDA_HEADS(Scalar) template struct mhla::cuda::HeadKernels<Scalar>
