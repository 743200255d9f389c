// SPDX-License-Identifier: MIT
// One attention call on the GPU, with everything it reads and writes in guarded memory, and the
// same call on the CPU in double.
#pragma once

#include <cstdint>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/cuda/choose_path.hpp>
#include <mhla/cuda/pipeline.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <optional>
#include <string>
#include <vector>

#include "guarded_buffer.hpp"

namespace gpu {

using namespace mhla;

/// q, k, v, mix and the output's gradient.
template <class T>
struct Inputs {
  HostTensor<T, 4> q, k, v, dy;
  HostTensor<Accumulator<T>, 3> mix;

  Inputs() = default;
  /// Exact in every storage type; q and k away from the kinks of feature maps, v with a mean.
  Inputs(const Shape& s, std::uint64_t seed) {
    using mhla::testing::random_tensor;
    const mhla::testing::ExactInBFloat16<mhla::testing::AwayFromKink> features;
    const mhla::testing::ExactInBFloat16<mhla::testing::Uniform> values{{-0.5f, 1.5f}};
    const mhla::testing::Uniform weights{0.1f, 1.0f};
    q = random_tensor<T>(features, seed, s.batch, s.heads, s.query_tokens, s.key_dim);
    k = random_tensor<T>(features, seed + 1, s.batch, s.kv_heads, s.key_tokens, s.key_dim);
    v = random_tensor<T>(values, seed + 2, s.batch, s.kv_heads, s.key_tokens, s.value_dim);
    dy = random_tensor<T>(values, seed + 3, s.batch, s.heads, s.query_tokens, s.value_dim);
    mix = random_tensor<Accumulator<T>>(weights, seed + 4, s.mix_heads, s.mix_query_blocks,
                                        s.mix_key_blocks);
  }

  Shape shape() const { return mhla::shape_of(q.view(), k.view(), v.view(), mix.view()); }
};

/// y and the gradients.
template <class T>
struct Results {
  HostTensor<T, 4> y, dq, dk, dv;
  HostTensor<Accumulator<T>, 3> dmix;

  friend bool operator==(const Results& a, const Results& b) {
    using mhla::testing::bitwise_equal;
    return bitwise_equal(a.y.view(), b.y.view()) && bitwise_equal(a.dq.view(), b.dq.view()) &&
           bitwise_equal(a.dk.view(), b.dk.view()) && bitwise_equal(a.dv.view(), b.dv.view()) &&
           bitwise_equal(a.dmix.view(), b.dmix.view());
  }
};

/// The CPU backend's in double, of inputs rounded to T.
template <class V, class T>
Results<double> on_cpu(const V& attention, const Inputs<T>& rounded) {
  using mhla::testing::converted;
  Inputs<double> x;
  x.q = converted<double>(rounded.q), x.k = converted<double>(rounded.k);
  x.v = converted<double>(rounded.v), x.dy = converted<double>(rounded.dy);
  x.mix = converted<double>(rounded.mix);
  Results<double> r{x.dy, x.q, x.k, x.v, x.mix};
  const mhla::SerialExecutor serial;
  const mhla::Workspace workspace(
      std::max(mhla::forward_workspace_size<double>(attention, x.shape(), serial),
               mhla::backward_workspace_size<double>(attention, x.shape(), serial)));
  mhla::forward_into(attention, serial, x.q, x.k, x.v, x.mix, r.y.view(), workspace);
  mhla::backward_into(attention, serial, x.q.view(), x.k, x.v, x.mix, x.dy,
                      {r.dq.view(), r.dk.view(), r.dv.view(), r.dmix.view()}, Update::overwrite,
                      workspace);
  return r;
}

/// A variant whose borrowed arrays are where the GPU reads them: masks in device memory. Offsets
/// stay on the host, which cuts sequences into blocks.
template <class V>
struct DeviceVariant {
  V attention;

  explicit DeviceVariant(const V& variant) : attention(variant) {}
};
template <class A>
struct DeviceVariant<mhla::Padded<A>> {
  GuardedBuffer query_mask, key_mask;
  mhla::Padded<A> attention;

  explicit DeviceVariant(const mhla::Padded<A>& variant)
      : query_mask(variant.masks.query.size()),
        key_mask(variant.masks.key.size()),
        attention(variant) {
    move(attention.masks.query, query_mask);
    move(attention.masks.key, key_mask);
  }

 private:
  static void move(TensorView<const std::uint8_t, 2>& mask, const GuardedBuffer& buffer) {
    buffer.upload(mask.data);  // row by row without gaps
    mask.data = reinterpret_cast<const std::uint8_t*>(buffer.data());
  }
};

/// Whether memory that a call writes is poisoned before. A tool that looks for reads of memory that
/// nothing has written wants it left alone.
inline bool poisons = true;

/// The same device, for gradients: a path that has none leaves them to another.
inline mhla::CudaDevice for_gradients(const mhla::CudaDevice& device) {
  if (mhla::cuda::traits_of(device.path()).has_backward) return device;
  return {device.stream(), device.cublas(), device.workspace(), device.products()};
}

template <class T, class V>
class Call {
 public:
  Call(const V& attention, const Inputs<T>& inputs, Layout layout = Layout::heads_first)
      : variant_(attention),
        inputs_(inputs),
        q_(inputs.q, layout),
        k_(inputs.k, layout),
        v_(inputs.v, layout),
        dy_(inputs.dy, layout),
        mix_(inputs.mix),
        y_(inputs.dy, layout),
        dq_(inputs.q, layout),
        dk_(inputs.k, layout),
        dv_(inputs.v, layout),
        dmix_(inputs.mix) {}

  /// Forward passes save their summaries from now on, backward passes take them.
  void keep_state(const mhla::CudaDevice& device) {
    const Index size = mhla::forward_state_size(variant_.attention, inputs_.shape(), device);
    state_memory_.emplace(size * static_cast<Index>(sizeof(Accumulator<T>)));
    state_ = mhla::CudaForwardState<Accumulator<T>>(
        {reinterpret_cast<Accumulator<T>*>(state_memory_->data()), size});
  }

  /// y, in stream order.
  void forward(const mhla::CudaDevice& device) {
    const mhla::WorkspaceView workspace = reserve(
        forward_memory_,
        mhla::forward_workspace_size<T>(variant_.attention, inputs_.shape(), device, state_use()));
    mhla::forward_into(variant_.attention, device, q_.view(), k_.view(), v_.view(), mix_.view(),
                       y_.view(), workspace, state_memory_ ? &state_ : nullptr);
  }
  /// Gradients, in stream order.
  void backward(const mhla::CudaDevice& device, Update update = Update::overwrite) {
    backward(device, {dq_.view(), dk_.view(), dv_.view(), dmix_.view()}, update);
  }
  void backward(const mhla::CudaDevice& asked, const GradientViews<T>& gradients, Update update) {
    const mhla::CudaDevice device = for_gradients(asked);
    const mhla::WorkspaceView workspace = reserve(
        backward_memory_,
        mhla::backward_workspace_size<T>(variant_.attention, inputs_.shape(), device, state_use()));
    mhla::backward_into(variant_.attention, device, q_.view(), k_.view(), v_.view(), mix_.view(),
                        dy_.view(), gradients, update, workspace,
                        state_memory_ ? &state_ : nullptr);
  }

  /// Takes the workspaces, which a graph's recording may not.
  void reserve(const mhla::CudaDevice& device) {
    const Shape shape = inputs_.shape();
    reserve(forward_memory_,
            mhla::forward_workspace_size<T>(variant_.attention, shape, device, state_use()));
    reserve(backward_memory_, mhla::backward_workspace_size<T>(variant_.attention, shape,
                                                               for_gradients(device), state_use()));
  }

  /// Not-a-number into everything that a call writes.
  void poison() const {
    if (!poisons) return;
    for (const GuardedBuffer* buffer : written()) buffer->poison();
  }
  /// Other operands in the same memory.
  void replace(const Inputs<T>& inputs) {
    inputs_ = inputs;
    q_.upload(inputs.q), k_.upload(inputs.k), v_.upload(inputs.v), dy_.upload(inputs.dy);
    mix_.upload(inputs.mix);
  }
  /// What gradients accumulate onto.
  void start_gradients_at(const Results<T>& from) const {
    dq_.upload(from.dq), dk_.upload(from.dk), dv_.upload(from.dv), dmix_.upload(from.dmix);
  }

  /// What lies in the destinations; the stream must have been waited for.
  Results<T> results() const {
    return {y_.download(), dq_.download(), dk_.download(), dv_.download(), dmix_.download()};
  }

  /// What a call has written that it must not write; empty where all is well.
  std::string damage() const {
    using mhla::testing::bitwise_equal;
    std::string damage;
    const auto add = [&](bool intact, const char* what) {
      if (!intact) damage += (damage.empty() ? "" : ", ") + std::string(what);
    };
    for (const GuardedBuffer* buffer : written()) add(buffer->intact(), "around a destination");
    const GuardedBuffer* const read[] = {&q_.buffer(), &k_.buffer(), &v_.buffer(), &dy_.buffer(),
                                         &mix_.buffer()};
    for (const GuardedBuffer* buffer : read) add(buffer->intact(), "around an operand");
    add(bitwise_equal(q_.download().view(), inputs_.q.view()), "q");
    add(bitwise_equal(k_.download().view(), inputs_.k.view()), "k");
    add(bitwise_equal(v_.download().view(), inputs_.v.view()), "v");
    add(bitwise_equal(dy_.download().view(), inputs_.dy.view()), "dy");
    add(bitwise_equal(mix_.download().view(), inputs_.mix.view()), "mix");
    return damage;
  }

  const DeviceTensor<T, 4>& dk() const { return dk_; }
  const DeviceTensor<T, 4>& dv() const { return dv_; }

 private:
  mhla::StateUse state_use() const {
    return state_memory_ ? mhla::StateUse::given : mhla::StateUse::none;
  }
  mhla::WorkspaceView reserve(std::optional<GuardedBuffer>& memory, Index bytes) {
    if (!memory) {
      memory.emplace(bytes);
      if (poisons) memory->poison();
    }
    return memory->workspace();
  }
  std::vector<const GuardedBuffer*> written() const {
    std::vector<const GuardedBuffer*> buffers{&y_.buffer(), &dq_.buffer(), &dk_.buffer(),
                                              &dv_.buffer(), &dmix_.buffer()};
    if (forward_memory_) buffers.push_back(&*forward_memory_);
    if (backward_memory_) buffers.push_back(&*backward_memory_);
    if (state_memory_) buffers.push_back(&*state_memory_);
    return buffers;
  }

  DeviceVariant<V> variant_;
  Inputs<T> inputs_;
  DeviceTensor<T, 4> q_, k_, v_, dy_;
  DeviceTensor<Accumulator<T>, 3> mix_;
  DeviceTensor<T, 4> y_, dq_, dk_, dv_;
  DeviceTensor<Accumulator<T>, 3> dmix_;
  std::optional<GuardedBuffer> forward_memory_;
  std::optional<GuardedBuffer> backward_memory_;
  std::optional<GuardedBuffer> state_memory_;
  mhla::CudaForwardState<Accumulator<T>> state_;
};

}  // namespace gpu
