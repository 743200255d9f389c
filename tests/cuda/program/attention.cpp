// SPDX-License-Identifier: MIT
// Expressions on a CudaDevice in a plain .cpp.
#include "attention.hpp"

#include <mhla/cuda.hpp>

#include "variants.hpp"

#if defined(CUDART_VERSION) || defined(CUBLAS_VERSION) || defined(__CUDACC__)
#error "<mhla/cuda.hpp> must not include a CUDA header"
#endif

namespace program {

namespace {

const Vision attention{.blocks = {.grid = {side, side}, .block = {block, block}}};

struct Tensors {
  using Map4 = Eigen::TensorMap<Eigen::Tensor<float, 4, Eigen::RowMajor>>;
  using Map3 = Eigen::TensorMap<Eigen::Tensor<float, 3, Eigen::RowMajor>>;

  explicit Tensors(const Memory& m)
      : q(m.q, batch, heads, tokens, key_dim),
        k(m.k, batch, kv_heads, tokens, key_dim),
        v(m.v, batch, kv_heads, tokens, value_dim),
        dy(m.dy, batch, heads, tokens, value_dim),
        y(m.y, batch, heads, tokens, value_dim),
        dq(m.dq, batch, heads, tokens, key_dim),
        dk(m.dk, batch, kv_heads, tokens, key_dim),
        dv(m.dv, batch, kv_heads, tokens, value_dim),
        mix(m.mix, 1, blocks, blocks),
        dmix(m.dmix, 1, blocks, blocks) {}

  Map4 q, k, v, dy, y, dq, dk, dv;
  Map3 mix, dmix;
};

template <class Device>
void run_on(const Device& device, const Memory& memory) {
  Tensors t(memory);
  t.y.device(device) = attention(t.q, t.k, t.v, t.mix);
  mhla::gradients(t.dq, t.dk, t.dv, t.dmix).device(device) =
      attention.backward(t.q, t.k, t.v, t.mix, t.dy);
}

}  // namespace

long workspace_bytes(const mhla::CudaDevice& device) {
  const mhla::Shape shape{batch,   heads,     kv_heads, tokens, tokens,
                          key_dim, value_dim, 1,        blocks, blocks};
  return std::max(mhla::forward_workspace_size<float>(attention, shape, device),
                  mhla::backward_workspace_size<float>(attention, shape, device));
}

void run(const mhla::CudaDevice& device, const Memory& memory) { run_on(device, memory); }
void run_on_cpu(const Memory& memory) { run_on(Eigen::DefaultDevice(), memory); }

}  // namespace program
