// SPDX-License-Identifier: MIT
// The operands of a call, and a unit of its work: a kv head of a sequence, with the query heads
// that read it.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/cpu/block_table.hpp>
#include <mhla/cpu/gemm.hpp>
#include <mhla/cpu/memory.hpp>
#include <mhla/cpu/plan.hpp>
#include <mhla/cpu/strided_rows.hpp>
#include <mhla/policy/mixing_product.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// The operands of a call, and its plan.
template <class L, class T>
struct Operands {
  using A = Accumulator<T>;
  L variant;
  const Plan<L, A>& plan;
  TensorView<const T, 4> q;
  TensorView<const T, 4> k;
  TensorView<const T, 4> v;
  TensorView<const A, 3> mix;

  A scale() const { return static_cast<A>(variant.scale); }
};

/// A unit of work and its memory.
template <class A>
struct Unit {
  SequenceSpan queries;
  SequenceSpan keys;
  Index kv_head;
  const UnitMemory<A>& memory;
  SummaryRows<A> summaries;            // S and z of every key block
  Orientation orientation;             // of all summaries
  Span<const MixingProduct> products;  // of a structured mixing
  // Of a stage:
  Index other_queries = 0;  // blocks of the sequence that it lacks
  SummaryRows<A>
      states{};  // that a recurrence left before its blocks: of the first matrix, not transposed
  bool states_after = false;  // whether later blocks take its states
  bool in_pairs = false;      // Precision::fast
};

/// The rows of a unit in a tensor of queries, for its query head g, and in one of keys.
template <class L, class T, class A>
TokenRows<T> query_rows(const Plan<L, A>& plan, const Unit<A>& unit, Index g,
                        const TensorView<T, 4>& tensor) {
  return {tensor, unit.queries.batch, unit.kv_head * plan.extents.group_size + g};
}
template <class T, class A>
TokenRows<T> key_rows(const Unit<A>& unit, const TensorView<T, 4>& tensor) {
  return {tensor, unit.keys.batch, unit.kv_head};
}

/// Which of mix's matrices the unit's query head g uses.
template <class L, class A>
Index unit_matrix(const Plan<L, A>& plan, const Unit<A>& unit, Index g) {
  return plan.problem.shape.mix_of(unit.queries.batch, unit.kv_head * plan.extents.group_size + g);
}
/// The corner of it that the unit's sequence uses.
template <class L, class A>
Panel<const A> unit_mixing(const Plan<L, A>& plan, const Unit<A>& unit, Index g) {
  return {plan.matrix(unit_matrix(plan, unit, g), unit.in_pairs), unit.queries.blocks,
          unit.keys.blocks, plan.problem.key_blocks};
}
/// m_ii of it (Causal).
template <class L, class A>
A own_weight(const Plan<L, A>& plan, const Unit<A>& unit, Index g, Index block) {
  return plan.matrix(unit_matrix(plan, unit, g), unit.in_pairs)[plan.own_entry(block)];
}

/// A block that a mask has emptied has empty sums.
template <class A>
void set_zero(const Panel<A>& summary, Span<A> key_sum) {
  set_zero(summary);
  std::fill_n(key_sum.data, key_sum.size, A(0));
}

}  // namespace cpu

MHLA_NAMESPACE_END
