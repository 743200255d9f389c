// SPDX-License-Identifier: MIT
// Operands and results of one shape, in the working sets that a result is given for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/mixing_matrix.hpp>
#include <mhla/testing/host_tensor.hpp>
#include <mhla/testing/random_tensor.hpp>
#include <string>

#include "shapes.hpp"

namespace bench {

using mhla::Index;
using mhla::testing::HostTensor;

/// Where the tensors come from when a run touches them. Names of benchmarks end with it, but for
/// the default.
enum class WorkingSet {
  L3,        ///< a batch whose q, k, v and y take 16 MB, so that they do not come from L2
  one_head,  ///< one head of one image, again and again: L2, if it holds a head
  DRAM,      ///< a batch whose q, k, v and y take 512 MB
};

inline std::string suffix(WorkingSet set) {
  switch (set) {
    case WorkingSet::L3:
      return "";
    case WorkingSet::one_head:
      return "/one_head";
    case WorkingSet::DRAM:
      return "/DRAM";
  }
  return "";
}

/// The shape as it is run in a working set, and how many of it.
struct Batch {
  Shape shape;
  Index items;
};

inline Batch batch(Shape shape, WorkingSet set, Index element_bytes) {
  if (set == WorkingSet::one_head) {
    shape.heads = 1;
    return {shape, 1};
  }
  const Index bytes = Index{set == WorkingSet::DRAM ? 512 : 16} << 20;
  const Index items = mhla::ceil_div(bytes, shape.elements() * element_bytes);
  return {shape, items};
}

inline mhla::Grid grid(const Shape& shape) {
  return {{shape.grid[0], shape.grid[1], shape.grid[2]},
          {shape.block[0], shape.block[1], shape.block[2]}};
}

/// Tensors of a batch; 16-bit ones with a float mixing matrix.
template <class T>
struct Tensors {
  using A = mhla::Accumulator<T>;

  HostTensor<T, 4> q, k, v, dy;    // operands
  HostTensor<T, 4> y, dq, dk, dv;  // results
  HostTensor<A, 3> mix, dmix;

  explicit Tensors(const Batch& b)
      : q(random(1, b, b.shape.key_dim)),
        k(random(2, b, b.shape.key_dim)),
        v(random(3, b, b.shape.value_dim)),
        dy(random(4, b, b.shape.value_dim)),
        y(HostTensor<T, 4>::like(v.view())),
        dq(HostTensor<T, 4>::like(q.view())),
        dk(HostTensor<T, 4>::like(k.view())),
        dv(HostTensor<T, 4>::like(v.view())),
        mix(1, b.shape.blocks(), b.shape.blocks()),
        dmix(1, b.shape.blocks(), b.shape.blocks()) {
    const bool causal = b.shape.model == Model::language;
    mhla::initialize(mix.view(), grid(b.shape),
                     {.transform = causal ? mhla::Transform::causal : mhla::Transform::linear});
  }

  mhla::Shape shape() const { return mhla::shape_of(q.view(), k.view(), v.view(), mix.view()); }

 private:
  static HostTensor<T, 4> random(std::uint64_t seed, const Batch& b, Index dim) {
    return mhla::testing::random_tensor<T>(mhla::testing::Uniform{-1, 1}, seed, b.items,
                                           b.shape.heads, b.shape.tokens(), dim);
  }
};

/// The tensors of the last shape asked for are kept: neighbouring benchmarks, and the several calls
/// that Google Benchmark makes of one, want the same. Benchmarks run one after the other.
template <class T>
Tensors<T>& tensors_of(const Batch& b) {
  static std::unique_ptr<Tensors<T>> kept;
  static std::string kept_for;
  const std::string wanted =
      b.shape.name + "/" + std::to_string(b.shape.heads) + "/" + std::to_string(b.items);
  if (kept == nullptr || kept_for != wanted) {
    kept.reset();  // before the next: two of the largest would not fit
    kept = std::make_unique<Tensors<T>>(b);
    kept_for = wanted;
  }
  return *kept;
}

}  // namespace bench
