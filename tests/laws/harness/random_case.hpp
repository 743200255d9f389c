// SPDX-License-Identifier: MIT
// Random calls of a variant. Shapes and values follow from a seed alone, and sizes are pairwise
// distinct, so that a swapped axis cannot pass.
#pragma once

#include <cstdint>
#include <mhla/core/shape.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>

#include "tests/laws/harness/variant.hpp"

namespace laws {

using mhla::Shape;

/// What a law needs of its cases; everything else is drawn.
struct Wishes {
  bool small = false;           ///< for what runs a call many times over
  bool equal_blocks = false;    ///< no ragged edge
  bool self_attention = false;  ///< keys on the grid of the queries
  bool exact_mix = false;       ///< mix no larger than the layout
  bool smooth = false;          ///< no element nearer to a kink than 0.25, no denominator near 0
  bool no_epsilon = false;      ///< normalizer_epsilon is 0
  bool grouped = false;         ///< more query heads than kv heads
};

/// One call: its numbers and its tensors, all exact in float.
struct Case {
  std::uint64_t seed = 0;
  Setting setting;
  Shape shape;
  HostTensor<double, 4> q;
  HostTensor<double, 4> k;
  HostTensor<double, 4> v;
  HostTensor<double, 4> dy;
  HostTensor<double, 3> mix;

  Operands<double> operands() const { return {q.view(), k.view(), v.view(), mix.view()}; }
  bool ragged() const { return setting.queries.ragged() || setting.keys.ragged(); }
};

/// The tensors of a case in another scalar type.
template <class T>
struct Tensors {
  HostTensor<T, 4> q;
  HostTensor<T, 4> k;
  HostTensor<T, 4> v;
  HostTensor<T, 4> dy;
  HostTensor<T, 3> mix;

  explicit Tensors(const Case& from)
      : q(mhla::testing::converted<T>(from.q)),
        k(mhla::testing::converted<T>(from.k)),
        v(mhla::testing::converted<T>(from.v)),
        dy(mhla::testing::converted<T>(from.dy)),
        mix(mhla::testing::converted<T>(from.mix)) {}

  Operands<T> operands() const { return {q.view(), k.view(), v.view(), mix.view()}; }
};

/// Draws numbers one after the other; the same seed gives the same numbers.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}

  std::uint64_t bits() { return mhla::testing::random_bits(seed_, counter_++); }
  /// In [low, high].
  Index between(Index low, Index high) {
    return low + mhla::testing::random_index(seed_, counter_++, high - low + 1);
  }
  /// True once in `times`.
  bool once_in(Index times) { return between(1, times) == 1; }

 private:
  std::uint64_t seed_;
  std::uint64_t counter_ = 0;
};

/// The case of `seed`.
Case random_case(const Policies& policies, const Wishes& wishes, std::uint64_t seed);

/// Sizes and numbers of a case, for a test's log.
std::string description_of(const Case& random);

}  // namespace laws
