// SPDX-License-Identifier: MIT
// The entries of library(): here the library is compiled.
#pragma once

#include <cstdint>
#include <mhla/policy/batch_layout.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/backend.hpp"
#include "tests/variants/attention.hpp"
#include "tests/variants/executor.hpp"
#include "tests/variants/product.hpp"
#if defined(MHLA_TEST_GATE) && !defined(MHLA_TEST_CUDA)
#include "tests/variants/in_stages.hpp"
#include "tests/variants/streaming.hpp"
#endif

namespace variants {

template <class T, Policies p, Batch batch>
class EntryOf {
  using A = mhla::Accumulator<T>;
  using V = AttentionOf<p, A>;

  // Calls f with the variant, in its layout.
  template <class F>
  static auto with_variant(const Call& call, const F& f) {
    const V attention = attention_of<V>(call);
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
  // What is saved between the passes; the CUDA backend has nothing of the kind, nor has long
  // double.
  template <class SomeState>
  static auto* in_accumulator(SomeState* state) {
    if constexpr (std::is_same_v<A, float>) {
      return state == nullptr ? nullptr : &state->in_float;
    } else if constexpr (std::is_same_v<A, double>) {
      return state == nullptr ? nullptr : &state->in_double;
    } else {
      return static_cast<mhla::ForwardState<A>*>(nullptr);
    }
  }

  static Size forward_size(const Call& call, const Executor& executor) {
    return with_variant(call, [&](const auto& attention) {
      return mhla::forward_workspace_size<T>(attention, shape_of<T>(call), executor.get());
    });
  }
  static Size backward_size(const Call& call, const Executor& executor) {
    return with_variant(call, [&](const auto& attention) {
      return mhla::backward_workspace_size<T>(attention, shape_of<T>(call), executor.get());
    });
  }
  static void forward(const Call& call, const Executor& executor, State* save) {
    with_variant(call, [&](const auto& attention) {
      const auto run = [&](auto*... state) {
        mhla::forward_into(attention, executor.get(), typed<const T, 4>(call.q),
                           typed<const T, 4>(call.k), typed<const T, 4>(call.v),
                           typed<const A, 3>(call.mix), typed<T, 4>(call.y),
                           mhla::WorkspaceView{call.workspace, call.workspace_bytes}, state...);
      };
      if constexpr (backend::saves_states) {
        run(in_accumulator(save));
      } else {
        run();
      }
    });
  }
  static void backward(const Call& call, const Executor& executor, const State* saved) {
    mhla::GradientViews<T> gradients{mhla::skip, mhla::skip, mhla::skip, mhla::skip};
    if (call.wanted[query]) gradients.query = typed<T, 4>(call.gradient[query]);
    if (call.wanted[key]) gradients.key = typed<T, 4>(call.gradient[key]);
    if (call.wanted[value]) gradients.value = typed<T, 4>(call.gradient[value]);
    if (call.wanted[mixing]) gradients.mix = typed<A, 3>(call.gradient[mixing]);
    with_variant(call, [&](const auto& attention) {
      const auto run = [&](const auto*... state) {
        mhla::backward_into(attention, executor.get(), typed<const T, 4>(call.q),
                            typed<const T, 4>(call.k), typed<const T, 4>(call.v),
                            typed<const A, 3>(call.mix), typed<const T, 4>(call.dy), gradients,
                            call.accumulate ? mhla::Update::accumulate : mhla::Update::overwrite,
                            mhla::WorkspaceView{call.workspace, call.workspace_bytes}, state...);
      };
      if constexpr (backend::saves_states) {
        run(in_accumulator(saved));
      } else {
        run();
      }
    });
  }

 public:
  static Entry entry(Scalar scalar) {
    Entry e{p, batch, scalar, forward_size, backward_size, forward, backward};
#if defined(MHLA_TEST_GATE) && !defined(MHLA_TEST_CUDA)
    // In one scalar type, of some.
    constexpr int place = static_cast<int>(p.map) + p.rank + static_cast<int>(p.normalizer);
    if constexpr (batch == Batch::plain && p.mixing == Mixing::dense) {
      if constexpr (std::is_same_v<T, double> && p.map <= Map::softmax && !p.mixes_products() &&
                    place % 3 == 0)
        e.staged = run_in_stages<V, T, p.causality>;
      if constexpr (p.causality == Causality::causal && !std::is_same_v<T, long double> &&
                    (place % 2 == 0 || sizeof(T) == 2))
        e.decoder = Streaming<V, T>::make;
    }
#endif
    return e;
  }
};

// The variants of the maps [first, last) that a build has in one scalar.
template <Scalar scalar, int first, int last>
struct In {
  static constexpr std::size_t count() {
    std::size_t number = 0;
    for_each_variant(first, last, [&](const Policies& p, Batch batch) {
      if (in_build(p, batch, scalar)) ++number;
    });
    return number;
  }
  static constexpr auto list() {
    std::array<std::pair<Policies, Batch>, count()> all{};
    std::size_t number = 0;
    for_each_variant(first, last, [&](const Policies& p, Batch batch) {
      if (in_build(p, batch, scalar)) {
        all[number].first = p;
        all[number++].second = batch;
      }
    });
    return all;
  }
};
template <class T, Scalar scalar, int first, int last, std::size_t... number>
void add_all(std::vector<Entry>& entries, std::index_sequence<number...>) {
  static constexpr auto all = In<scalar, first, last>::list();
  (entries.push_back(EntryOf<T, all[number].first, all[number].second>::entry(scalar)), ...);
}
template <class T, Scalar scalar, int first, int last>
void add_scalar(std::vector<Entry>& entries) {
  constexpr std::size_t count = In<scalar, first, last>::count();
  if constexpr (count > 0)
    add_all<T, scalar, first, last>(entries, std::make_index_sequence<count>());
}

/// Appends what a build has of the maps [first, last).
template <int first, int last>
void add_maps(std::vector<Entry>& entries) {
  add_scalar<double, Scalar::float64, first, last>(entries);
  add_scalar<float, Scalar::float32, first, last>(entries);
  add_scalar<long double, Scalar::extended, first, last>(entries);
  add_scalar<mhla::BFloat16, Scalar::bfloat16, first, last>(entries);
  add_scalar<mhla::Half, Scalar::float16, first, last>(entries);
}

}  // namespace variants
