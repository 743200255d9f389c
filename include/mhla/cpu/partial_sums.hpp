// SPDX-License-Identifier: MIT
// The gradient of the mixing matrix is a sum over the batch and, where heads share the matrix, over
// heads. Tasks leave partial sums, whose number depends only on the shape and which are added in a
// fixed order: the bits do not depend on threads.
#pragma once

#include <mhla/core/executor.hpp>
#include <mhla/cpu/partition.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Adds `count` rows, `stride` apart, pairwise, in an order that depends only on their number. The
/// sum is left in the first.
template <class A>
void add_up_rows(A* first, Index count, Index stride, Index elements) {
  for (Index step = 1; step < count; step *= 2)
    for (Index p = 0; p + step < count; p += 2 * step)
      for (Index i = 0; i < elements; ++i) first[p * stride + i] += first[(p + step) * stride + i];
}

/// How the units of a backward pass are divided: each partial sum belongs to one kv head and
/// consecutive sequences. How many of these depends only on the shape of the whole call.
template <class A>
struct PartialSums {
  Index sequence_groups = 0;
  Index kv_heads = 0;
  Index matrix_size = 0;  // elements of one matrix's: [query blocks, key blocks], or coefficients
  Index size = 0;         // elements of one: [matrices, matrix_size]
  Span<A> sums;           // [sequence groups, kv_heads, matrices, matrix_size]

  PartialSums() = default;

  /// `elements_of_all` if those are some rows of a matrix, whose sums have the same order.
  PartialSums(const Problem& problem, Index elements_of_matrix, Index elements_of_all)
      : kv_heads(problem.shape.kv_heads), matrix_size(elements_of_matrix) {
    const Index matrices = Extents(problem).matrices;
    size = checked_mul(matrices, matrix_size);
    if (problem.shape.mix_per_item()) {  // nothing is summed
      sequence_groups = problem.sequences;
      return;
    }
    // Enough of them to keep every core of a large machine busy, but in bounded memory.
    constexpr Index enough = 64;
    constexpr Index max_elements = Index{1} << 24;
    const Index affordable = (std::max)(
        Index{1}, max_elements / (std::max)(Index{1}, checked_mul(matrices, elements_of_all)));
    const Index wanted = (std::min)(enough, affordable);
    sequence_groups =
        (std::min)(problem.sequences,
                   (std::max)(Index{1}, wanted / (std::max)(Index{1}, problem.all_kv_heads)));
  }
  Index count() const { return checked_mul(sequence_groups, kv_heads); }

  /// Adds up `elements` elements of matrix h of mix's from `first` on. Returns where the sum is;
  /// null if there are no partial sums: it is 0.
  A* add_up(const Shape& shape, Index h, Index first, Index elements) const {
    if (sums.size == 0) return nullptr;
    const bool shared = shape.mix_heads == 1;
    const Index head = shared ? 0 : h % shape.heads;
    const Index item = shared ? 0 : h / shape.heads;
    const Index group = shape.group_size();
    // A shared matrix is in every partial sum, a per-head matrix in those of its kv head, and one
    // of a batch item in the item's.
    const Index of_head =
        shared ? 0 : (item * kv_heads + head / group) * size + head % group * matrix_size;
    A* const begin = sums.data + of_head + first;
    if (shared) {
      add_up_rows(begin, count(), size, elements);
    } else if (!shape.mix_per_item()) {
      add_up_rows(begin, sequence_groups, kv_heads * size, elements);
    }
    return begin;
  }
};

/// Writes dmix from the partial sums; outside the leading corner the gradient is 0.
template <class A>
void write_mixing_gradient(const Problem& problem, const PartialSums<A>& partials,
                           const TensorView<A, 3>& destination, Update update,
                           const ExecutorRef& executor) {
  const Index rows = problem.query_blocks;
  const Index columns = problem.key_blocks;
  const auto write_row = [&](Index h, Index i) {
    const A* const row = partials.add_up(problem.shape, h, i * columns, columns);
    for (Index b = 0; b < columns; ++b) {
      A& to = destination(h, i, b);
      const A sum = row == nullptr ? A(0) : row[b];
      to = update == Update::overwrite ? sum : to + sum;
    }
  };
  const Index all_rows = checked_mul(destination.extent[0], rows);
  constexpr Index least = 4096;  // summands of a task: about a microsecond
  const Index rows_of_task = ceil_div(least, (std::max)(Index{1}, columns * partials.count()));
  executor.parallel_for(ceil_div(all_rows, rows_of_task), [&](Index task, Index) {
    const Index end = (std::min)(all_rows, (task + 1) * rows_of_task);
    for (Index row = task * rows_of_task; row < end; ++row) write_row(row / rows, row % rows);
  });
  if (update == Update::accumulate) return;
  for (Index h = 0; h < destination.extent[0]; ++h)
    for (Index i = 0; i < destination.extent[1]; ++i)
      for (Index b = i < rows ? columns : 0; b < destination.extent[2]; ++b)
        destination(h, i, b) = A(0);
}

}  // namespace cpu

MHLA_NAMESPACE_END
