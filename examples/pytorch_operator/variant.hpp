// SPDX-License-Identifier: MIT
// Type-erased entry points of one variant for one scalar type, which operator.cpp finds by name. No
// header of PyTorch is included, so that a variant compiles in seconds on first use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mhla/decoding.hpp>
#include <mhla/packed.hpp>
#ifdef MHLA_TORCH_CUDA
#include <mhla/cuda/pipeline.hpp>
#endif

namespace mhla_torch {

using mhla::Index;

/// Memory with strides, in elements; without data it is absent.
struct Strided {
  void* data = nullptr;
  Index extent[4] = {};
  Index stride[4] = {};
};

/// The numbers of a variant. Those that a variant does not have are not read.
struct Settings {
  Index block[3];  // frames, rows, columns; a sequence has the last
  Index grid[3];
  Index key_block[3];  // 0: as block
  Index key_grid[3];
  Index mixing_size;  // terms of SeparableMixing, states of RecurrentMixing
  Index nu;           // of Dpfp
  double scale;
  double feature_epsilon;
  double normalizer_epsilon;
  double theta;
  bool fast;
};

/// One call. Results that are absent are not wanted.
struct Call {
  mhla::ExecutorRef threads;
  Settings settings{};
  Strided q{}, k{}, v{}, mix{}, dy{}, offsets{}, query_mask{}, key_mask{};
  Strided y{}, dq{}, dk{}, dv{}, dmix{};
  const void* gpu = nullptr;  // an mhla::CudaDevice to run on
};

/// An mhla::Decoder: sequences that grow. Of a call it reads q, k and v, and writes y.
class Streams {
 public:
  virtual ~Streams() = default;
  virtual void step(const Call& call) = 0;
  virtual void prefill(Index sequence, const Call& call) = 0;
  virtual void reset(Index sequence) = 0;
  virtual Index position(Index sequence) const = 0;
  virtual Index capacity() const = 0;
};

/// The functions of a variant: bytes of workspace, and the passes.
struct Variant {
  Index (*forward_size)(const Call&);
  void (*forward)(const Call&, mhla::WorkspaceView);
  Index (*backward_size)(const Call&);
  void (*backward)(const Call&, mhla::WorkspaceView);
  // Of a call the settings and mix; null if the variant does not generate token by token.
  std::unique_ptr<Streams> (*streams)(const Call&, const mhla::DecoderShape&);
  bool runs_on_gpu;
};

/// Makes a variant known that is a part of the extension.
void add(const char* name, const Variant& variant);

/// The functions of a variant V on tensors of T.
template <class V, class T>
class Functions {
  using A = mhla::Accumulator<T>;

 public:
  static constexpr Variant all() {
    Variant functions{forward_size, forward, backward_size, backward, nullptr, compiled_for_gpu};
    if constexpr (is_streaming) functions.streams = streams;
    return functions;
  }

 private:
#ifdef MHLA_TORCH_CUDA
  static constexpr bool compiled_for_gpu = true;
#else
  static constexpr bool compiled_for_gpu = false;
#endif

  template <class E, int Rank>
  static mhla::TensorView<E, Rank> view(const Strided& memory) {
    mhla::TensorView<E, Rank> view;
    view.data = static_cast<E*>(memory.data);
    for (int axis = 0; axis < Rank; ++axis) {
      view.extent[axis] = memory.extent[axis];
      view.stride[axis] = memory.stride[axis];
    }
    return view;
  }
  static mhla::OperandViews<T> operands(const Call& c) {
    return {view<const T, 4>(c.q), view<const T, 4>(c.k), view<const T, 4>(c.v),
            view<const A, 3>(c.mix)};
  }
  static mhla::GradientViews<T> gradients(const Call& c) {
    mhla::GradientViews<T> wanted{mhla::skip, mhla::skip, mhla::skip, mhla::skip};
    if (c.dq.data != nullptr) wanted.query = view<T, 4>(c.dq);
    if (c.dk.data != nullptr) wanted.key = view<T, 4>(c.dk);
    if (c.dv.data != nullptr) wanted.value = view<T, 4>(c.dv);
    if (c.dmix.data != nullptr) wanted.mix = view<A, 3>(c.dmix);
    return wanted;
  }

  // Calls f(attention), with offsets or masks if the variant takes them.
  template <class F>
  static auto with_attention(const Call& c, const F& f) {
    if constexpr (requires(V v) { v.offsets; }) {
      using Alone = typename InBatch<V>::Alone;
      const mhla::Span<const std::int64_t> offsets{static_cast<std::int64_t*>(c.offsets.data),
                                                   c.offsets.extent[0]};
      return f(V(attention_of<Alone>(c.settings), offsets));
    } else if constexpr (requires(V v) { v.masks; }) {
      using Alone = typename InBatch<V>::Alone;
      const mhla::TokenMasks masks{view<const std::uint8_t, 2>(c.query_mask),
                                   view<const std::uint8_t, 2>(c.key_mask)};
      return f(V(attention_of<Alone>(c.settings), masks));
    } else {
      return f(attention_of<V>(c.settings));
    }
  }
  template <class Batch>
  struct InBatch;
  template <class B>
  struct InBatch<mhla::Packed<B, std::int64_t>> {
    using Alone = B;
  };
  template <class B>
  struct InBatch<mhla::Padded<B>> {
    using Alone = B;
  };

  template <class Alone>
  static Alone attention_of(const Settings& s) {
    Alone a{.scale = s.scale};
    if constexpr (requires { a.feature_map.epsilon; }) a.feature_map.epsilon = s.feature_epsilon;
    if constexpr (requires { a.feature_map.nu; }) a.feature_map.nu = s.nu;
    if constexpr (requires { a.normalizer.epsilon; }) a.normalizer.epsilon = s.normalizer_epsilon;
    if constexpr (requires { a.rotation.theta; }) a.rotation.theta = s.theta;
    if constexpr (requires { a.mixing.rank; }) a.mixing.rank = s.mixing_size;
    if constexpr (requires { a.mixing.states; }) a.mixing.states = s.mixing_size;
    if (s.fast) a.precision = mhla::Precision::fast;
    cut(a.blocks, s.block, s.grid);
    if (s.key_block[2] != 0) cut(a.key_blocks, s.key_block, s.key_grid);
    return a;
  }
  static void cut(mhla::Blocks1D& blocks, const Index (&block)[3], const Index (&)[3]) {
    blocks.block = block[2];
  }
  template <class Blocks>
  static void cut(Blocks& blocks, const Index (&block)[3], const Index (&grid)[3]) {
    for (int axis = 0; axis < Blocks::rank; ++axis) {
      blocks.block[axis] = block[axis + 3 - Blocks::rank];
      blocks.grid[axis] = grid[axis + 3 - Blocks::rank];
    }
  }

  // Calls f with what the call runs on.
  template <class F>
  static auto with_executor(const Call& c, const F& f) {
#ifdef MHLA_TORCH_CUDA
    if (c.gpu != nullptr) return f(*static_cast<const mhla::CudaDevice*>(c.gpu));
#endif
    return f(c.threads);
  }

  static Index forward_size(const Call& c) {
    return with_attention(c, [&](const V& attention) {
      return with_executor(c, [&](const auto& on) {
        return mhla::forward_workspace_size<T>(attention, operands(c).shape(), on);
      });
    });
  }
  static void forward(const Call& c, mhla::WorkspaceView scratch) {
    with_attention(c, [&](const V& attention) {
      with_executor(c, [&](const auto& on) {
        const mhla::OperandViews<T> x = operands(c);
        mhla::forward_into(attention, on, x.q, x.k, x.v, x.mix, view<T, 4>(c.y), scratch);
      });
    });
  }
  static Index backward_size(const Call& c) {
    return with_attention(c, [&](const V& attention) {
      return with_executor(c, [&](const auto& on) {
        return mhla::backward_workspace_size<T>(attention, operands(c).shape(), on);
      });
    });
  }
  static constexpr bool is_streaming =
      V::CausalityType::sight == mhla::Sight::past_tokens && !requires(V v) {
    v.offsets;
  }
  &&!requires(V v) { v.masks; };
  class Decoder final : public Streams {
   public:
    Decoder(const Call& c, const mhla::DecoderShape& shape)
        : decoder_(attention_of<V>(c.settings), view<const A, 3>(c.mix), shape) {}
    void step(const Call& c) override {
      const auto [q, k, v] = tokens(c);
      decoder_.step(c.threads, q, k, v, view<T, 4>(c.y));
    }
    void prefill(Index sequence, const Call& c) override {
      const auto [q, k, v] = tokens(c);
      decoder_.prefill(c.threads, sequence, q, k, v, view<T, 4>(c.y));
    }
    void reset(Index sequence) override { decoder_.reset(sequence); }
    Index position(Index sequence) const override { return decoder_.position(sequence); }
    Index capacity() const override { return decoder_.capacity(); }

   private:
    struct Tokens {
      mhla::TensorView<const T, 4> q, k, v;
    };
    static Tokens tokens(const Call& c) {
      return {view<const T, 4>(c.q), view<const T, 4>(c.k), view<const T, 4>(c.v)};
    }
    mhla::Decoder<V, T> decoder_;
  };
  static std::unique_ptr<Streams> streams(const Call& c, const mhla::DecoderShape& shape) {
    return std::make_unique<Decoder>(c, shape);
  }

  static void backward(const Call& c, mhla::WorkspaceView scratch) {
    with_attention(c, [&](const V& attention) {
      with_executor(c, [&](const auto& on) {
        const mhla::OperandViews<T> x = operands(c);
        mhla::backward_into(attention, on, x.q, x.k, x.v, x.mix, view<const T, 4>(c.dy),
                            gradients(c), mhla::Update::overwrite, scratch);
      });
    });
  }
};

}  // namespace mhla_torch
