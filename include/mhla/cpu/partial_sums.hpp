// SPDX-License-Identifier: MIT
// The gradient of the mixing matrix is a sum over the batch and, where heads share the matrix, over
// heads. Tasks leave partial sums, whose number depends only on the shape and which are added in a
// fixed order: the bits do not depend on threads.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/extents.hpp>
#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// How the units of a backward pass are divided: each partial sum belongs to one kv head and
/// consecutive sequences. Their number depends only on the shape.
struct PartialSums {
  Index sequence_groups;
  Index kv_heads;
  Index size;  // elements of one: [matrices, query blocks, key blocks]

  PartialSums(const Problem& problem, Index sequences) : kv_heads(problem.shape.kv_heads) {
    const Extents e(problem);
    size = checked_mul(e.matrices, checked_mul(e.query_blocks, e.key_blocks));
    // Enough of them to keep every core of a large machine busy, but in bounded memory.
    constexpr Index enough = 64;
    constexpr Index max_elements = Index{1} << 24;
    const Index affordable = std::max(Index{1}, max_elements / std::max(Index{1}, size));
    const Index wanted = std::min(enough, affordable);
    sequence_groups =
        std::min(sequences, std::max(Index{1}, wanted / std::max(Index{1}, kv_heads)));
  }
  Index count() const { return checked_mul(sequence_groups, kv_heads); }
};

/// Adds `count` rows, `stride` apart, pairwise, in an order that depends only on their number. The
/// sum is left in the first.
template <class A>
void add_up_partials(A* first, Index count, Index stride, Index elements) {
  for (Index step = 1; step < count; step *= 2)
    for (Index p = 0; p + step < count; p += 2 * step)
      for (Index i = 0; i < elements; ++i) first[p * stride + i] += first[(p + step) * stride + i];
}

/// Writes dmix from the partial sums; outside the leading corner the gradient is 0.
template <class A>
void write_mixing_gradient(const Extents& e, const PartialSums& partials, Span<A> sums,
                           const TensorView<A, 3>& destination, Update update,
                           const ExecutorRef& executor) {
  const Index matrices = destination.extent[0];
  const bool shared = matrices == 1;
  const Index matrix_size = e.query_blocks * e.key_blocks;
  executor.parallel_for(checked_mul(matrices, e.query_blocks), [&](Index task, Index) {
    const Index h = task / e.query_blocks;
    const Index i = task % e.query_blocks;
    // A shared matrix is in every partial sum, a per-head matrix in those of its kv head.
    const Index first =
        shared ? 0 : h / e.group_size * partials.size + h % e.group_size * matrix_size;
    const Index count = shared ? partials.count() : partials.sequence_groups;
    const Index stride = shared ? partials.size : partials.kv_heads * partials.size;
    A* row = sums.data + first + i * e.key_blocks;
    const bool empty = count == 0 || partials.size == 0;
    if (!empty) add_up_partials(row, count, stride, e.key_blocks);
    for (Index b = 0; b < e.key_blocks; ++b) {
      A& to = destination(h, i, b);
      const A sum = empty ? A(0) : row[b];
      to = update == Update::overwrite ? sum : to + sum;
    }
  });
  if (update == Update::accumulate) return;
  for (Index h = 0; h < destination.extent[0]; ++h)
    for (Index i = 0; i < destination.extent[1]; ++i)
      for (Index b = i < e.query_blocks ? e.key_blocks : 0; b < destination.extent[2]; ++b)
        destination(h, i, b) = A(0);
}

}  // namespace cpu

MHLA_NAMESPACE_END
