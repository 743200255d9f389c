// SPDX-License-Identifier: MIT
// The calls of a shape's passes.
#include "gpu_passes.hpp"

#include <memory>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cuda/pipeline.hpp>

namespace bench {

template <class T>
GpuPasses gpu_passes(const GpuShape& shape, const mhla::CudaDevice& device,
                     const GpuTensors<T>& x) {
  return with_gpu_variant(shape, [&](const auto& attention) {
    const auto tensor = [&](auto* data, std::ptrdiff_t dim) {
      return mhla::make_view(data, shape.batch, shape.heads, shape.tokens(), dim);
    };
    const auto matrix = [&](auto* data) {
      return mhla::make_view(data, 1, shape.blocks(), shape.blocks());
    };
    const auto q = tensor(x.q, shape.key_dim), k = tensor(x.k, shape.key_dim);
    const auto v = tensor(x.v, shape.value_dim), dy = tensor(x.dy, shape.value_dim);
    const auto y = tensor(x.y, shape.value_dim);
    const auto mix = matrix(x.mix);
    const mhla::GradientViews<T> gradients{tensor(x.dq, shape.key_dim), tensor(x.dk, shape.key_dim),
                                           tensor(x.dv, shape.value_dim), matrix(x.dmix)};
    const auto cost = [&](mhla::cuda::Direction direction) {
      return mhla::cuda::call_cost<T>(attention, shape.call(), device, direction);
    };
    const bool keeps = x.state.data != nullptr;
    const auto state = std::make_shared<mhla::CudaForwardState<mhla::Accumulator<T>>>(x.state);
    GpuPasses passes;
    passes.forward = {cost(mhla::cuda::Direction::forward),
                      [=](const mhla::CudaDevice& on, mhla::WorkspaceView workspace) {
                        mhla::forward_into(attention, on, q, k, v, mix, y, workspace,
                                           keeps ? state.get() : nullptr);
                      }};
    if (mhla::cuda::traits_of(device.path()).has_backward)
      passes.backward = GpuPass{cost(mhla::cuda::Direction::backward),
                                [=](const mhla::CudaDevice& on, mhla::WorkspaceView workspace) {
                                  mhla::backward_into(attention, on, q, k, v, mix, dy, gradients,
                                                      mhla::Update::overwrite, workspace,
                                                      keeps ? state.get() : nullptr);
                                }};
    return passes;
  });
}

mhla::Index gpu_state_size(const GpuShape& shape, const mhla::CudaDevice& device) {
  return with_gpu_variant(shape, [&](const auto& attention) {
    return mhla::forward_state_size(attention, shape.call(), device);
  });
}

template GpuPasses gpu_passes(const GpuShape&, const mhla::CudaDevice&, const GpuTensors<float>&);
template GpuPasses gpu_passes(const GpuShape&, const mhla::CudaDevice&,
                              const GpuTensors<mhla::BFloat16>&);

}  // namespace bench
