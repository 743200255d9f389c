// SPDX-License-Identifier: MIT
// The entries of one scalar type: here the library is compiled. Geometry, rotation and batch layout
// cost little more, as the library lowers them to tables: what is compiled anew is a feature map
// with a normalizer and a causality.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/decoding.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <mhla/policy/variant.hpp>
#include <mhla/stages.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/fuzz/library.hpp"

namespace fuzz {

template <class T, std::size_t Rank>
mhla::TensorView<T, int(Rank)> typed(const View& view) {
  mhla::TensorView<T, int(Rank)> result;
  result.data = static_cast<T*>(view.data);
  for (std::size_t axis = 0; axis < Rank; ++axis) {
    result.extent[axis] = view.extent[axis + 4 - Rank];
    result.stride[axis] = view.stride[axis + 4 - Rank];
  }
  return result;
}

/// The policies of the library that a description names.
template <Map map, class A>
auto feature_map_of([[maybe_unused]] const Call& call) {
  if constexpr (map == Map::identity) return mhla::Identity{};
  if constexpr (map == Map::relu) return mhla::Relu{call.numbers.feature_epsilon};
  if constexpr (map == Map::squared_relu) return mhla::SquaredRelu{call.numbers.feature_epsilon};
  if constexpr (map == Map::elu_plus_one) return mhla::EluPlusOne{};
  if constexpr (map == Map::exp) return mhla::Exp{};
  if constexpr (map == Map::softmax) return mhla::Softmax{};
  if constexpr (map == Map::hedgehog) return mhla::Hedgehog{};
  if constexpr (map == Map::dpfp) return mhla::Dpfp{call.numbers.nu};
  if constexpr (map == Map::favor) return mhla::Favor<A>{typed<const A, 2>(call.projection)};
}
template <int rank>
auto blocks_of(const Grid& grid) {
  if constexpr (rank == 1) return mhla::Blocks1D{grid.block[2]};
  if constexpr (rank == 2)
    return mhla::Blocks2D{{grid.extent[1], grid.extent[2]}, {grid.block[1], grid.block[2]}};
  if constexpr (rank == 3)
    return mhla::Blocks3D{{grid.extent[0], grid.extent[1], grid.extent[2]},
                          {grid.block[0], grid.block[1], grid.block[2]}};
}
template <Causality causality>
auto causality_of() {
  if constexpr (causality == Causality::bidirectional) return mhla::Bidirectional{};
  if constexpr (causality == Causality::causal) return mhla::Causal{};
  if constexpr (causality == Causality::block_causal) return mhla::BlockCausal{};
}
template <Normalizer normalizer>
auto normalizer_of([[maybe_unused]] const Call& call) {
  const double epsilon = call.numbers.normalizer_epsilon;
  if constexpr (normalizer == Normalizer::mixed_key_sum) return mhla::MixedKeySum{epsilon};
  if constexpr (normalizer == Normalizer::mixed_product) return mhla::MixedProduct{epsilon};
  if constexpr (normalizer == Normalizer::unnormalized) return mhla::Unnormalized{};
}
template <Rotation rotation>
auto rotation_of([[maybe_unused]] const Call& call) {
  if constexpr (rotation == Rotation::none) return mhla::NoRotation{};
  if constexpr (rotation == Rotation::half_split) return mhla::HalfSplitRotary{call.numbers.theta};
  if constexpr (rotation == Rotation::axial) return mhla::AxialRotary{call.numbers.theta};
}

template <Mixing mixing>
auto mixing_of([[maybe_unused]] const Call& call) {
  if constexpr (mixing == Mixing::dense)
    return mhla::DenseMixing{.leading_corner = call.numbers.leading_corner};
  if constexpr (mixing == Mixing::recurrent) return mhla::RecurrentMixing{call.numbers.terms};
  if constexpr (mixing == Mixing::separable) return mhla::SeparableMixing{call.numbers.terms};
}

template <class T, Policies p, Batch batch>
class EntryOf {
  using A = mhla::Accumulator<T>;
  // In one scalar type, of some maps.
  static constexpr bool has_stages = std::is_same_v<T, double> && batch == Batch::plain &&
                                     p.map <= Map::softmax &&
                                     p.normalizer != Normalizer::mixed_product;

  static auto attention_of(const Call& call) {
    const auto blocks = blocks_of<p.rank>(call.queries);
    const auto map = feature_map_of<p.map, A>(call);
    const auto normalizer = normalizer_of<p.normalizer>(call);
    const auto rotation = rotation_of<p.rotation>(call);
    const auto mixing = mixing_of<p.mixing>(call);
    using Blocks = std::remove_const_t<decltype(blocks)>;
    return mhla::Attention<
        std::remove_const_t<decltype(map)>, Blocks, decltype(causality_of<p.causality>()),
        std::remove_const_t<decltype(normalizer)>, std::remove_const_t<decltype(rotation)>,
        std::remove_const_t<decltype(mixing)>>{
        .feature_map = map,
        .blocks = blocks,
        .key_blocks = call.own_key_blocks ? blocks_of<p.rank>(call.keys) : Blocks{},
        .normalizer = normalizer,
        .rotation = rotation,
        .mixing = mixing,
        .scale = call.numbers.scale,
        .precision = call.numbers.fast ? mhla::Precision::fast : mhla::Precision::exact};
  }

  // Calls f with the variant, in its layout.
  template <class F>
  static auto with_variant(const Call& call, const F& f) {
    const auto attention = attention_of(call);
    using V = std::remove_const_t<decltype(attention)>;
    if constexpr (batch == Batch::plain) {
      return f(attention);
    } else if constexpr (batch == Batch::padded) {
      return f(mhla::Padded<V>(attention, {typed<const std::uint8_t, 2>(call.query_mask),
                                           typed<const std::uint8_t, 2>(call.key_mask)}));
    } else {
      using Offset =
          std::conditional_t<batch == Batch::packed_by_int32, std::int32_t, std::int64_t>;
      const std::vector<Offset> offsets(call.offsets.begin(), call.offsets.end());
      return f(mhla::Packed<V, Offset>(attention, {offsets.data(), std::ssize(offsets)}));
    }
  }

  static mhla::Shape shape_of(const Call& call) {
    return mhla::shape_of(typed<const T, 4>(call.q), typed<const T, 4>(call.k),
                          typed<const T, 4>(call.v), typed<const A, 3>(call.mix));
  }
  template <class SomeState>
  static auto* in_accumulator(SomeState* state) {
    if constexpr (std::is_same_v<A, double>) {
      return state == nullptr ? nullptr : &state->in_double;
    } else {
      return state == nullptr ? nullptr : &state->in_float;
    }
  }

 public:
  static Size forward_size(const Call& call, const mhla::ExecutorRef& executor) {
    return with_variant(call, [&](const auto& attention) {
      return mhla::forward_workspace_size<T>(attention, shape_of(call), executor);
    });
  }
  static Size backward_size(const Call& call, const mhla::ExecutorRef& executor) {
    return with_variant(call, [&](const auto& attention) {
      return mhla::backward_workspace_size<T>(attention, shape_of(call), executor);
    });
  }
  static void forward(const Call& call, const mhla::ExecutorRef& executor, State* save) {
    with_variant(call, [&](const auto& attention) {
      mhla::forward_into(attention, executor, typed<const T, 4>(call.q), typed<const T, 4>(call.k),
                         typed<const T, 4>(call.v), typed<const A, 3>(call.mix),
                         typed<T, 4>(call.y), {call.workspace, call.workspace_bytes},
                         in_accumulator(save));
    });
  }
  static void backward(const Call& call, const mhla::ExecutorRef& executor, const State* saved) {
    mhla::GradientViews<T> gradients{mhla::skip, mhla::skip, mhla::skip, mhla::skip};
    if (call.wanted[query]) gradients.query = typed<T, 4>(call.gradient[query]);
    if (call.wanted[key]) gradients.key = typed<T, 4>(call.gradient[key]);
    if (call.wanted[value]) gradients.value = typed<T, 4>(call.gradient[value]);
    if (call.wanted[mixing]) gradients.mix = typed<A, 3>(call.gradient[mixing]);
    with_variant(call, [&](const auto& attention) {
      mhla::backward_into(attention, executor, typed<const T, 4>(call.q), typed<const T, 4>(call.k),
                          typed<const T, 4>(call.v), typed<const A, 3>(call.mix),
                          typed<const T, 4>(call.dy), gradients,
                          call.accumulate ? mhla::Update::accumulate : mhla::Update::overwrite,
                          {call.workspace, call.workspace_bytes}, in_accumulator(saved));
    });
  }

  // Both passes, taken apart: tensors hold all blocks, of which every call is on some.
  class Staged {
    using V = decltype(attention_of(std::declval<const Call&>()));
    using Range = mhla::BlockRange;
    using Rows = mhla::TensorView<A, 2>;

   public:
    Staged(const Call& call, const mhla::ExecutorRef& executor, Size blocks)
        : call_(call),
          executor_(executor),
          blocks_(blocks),
          stages_(attention_of(call), shape_with_corner(call)),
          queries_(stages_.query_blocks()),
          keys_(stages_.key_blocks()),
          mix_(typed<const A, 3>(call.mix)),
          dmix_(typed<A, 3>(call.gradient[mixing])) {
      mix_.extent[1] = dmix_.extent[1] = queries_.count;
      mix_.extent[2] = dmix_.extent[2] = keys_.count;
      stages_.hold(queries_, keys_);
    }

    void run() {
      const Rows sums = rows(sums_, keys_.count, stages_.summary_size());
      const Rows gradients = rows(gradients_, keys_.count, stages_.summary_size());
      const Rows mixtures = rows(mixtures_, queries_.count, stages_.mixture_size());
      const Rows denominators = rows(denominators_, queries_.count, stages_.denominator_size());
      const auto q = typed<const T, 4>(call_.q), k = typed<const T, 4>(call_.k),
                 v = typed<const T, 4>(call_.v), dy = typed<const T, 4>(call_.dy);
      const mhla::Update update = mhla::Update::overwrite;
      for_each_range(keys_, [&](const Range& some) {
        stages_.summarize(executor_, some, k, v, mhla::rows_of(sums, some),
                          workspace(mhla::Stage::summarize, some));
      });
      const mhla::TensorView<const A, 2> seen = sums, left = mixtures, grads = gradients,
                                         dens = denominators;
      for_each_range(queries_, [&](const Range& some) {
        const mhla::OperandViews<T> x{q, k, v, mhla::rows_of(mix_, some)};
        stages_.read_out(executor_, some, x, seen, typed<T, 4>(call_.y),
                         workspace(mhla::Stage::read_out, some));
        stages_.read_out_gradient(
            executor_, some, x, seen, dy,
            {typed<T, 4>(call_.gradient[query]), mhla::skip, mhla::skip,
             mhla::rows_of(dmix_, some)},
            update, {mhla::rows_of(mixtures, some), mhla::rows_of(denominators, some)},
            workspace(mhla::Stage::read_out_gradient, some));
      });
      for_each_range(keys_, [&](const Range& some) {
        const Range later{causal ? some.first : 0, queries_.count - (causal ? some.first : 0)};
        stages_.mix_gradient(executor_, later, some,
                             mhla::columns_of(mhla::rows_of(mix_, later), some),
                             mhla::rows_of(left, later), mhla::rows_of(gradients, some),
                             workspace(mhla::Stage::mix_gradient, later, some));
        mhla::OperandViews<T> x{q, k, v, {}};
        mhla::GradientView<A, 3> dmix = mhla::skip;
        mhla::TensorView<const A, 2> own;
        if (p.causality == Causality::causal) {
          x.mix = mhla::rows_of(mix_, some);
          dmix = mhla::rows_of(dmix_, some);
          own = mhla::rows_of(dens, some);
        }
        stages_.summarize_gradient(executor_, some, x, mhla::rows_of(grads, some), dy, own,
                                   {mhla::skip, typed<T, 4>(call_.gradient[key]),
                                    typed<T, 4>(call_.gradient[value]), dmix},
                                   update, workspace(mhla::Stage::summarize_gradient, some));
      });
    }

   private:
    static constexpr bool causal = p.causality != Causality::bidirectional;

    // Of a mix that is larger than the blocks, stages have the corner.
    static mhla::Shape shape_with_corner(const Call& call) {
      mhla::Shape shape = shape_of(call);
      shape.mix_query_blocks = call.queries.blocks();
      shape.mix_key_blocks = call.keys.blocks();
      return shape;
    }
    static Rows rows(std::vector<A>& memory, Size count, Size size) {
      memory.assign(static_cast<std::size_t>(count * size), std::numeric_limits<A>::quiet_NaN());
      return mhla::make_view(memory.data(), count, size);
    }
    template <class F>
    void for_each_range(const Range& all, const F& f) const {
      for (Size first = 0; first < all.count; first += blocks_)
        f(Range{first, std::min(blocks_, all.count - first)});
    }
    const mhla::Workspace& workspace(mhla::Stage stage, const Range& blocks,
                                     const Range& keys = {}) {
      workspace_ = mhla::Workspace(stages_.workspace_size(stage, executor_, blocks, keys));
      return workspace_;
    }

    const Call& call_;
    const mhla::ExecutorRef& executor_;
    Size blocks_;
    mhla::Stages<V, T> stages_;
    Range queries_, keys_;
    mhla::TensorView<const A, 3> mix_;
    mhla::TensorView<A, 3> dmix_;
    std::vector<A> sums_, gradients_, mixtures_, denominators_;
    mhla::Workspace workspace_{0};
  };
  static void staged(const Call& call, const mhla::ExecutorRef& executor, Size blocks) {
    Staged(call, executor, blocks).run();
  }

  class Streaming final : public AnyDecoder {
   public:
    Streaming(const Call& call, Size sequences, Size num_slots)
        : decoder_(attention_of(call), typed<const A, 3>(call.mix),
                   {.batch = sequences,
                    .heads = call.q.extent[1],
                    .kv_heads = call.k.extent[1],
                    .key_dim = call.q.extent[3],
                    .value_dim = call.v.extent[3],
                    .num_slots = num_slots}) {}
    std::unique_ptr<AnyDecoder> copy() const override { return std::make_unique<Streaming>(*this); }
    Size capacity() const override { return decoder_.capacity(); }
    Size position(Size sequence) const override { return decoder_.position(sequence); }
    void reset(Size sequence) override {
      if (sequence == every_sequence) return decoder_.reset();
      decoder_.reset(sequence);
    }
    void feed(const mhla::ExecutorRef& executor, Size sequence, const Call& call) override {
      const auto q = typed<const T, 4>(call.q), k = typed<const T, 4>(call.k),
                 v = typed<const T, 4>(call.v);
      if (sequence == every_sequence) return decoder_.step(executor, q, k, v, typed<T, 4>(call.y));
      decoder_.prefill(executor, sequence, q, k, v, typed<T, 4>(call.y));
    }
    std::vector<std::byte> save() const override {
      std::vector<std::byte> bytes(static_cast<std::size_t>(decoder_.saved_size()));
      decoder_.save({bytes.data(), std::ssize(bytes)});
      return bytes;
    }
    void load(const std::vector<std::byte>& bytes) override {
      decoder_.load({bytes.data(), std::ssize(bytes)});
    }

   private:
    mhla::Decoder<decltype(attention_of(std::declval<const Call&>())), T> decoder_;
  };
  static std::unique_ptr<AnyDecoder> decoder(const Call& call, Size sequences, Size num_slots) {
    return std::make_unique<Streaming>(call, sequences, num_slots);
  }

  static Entry entry(Scalar scalar) {
    Entry e{p, batch, scalar, forward_size, backward_size, forward, backward, nullptr, nullptr};
    if constexpr (has_stages) e.staged = staged;
    if constexpr (p.causality == Causality::causal && batch == Batch::plain &&
                  p.mixing == Mixing::dense)
      e.decoder = decoder;
    return e;
  }
};

/// What a causality and a normalizer meet, and what a geometry, a rotation and a layout do.
struct Core {
  Causality causality;
  Normalizer normalizer;
};
inline constexpr Core cores[] = {{Causality::bidirectional, Normalizer::mixed_key_sum},
                                 {Causality::causal, Normalizer::unnormalized},
                                 {Causality::bidirectional, Normalizer::mixed_product},
                                 {Causality::block_causal, Normalizer::mixed_key_sum},
                                 {Causality::bidirectional, Normalizer::unnormalized},
                                 {Causality::causal, Normalizer::mixed_key_sum},
                                 {Causality::block_causal, Normalizer::unnormalized}};
struct Shell {
  int rank;
  Rotation rotation;
  Batch batch;
};
inline constexpr Shell shells[] = {{1, Rotation::none, Batch::plain},
                                   {2, Rotation::axial, Batch::plain},
                                   {1, Rotation::half_split, Batch::plain},
                                   {3, Rotation::none, Batch::plain},
                                   {1, Rotation::axial, Batch::padded},
                                   {2, Rotation::none, Batch::padded},
                                   {1, Rotation::none, Batch::packed_by_int32},
                                   {3, Rotation::axial, Batch::plain},
                                   {1, Rotation::axial, Batch::plain},
                                   {2, Rotation::none, Batch::plain},
                                   {1, Rotation::half_split, Batch::packed_by_int64},
                                   {2, Rotation::axial, Batch::padded},
                                   {1, Rotation::none, Batch::padded},
                                   {3, Rotation::none, Batch::padded},
                                   {1, Rotation::half_split, Batch::padded},
                                   {3, Rotation::axial, Batch::padded},
                                   {1, Rotation::axial, Batch::packed_by_int32},
                                   {1, Rotation::none, Batch::packed_by_int64},
                                   {1, Rotation::half_split, Batch::packed_by_int32},
                                   {1, Rotation::axial, Batch::packed_by_int64}};
inline constexpr int maps = 9;
inline constexpr int num_cores = int(std::size(cores));
inline constexpr int num_shells = int(std::size(shells));

constexpr bool exists(const Core& core, const Shell& shell) {
  if (core.causality != Causality::bidirectional && shell.rank != 1) return false;
  return core.normalizer != Normalizer::mixed_product || shell.batch == Batch::plain;
}

/// The one core of a map in a build without the full product. In bfloat16 both maps whose gradients
/// Precision::fast rounds under a normalizer have one.
constexpr int core_of(int map, Scalar scalar) {
  constexpr int in_bfloat16[maps] = {4, 0, 0, 5, 1, 2, 3, 6, 5};
  if (scalar == Scalar::bfloat16) return in_bfloat16[map];
  return (map + 2 * static_cast<int>(scalar)) % num_cores;
}

/// With the full product: every map with every core in every scalar; the shells are shared out, so
/// that over the scalars all meet all. Without it: every map in every scalar with one core, each
/// scalar with another.
constexpr bool in_build(int map, Scalar scalar, int core, int shell) {
  const int s = static_cast<int>(scalar);
#if !defined(MHLA_FUZZ_FULL_PRODUCT)
  if (core != core_of(map, scalar)) return false;
#endif
  return shell % 4 == (map + core + s) % 4;
}

/// In float, some maps' mixings are structured, in place of dense ones.
constexpr Mixing mixing_with(int map, Scalar scalar, const Core& core) {
  if (scalar != Scalar::float32 || (map != 2 && map != 3 && map != 5 && map != 6))
    return Mixing::dense;
  if (core.causality != Causality::bidirectional) return Mixing::recurrent;
  return core.normalizer == Normalizer::mixed_product ? Mixing::dense : Mixing::separable;
}

template <class T, Scalar scalar, int map, int core, int shell>
void add_entry(std::vector<Entry>& entries) {
  constexpr Core c = cores[core];
  constexpr Shell s = shells[shell];
  constexpr Mixing mixing = mixing_with(map, scalar, c);
  constexpr bool unpackable = mixing == Mixing::separable && s.batch >= Batch::packed_by_int32;
  if constexpr (exists(c, s) && !unpackable && in_build(map, scalar, core, shell))
    entries.push_back(
        EntryOf<T, Policies{Map(map), c.causality, c.normalizer, s.rotation, s.rank, mixing},
                s.batch>::entry(scalar));
}
template <class T, Scalar scalar, int map, int core, int... shell>
void add_shells(std::vector<Entry>& entries, std::integer_sequence<int, shell...>) {
  (add_entry<T, scalar, map, core, shell>(entries), ...);
}
template <class T, Scalar scalar, int map, int... core>
void add_cores(std::vector<Entry>& entries, std::integer_sequence<int, core...>) {
  (add_shells<T, scalar, map, core>(entries, std::make_integer_sequence<int, num_shells>()), ...);
}
template <class T, Scalar scalar, int... map>
void add_maps(std::vector<Entry>& entries, std::integer_sequence<int, map...>) {
  (add_cores<T, scalar, map>(entries, std::make_integer_sequence<int, num_cores>()), ...);
}
/// Appends what a build has in one scalar.
template <class T, Scalar scalar>
void add_entries(std::vector<Entry>& entries) {
  add_maps<T, scalar>(entries, std::make_integer_sequence<int, maps>());
}

}  // namespace fuzz
