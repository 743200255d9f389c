// SPDX-License-Identifier: MIT
// The attention and its gradients as operators of PyTorch, over the tensors' own memory and
// strides. mhla_torch/__init__.py joins the two for autograd.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>
#ifdef MHLA_TORCH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include <mhla/cuda/pipeline.hpp>
#endif

#include <array>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/mixing_matrix.hpp>
#include <type_traits>
#include <vector>

#include "variants.hpp"

namespace mhla_torch {
namespace {

using at::Tensor;

/// PyTorch's own threads, as many as torch.set_num_threads says.
struct TorchThreads {
  mhla::Index num_slots() const { return at::get_num_threads(); }

  template <class Task>
  void parallel_for(mhla::Index tasks, const Task& f) const {
    at::parallel_for(0, tasks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) f(task, at::get_thread_num());
    });
  }
};

/// Where a call runs, as the library takes it.
struct OnCpu {
  TorchThreads executor;

  explicit OnCpu(const Tensor& /*q*/) {}
};
struct OnCuda {
#ifdef MHLA_TORCH_CUDA
  c10::cuda::CUDAGuard guard;
  mhla::CudaDevice executor;

  explicit OnCuda(const Tensor& q)
      : guard(q.device()),
        executor(at::cuda::getCurrentCUDAStream(), at::cuda::getCurrentCUDABlasHandle()) {}
#else
  TorchThreads executor;

  explicit OnCuda(const Tensor& /*q*/) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "mhla_torch was compiled without CUDA, which takes nvcc and a GPU at hand");
  }
#endif
};

/// What a call is told beside its tensors. `grid` is empty for a sequence.
struct Options {
  at::IntArrayRef block;
  at::IntArrayRef grid;
  bool causal;
  bool normalize;
  double scale;
};

/// A tensor as the library sees it. Nothing is copied.
template <class T, int Rank>
mhla::TensorView<T, Rank> view(const Tensor& tensor, const char* name) {
  TORCH_CHECK_VALUE(tensor.dim() == Rank, "mhla: ", name, " has ", tensor.dim(),
                    " axes, but must be ",
                    Rank == 4 ? "[batch, heads, tokens, dim]" : "[(heads,) blocks, blocks]");
  mhla::TensorView<T, Rank> view;
  if constexpr (std::is_const_v<T>) {
    view.data = static_cast<T*>(tensor.const_data_ptr());
  } else {
    view.data = static_cast<T*>(tensor.mutable_data_ptr());
  }
  for (int axis = 0; axis < Rank; ++axis) {
    view.extent[axis] = tensor.size(axis);
    view.stride[axis] = tensor.stride(axis);
  }
  return view;
}

/// mix, or its gradient: one matrix for all heads, or one for each.
template <class A>
mhla::TensorView<A, 3> matrices(const Tensor& mix) {
  return view<A, 3>(mix.dim() == 2 ? mix.unsqueeze(0) : mix, "mix");
}

template <class T>
mhla::OperandViews<T> views(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mix) {
  return {view<const T, 4>(q, "q"), view<const T, 4>(k, "k"), view<const T, 4>(v, "v"),
          matrices<const mhla::Accumulator<T>>(mix)};
}

/// Calls f with a scalar of the tensors' storage type.
template <class F>
void with_scalar(const Tensor& q, const F& f) {
  switch (q.scalar_type()) {
    case at::kFloat:
      return f(float{});
    case at::kDouble:
      return f(double{});
    case at::kBFloat16:
      return f(mhla::BFloat16{});
    default:
      TORCH_CHECK_TYPE(false, "mhla: q is of ", q.scalar_type(),
                       ", but must be of float32, float64 or bfloat16");
  }
}

/// Extents on the three axes of a video; those that are missing are 1, in front.
void copy_axes(at::IntArrayRef from, mhla::Index (&to)[3]) {
  for (std::size_t axis = 0; axis < 3; ++axis)
    to[axis] = axis + from.size() < 3 ? 1 : from[axis + from.size() - 3];
}

void require_axes(at::IntArrayRef block, std::size_t axes) {
  TORCH_CHECK_VALUE(axes >= 1 && axes <= 3, "mhla: grid has ", axes,
                    " extents, but must have 1 to 3");
  TORCH_CHECK_VALUE(block.size() == axes, "mhla: block has ", block.size(),
                    " extents, but must have ", axes,
                    ", one for each axis of grid; without grid the tokens are a sequence");
  for (const std::int64_t extent : block)
    TORCH_CHECK_VALUE(extent > 0, "mhla: block holds ", extent, ", but must hold at least 1 token");
}

/// Calls f with the variant that the options ask for.
template <class F>
void with_variant(const Options& o, const F& f) {
  using mhla::MixedKeySum, mhla::Unnormalized;
  const std::size_t axes = o.grid.empty() ? 1 : o.grid.size();
  require_axes(o.block, axes);
  TORCH_CHECK_VALUE(!o.causal || o.grid.empty(), "mhla: causal attention takes no grid");
  if (o.grid.empty()) {
    const mhla::Blocks1D blocks{o.block[0]};
    if (o.causal && o.normalize) return f(Causal<MixedKeySum>{.blocks = blocks, .scale = o.scale});
    if (o.causal) return f(Causal<Unnormalized>{.blocks = blocks, .scale = o.scale});
    if (o.normalize) return f(Sequence<MixedKeySum>{.blocks = blocks, .scale = o.scale});
    return f(Sequence<Unnormalized>{.blocks = blocks, .scale = o.scale});
  }
  mhla::Blocks3D blocks;
  copy_axes(o.grid, blocks.grid);
  copy_axes(o.block, blocks.block);
  if (o.normalize) return f(Video<MixedKeySum>{.blocks = blocks, .scale = o.scale});
  return f(Video<Unnormalized>{.blocks = blocks, .scale = o.scale});
}

/// Calls f; a ShapeError becomes Python's ValueError.
template <class F>
void translated(const F& f) {
  try {
    f();
  } catch (const mhla::ShapeError& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

void require_same_type(const Tensor& q, const Tensor& other, const char* name) {
  TORCH_CHECK_TYPE(other.device() == q.device(), "mhla: ", name, " is on ", other.device(),
                   ", but q is on ", q.device());
  TORCH_CHECK_TYPE(other.scalar_type() == q.scalar_type(), "mhla: ", name, " is of ",
                   other.scalar_type(), ", but q is of ", q.scalar_type());
}

/// Calls f(attention, scalar) for the operands.
template <class F>
void call(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mix, const Options& o,
          const F& f) {
  require_same_type(q, k, "k");
  require_same_type(q, v, "v");
  const at::ScalarType sums = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  TORCH_CHECK_TYPE(mix.scalar_type() == sums && mix.device() == q.device(), "mhla: mix is of ",
                   mix.scalar_type(), " on ", mix.device(), ", but must be of ", sums, " on ",
                   q.device());
  translated([&] {
    with_scalar(q, [&](auto scalar) {
      with_variant(o, [&](const auto& attention) { f(attention, scalar); });
    });
  });
}

/// Scratch memory for one call, from PyTorch's allocator.
struct Scratch {
  Tensor bytes;

  Scratch(const Tensor& like, mhla::Index size)
      : bytes(at::empty({size}, like.options().dtype(at::kByte))) {}
  operator mhla::WorkspaceView() const {  // NOLINT: it is one
    return {static_cast<std::byte*>(bytes.mutable_data_ptr()), bytes.numel()};
  }
};

template <class Machine>
Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mix,
               at::IntArrayRef block, at::IntArrayRef grid, bool causal, bool normalize,
               double scale) {
  const Machine on(q);
  Tensor y;
  call(q, k, v, mix, {block, grid, causal, normalize, scale}, [&](const auto& attention, auto t) {
    using T = decltype(t);
    const mhla::OperandViews<T> x = views<T>(q, k, v, mix);
    const Scratch scratch(q, mhla::forward_workspace_size<T>(attention, x.shape(), on.executor));
    // Tokens first in memory, so that joining the heads afterwards copies nothing.
    y = at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options()).transpose(1, 2);
    mhla::forward_into(attention, on.executor, x.q, x.k, x.v, x.mix, view<T, 4>(y, "y"), scratch);
  });
  return y;
}

/// The gradients that are wanted of q, k, v and mix, in this order.
template <class Machine>
std::vector<Tensor> backward(const Tensor& dy, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& mix, at::IntArrayRef block, at::IntArrayRef grid,
                             bool causal, bool normalize, double scale,
                             std::array<bool, 4> wanted) {
  const Machine on(q);
  std::vector<Tensor> results;
  require_same_type(q, dy, "dy");
  call(q, k, v, mix, {block, grid, causal, normalize, scale}, [&](const auto& attention, auto t) {
    using T = decltype(t);
    const mhla::OperandViews<T> x = views<T>(q, k, v, mix);
    const Scratch scratch(q, mhla::backward_workspace_size<T>(attention, x.shape(), on.executor));
    const auto like = [&](const Tensor& operand) {
      return results.emplace_back(at::empty_like(operand));
    };
    mhla::GradientViews<T> gradients{mhla::skip, mhla::skip, mhla::skip, mhla::skip};
    if (wanted[0]) gradients.query = view<T, 4>(like(q), "dq");
    if (wanted[1]) gradients.key = view<T, 4>(like(k), "dk");
    if (wanted[2]) gradients.value = view<T, 4>(like(v), "dv");
    if (wanted[3]) gradients.mix = matrices<mhla::Accumulator<T>>(like(mix));
    mhla::backward_into(attention, on.executor, x.q, x.k, x.v, x.mix, view<const T, 4>(dy, "dy"),
                        gradients, mhla::Update::overwrite, scratch);
  });
  return results;
}

/// mix between blocks of a grid, as mhla::initialize fills it.
Tensor initial_mix(at::IntArrayRef block, at::IntArrayRef grid, bool causal) {
  require_axes(block, grid.size());
  Tensor mix;
  translated([&] {
    mhla::Grid blocks;
    copy_axes(grid, blocks.extent);
    copy_axes(block, blocks.block);
    mix = at::empty({blocks.num_blocks(), blocks.num_blocks()}, at::kFloat);
    mhla::initialize(view<float, 2>(mix, "mix"), blocks,
                     {.transform = causal ? mhla::Transform::causal : mhla::Transform::linear});
  });
  return mix;
}

}  // namespace

TORCH_LIBRARY(mhla_torch, library) {
  library.def(
      "attention(Tensor q, Tensor k, Tensor v, Tensor mix, int[] block, int[] grid, bool causal, "
      "bool normalize, float scale) -> Tensor");
  library.def(
      "attention_backward(Tensor dy, Tensor q, Tensor k, Tensor v, Tensor mix, int[] block, "
      "int[] grid, bool causal, bool normalize, float scale, bool[4] wanted) -> Tensor[]");
  library.def("initial_mix(int[] block, int[] grid, bool causal) -> Tensor", initial_mix);
}
TORCH_LIBRARY_IMPL(mhla_torch, CPU, library) {
  library.impl("attention", forward<OnCpu>);
  library.impl("attention_backward", backward<OnCpu>);
}
TORCH_LIBRARY_IMPL(mhla_torch, CUDA, library) {
  library.impl("attention", forward<OnCuda>);
  library.impl("attention_backward", backward<OnCuda>);
}

}  // namespace mhla_torch
