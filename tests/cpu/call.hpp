// SPDX-License-Identifier: MIT
// One attention call in a test: its operands, and runs of the backend under test and of the oracle
// on them that return what they wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mhla/core/forward_state.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/reference/mhla.hpp>
#include <mhla/testing/comparison.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <type_traits>
#include <vector>

#include "tests/support/backend.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/tolerances.hpp"

namespace call {

using namespace mhla;
using mhla::testing::bitwise_equal;
using mhla::testing::HostTensor;

/// q, k, v, mix and the output's gradient.
template <class T>
struct Operands {
  HostTensor<T, 4> q;
  HostTensor<T, 4> k;
  HostTensor<T, 4> v;
  HostTensor<Accumulator<T>, 3> mix;
  HostTensor<T, 4> dy;

  Shape shape() const { return mhla::shape_of(q.view(), k.view(), v.view(), mix.view()); }
};

/// A call's gradients.
template <class T>
struct Gradients {
  HostTensor<T, 4> query;
  HostTensor<T, 4> key;
  HostTensor<T, 4> value;
  HostTensor<Accumulator<T>, 3> mix;

  explicit Gradients(const Operands<T>& x) : query(x.q), key(x.k), value(x.v), mix(x.mix) {}
  GradientViews<T> views() { return {query.view(), key.view(), value.view(), mix.view()}; }
};

/// `shape` with a mix of exactly the blocks of both sides, unless it has one.
template <class V>
Shape fitted(const V& attention, Shape shape) {
  const auto& keys = attention.key_blocks.unset() ? attention.blocks : attention.key_blocks;
  const mhla::Grid query_grid = attention.blocks.grid_of(shape.query_tokens);
  const mhla::Grid key_grid = keys.grid_of(shape.key_tokens);
  Index rows = query_grid.num_blocks();
  Index columns = key_grid.num_blocks();
  if constexpr (requires { attention.mixing.states; }) columns = 3 * attention.mixing.states + 1;
  if constexpr (requires { attention.mixing.rank; }) {
    rows = attention.mixing.rank;
    columns = 0;
    for (int axis = 3 - V::GeometryType::rank; axis < 3; ++axis)
      columns += query_grid.layout(axis) * key_grid.layout(axis);
  }
  if (shape.mix_query_blocks == 0) shape.mix_query_blocks = rows;
  if (shape.mix_key_blocks == 0) shape.mix_key_blocks = columns;
  return shape;
}

/// Random operands, exact in every storage type: q and k away from the kinks of feature maps, mix
/// positive, neither symmetric nor of equal rows.
template <class T, class V, class Distribution = mhla::testing::AwayFromKink>
Operands<T> operands(const V& attention, const Shape& partial, std::uint64_t seed = 1,
                     const Distribution& features = {}) {
  using mhla::testing::ExactInBFloat16;
  using mhla::testing::Normal;
  using mhla::testing::random_tensor;
  using mhla::testing::Uniform;
  const Shape s = fitted(attention, partial);
  const ExactInBFloat16<Distribution> rounded{features};
  const ExactInBFloat16<Normal> normal;
  return {random_tensor<T>(rounded, 10 * seed, s.batch, s.heads, s.query_tokens, s.key_dim),
          random_tensor<T>(rounded, 10 * seed + 1, s.batch, s.kv_heads, s.key_tokens, s.key_dim),
          random_tensor<T>(normal, 10 * seed + 2, s.batch, s.kv_heads, s.key_tokens, s.value_dim),
          random_tensor<Accumulator<T>>(Uniform{0.1f, 1.0f}, 10 * seed + 3, s.mix_heads,
                                        s.mix_query_blocks, s.mix_key_blocks),
          random_tensor<T>(normal, 10 * seed + 4, s.batch, s.heads, s.query_tokens, s.value_dim)};
}

/// A workspace that holds NaN: nothing may be read before it is written.
inline Workspace poisoned_workspace(Index bytes) {
  Workspace workspace(bytes);
  if (bytes > 0) std::memset(workspace.data(), 0xff, static_cast<std::size_t>(bytes));
  return workspace;
}

/// y of the backend.
template <class T, class V, class E = backend::Device>
HostTensor<T, 4> forward(const V& attention, const Operands<T>& x,
                         const E& executor = backend::device(),
                         [[maybe_unused]] ForwardState<Accumulator<T>>* save = nullptr) {
  HostTensor<T, 4> y = x.dy;  // what it holds must not matter
  const Workspace workspace =
      poisoned_workspace(mhla::forward_workspace_size<T>(attention, x.shape(), executor));
  if constexpr (backend::saves_states)
    forward_into(attention, executor, x.q, x.k, x.v, x.mix, y.view(), workspace, save);
  else
    forward_into(attention, executor, x.q, x.k, x.v, x.mix, y.view(), workspace);
  return y;
}

/// Runs the backend's backward pass into destinations of the caller's.
template <class T, class V, class E = backend::Device>
void backward_to(const GradientViews<T>& gradients, Update update, const V& attention,
                 const Operands<T>& x, const E& executor = backend::device(),
                 [[maybe_unused]] const ForwardState<Accumulator<T>>* saved = nullptr) {
  const Workspace workspace =
      poisoned_workspace(mhla::backward_workspace_size<T>(attention, x.shape(), executor));
  if constexpr (backend::saves_states)
    backward_into(attention, executor, x.q.view(), x.k, x.v, x.mix, x.dy, gradients, update,
                  workspace, saved);
  else
    backward_into(attention, executor, x.q.view(), x.k, x.v, x.mix, x.dy, gradients, update,
                  workspace);
}

/// All gradients of the backend.
template <class T, class V, class E = backend::Device>
Gradients<T> backward(const V& attention, const Operands<T>& x,
                      const E& executor = backend::device(),
                      const ForwardState<Accumulator<T>>* saved = nullptr) {
  Gradients<T> gradients(x);  // which hold the operands: what they hold must not matter
  backward_to(gradients.views(), Update::overwrite, attention, x, executor, saved);
  return gradients;
}

/// y and the gradients of the oracle.
template <class T, class V>
HostTensor<T, 4> oracle_forward(const V& attention, const Operands<T>& x) {
  HostTensor<T, 4> y = x.dy;
  mhla::reference::mhla_forward(attention, x.q, x.k, x.v, x.mix, y.view());
  return y;
}
template <class T, class V>
Gradients<T> oracle_backward(const V& attention, const Operands<T>& x) {
  Gradients<T> gradients(x);
  mhla::reference::mhla_backward(attention, x.q.view(), x.k, x.v, x.mix, x.dy, gradients.views());
  return gradients;
}

/// The same operands in another storage type.
template <class To, class T>
Operands<To> converted(const Operands<T>& x) {
  using mhla::testing::converted;
  return {converted<To>(x.q), converted<To>(x.k), converted<To>(x.v),
          converted<Accumulator<To>>(x.mix), converted<To>(x.dy)};
}

/// Fails unless both tensors are as close as `rms` and `max` say.
template <class T, class U, int Rank>
void check_close(const char* name, const HostTensor<T, Rank>& actual,
                 const HostTensor<U, Rank>& expected, double rms, double max) {
  const auto result = mhla::testing::compare(actual.view(), expected.view());
  INFO(name << " " << result.report());
  CHECK(result.rms_ratio <= rms);
  CHECK(result.max_ratio <= max);
}

template <class T, class U>
void check_close(const Gradients<T>& actual, const Gradients<U>& expected) {
  constexpr double rms = tolerance::gradient_rms<T>;
  constexpr double max = tolerance::gradient_max<T>;
  check_close("dq", actual.query, expected.query, rms, max);
  check_close("dk", actual.key, expected.key, rms, max);
  check_close("dv", actual.value, expected.value, rms, max);
  check_close("dmix", actual.mix, expected.mix, rms, max);
}

/// The paths that a variant can ask the backend for.
template <class V>
std::vector<mhla::Path> paths_of() {
  using mhla::Path;
  if (!backend::has_paths) return {Path::automatic};
  if (mhla::is_structured<V> || mhla::mixes_products<V>) return {Path::linear};
  return {Path::linear, Path::quadratic};
}
/// The variant by one after the other of them, as GENERATE does.
template <class V>
V by_each_path(V attention) {
  attention.path = GENERATE(from_range(paths_of<V>()));
  return attention;
}

/// Fails unless the backend agrees on y and every gradient with the oracle in a wider type, by each
/// path.
template <class T, class V>
void check_against_oracle(V attention, const Operands<T>& x) {
  using Wide = std::conditional_t<std::is_same_v<T, float>, double, long double>;
  const Operands<Wide> wide = converted<Wide>(x);
  const auto y = oracle_forward(attention, wide);
  const auto gradients = oracle_backward(attention, wide);
  for (const mhla::Path path : paths_of<V>()) {
    attention.path = path;
    check_close("y", forward(attention, x), y, tolerance::forward_rms<T>,
                tolerance::forward_max<T>);
    check_close(backward(attention, x), gradients);
  }
}

/// Fails unless both hold the same bits.
template <class T>
void check_same_bits(Gradients<T>& a, Gradients<T>& b) {
  CHECK(bitwise_equal(a.query.view(), b.query.view()));
  CHECK(bitwise_equal(a.key.view(), b.key.view()));
  CHECK(bitwise_equal(a.value.view(), b.value.view()));
  CHECK(bitwise_equal(a.mix.view(), b.mix.view()));
}

}  // namespace call
