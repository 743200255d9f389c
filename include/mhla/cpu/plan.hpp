// SPDX-License-Identifier: MIT
// What a call lays out before it runs, in the caller's workspace: tables, the packed mixing matrix,
// and the memory of slots and units.
//
// A unit of work is one kv head of one sequence, with the query heads that read it.
#pragma once

#include <algorithm>
#include <cmath>
#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/stage.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/block_table.hpp>
#include <mhla/cpu/extents.hpp>
#include <mhla/cpu/memory.hpp>
#include <mhla/cpu/pairs/panel.hpp>
#include <mhla/cpu/partition.hpp>
#include <mhla/cpu/quadratic/scores.hpp>
#include <mhla/cpu/rotation_table.hpp>
#include <mhla/policy/mixing.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/traits.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Stands for all structured mixings: a list of products.
struct Factored {};

/// What remains of a variant once geometry, rotation and structured mixings are tables. Units are
/// compiled for this, so once for all geometries, rotations, structured mixings and executors.
template <class FeatureMapT, class CausalityT, class NormalizerT, class MixingT = DenseMixing>
struct Lowered {
  FeatureMapT feature_map;
  NormalizerT normalizer;
  double scale;

  using FeatureMapType = FeatureMapT;
  using CausalityType = CausalityT;
  using NormalizerType = NormalizerT;
  using MixingType = MixingT;
};

template <class V>
using LoweredOf =
    Lowered<typename V::FeatureMapType, typename V::CausalityType, typename V::NormalizerType,
            std::conditional_t<is_structured<V>, Factored, DenseMixing>>;

/// The structured mixing of a call; nothing of a dense one.
template <class A, class V>
MixingRef<A> structured_mixing([[maybe_unused]] const V& attention,
                               [[maybe_unused]] const Problem& problem) {
  if constexpr (is_structured<V>) return {attention.mixing, mixing_layout<V>(problem)};
  return {};
}

/// in_pairs, unless `other`: std::false_type stays one.
template <class InPairs>
auto and_not(InPairs in_pairs, [[maybe_unused]] bool other) {
  if constexpr (std::is_same_v<InPairs, std::false_type>) {
    return in_pairs;
  } else {
    return in_pairs && !other;
  }
}

/// Everything a call knows before it runs. Constructed on a measuring arena, it only determines how
/// much workspace the call takes.
template <class L, class A>
struct Plan {
  Problem problem;
  bool quadratic;  // the path (quadratic/)
  Extents extents;
  BlockTables tables;
  RotationTable<A> rotation;
  MixingRef<A> structure;
  Index matrix_size;  // elements of one of `mixing`
  // [mix_heads, query blocks, key blocks]: the leading corner, packed; of a structured mixing
  // [mix_heads, coefficients].
  Span<A> mixing;
  // What key sums are mixed by in pairs: the same, as the rounded rows and their scales have it if
  // mixing_parts is 1.
  Span<A> rounded_mixing;
  // mix in bfloat16, empty without pairs: [parts, mix_heads, query blocks, pairs of key
  // blocks], and for the backward pass its transpose.
  Span<Pair> paired_mixing;
  Span<Pair> transposed_mixing;
  // 2, the rounded matrix and what it lacks, if so few blocks are mixed that errors of single
  // elements show, or has so few different elements. Otherwise they average out, once each row is
  // times a scale that takes back what its elements lose alike, as those of 1 / 53 do.
  Index mixing_parts;
  Span<float> mixing_scales;      // [mix_heads, query blocks]
  Span<float> transposed_scales;  // [mix_heads, key blocks]
  bool pairs;                     // Precision::fast
  bool mixes_in_float;            // with pairs, in a stage or by a structured mixing
  bool is_backward;
  Span<SlotScratch<A>> scratch;
  Span<UnitMemory<A>> units;
  bool shares_units;  // whether slots share a unit: not if it is a single task
  // Whether a slot runs units of its own: there are enough for every slot, or several that are not
  // shared.
  bool whole_units;

  /// `concurrent` is the number of tasks that could run at once without sharing a unit; `in_pairs`
  /// as in SlotScratch.
  template <class V, class InPairs>
  MHLA_ONCE_A_CALL Plan(Arena& arena, const V& attention, const Problem& checked,
                        const ExecutorRef& executor, Index concurrent, bool backward,
                        bool takes_quadratic, InPairs in_pairs)
      : problem(checked),
        quadratic(takes_quadratic),
        extents(checked, max_tokens_of_tile<L>, tiles_of()),
        tables(block_tables(arena, attention, checked, max_tokens_of_tile<L>, tiles_of())),
        rotation(rotation_table<A>(arena, attention.rotation, V::GeometryType::rank,
                                   checked.feature_dim, checked.grid_box(), executor)) {
    const Shape& shape = problem.shape;
    structure = structured_mixing<A>(attention, problem);
    matrix_size = matrix_size_of(structure, problem);
    mixing = arena.take<A>(checked_mul(shape.mix_heads, matrix_size));

    const auto rounds = and_not(in_pairs, quadratic);
    pairs = rounds;
    mixes_in_float = rounds && (is_structured<L> || problem.stage);
    is_backward = backward;
    mixing_parts = 2;
    rounded_mixing = mixing;
    if (rounds && !mixes_in_float) {
      rounded_mixing = arena.take<A>(mixing.size);
      const Index matrices = checked_mul(mixing_parts, shape.mix_heads);
      const auto size = [&](Index rows, Index cols) {
        return checked_mul(matrices, checked_mul(rows, pairs_of(cols)));
      };
      paired_mixing = arena.take<Pair>(size(problem.query_blocks, problem.key_blocks));
      mixing_scales = arena.take<float>(checked_mul(shape.mix_heads, problem.query_blocks));
      if (backward) {
        transposed_mixing = arena.take<Pair>(size(problem.key_blocks, problem.query_blocks));
        transposed_scales = arena.take<float>(checked_mul(shape.mix_heads, problem.key_blocks));
      }
    }
    const bool mixes = is_structured<L> && problem.stage != Stage::summarize &&
                       problem.stage != Stage::summarize_gradient;
    const Needs needs{mixes_key_sums<L>,
                      mixes_products<L>,
                      is_causal_within_block<L> && !quadratic,
                      rotation.rotates(),
                      backward,
                      !problem.stage || problem.stage == Stage::read_out_gradient ||
                          problem.stage == Stage::advance_gradient,
                      mixes_in_float,
                      mixes ? structure.num_rows() : 0,
                      mixes ? structure.num_products() : 0,
                      quadratic};
    const Index num_slots = executor.num_slots();
    shares_units = !quadratic || quadratic_tasks() > 1;
    whole_units = concurrent >= num_slots || (concurrent > 1 && !shares_units);
    const Index group_rows = rows_mixed_at_once();
    scratch = arena.take<SlotScratch<A>>(num_slots);
    for (Index s = 0; s < num_slots; ++s) {
      const SlotScratch<A> slot(arena, extents, shape.key_dim, group_rows, needs, rounds);
      if (!arena.measures()) scratch[s] = slot;
    }
    units = arena.take<UnitMemory<A>>(whole_units ? num_slots : 1);
    for (Index u = 0; u < units.size; ++u) {
      const UnitMemory<A> unit(arena, extents, needs, rounds);
      if (!arena.measures()) units[u] = unit;
    }
  }

  /// Elements of one matrix of `mixing`, or of its gradient.
  static Index matrix_size_of(const MixingRef<A>& structure, const Problem& problem) {
    if constexpr (is_structured<L>) return structure.num_coefficients();
    return checked_mul(problem.query_blocks, problem.key_blocks);
  }

  const A* matrix(Index index, bool in_pairs = false) const {
    return (in_pairs ? rounded_mixing : mixing).data + index * matrix_size;
  }
  /// Where a matrix of `mixing`, or of its gradient, has m_ii.
  Index own_entry(Index block) const {
    if constexpr (is_structured<L>) return structure.own_coefficient(block);
    return block * (problem.key_blocks + 1) + problem.queries.first - problem.keys.first;
  }

  /// The query heads of a unit that one of its matrices mixes for: [first, last).
  struct Heads {
    Index first;
    Index last;
  };
  Heads heads_of(Index matrix) const {
    return extents.matrices == 1 ? Heads{0, extents.group_size} : Heads{matrix, matrix + 1};
  }

  /// Copies the leading corner of `mix`, whatever its strides, or the coefficients that it makes.
  /// `in_pairs` is the constructor's.
  template <class InPairs>
  void pack_mixing(const TensorView<const A, 3>& mix, InPairs in_pairs) {
    if constexpr (is_structured<L>) {
      for (Index h = 0; h < problem.shape.mix_heads; ++h)
        structure.coefficients(matrix_view(mix, h), {mixing.data + h * matrix_size, matrix_size});
      return;
    }
    for (Index h = 0; h < problem.shape.mix_heads; ++h)
      for (Index i = 0; i < problem.query_blocks; ++i)
        for (Index b = 0; b < problem.key_blocks; ++b)
          mixing[(h * problem.query_blocks + i) * problem.key_blocks + b] = mix(h, i, b);
    if constexpr (std::is_same_v<A, float>) {
      if (and_not(in_pairs, quadratic || mixes_in_float)) pack_paired_mixing();
    }
  }

  /// How many of `count` units all slots share, one after another, once each has run its own. A
  /// remainder that is most of a round is run like the others: a shared unit has a barrier at every
  /// stage.
  Index shared_units(Index count, Index num_slots) const {
    if (!whole_units) return count;
    if (!shares_units) return 0;
    const Index rest = count % num_slots;
    return 2 * rest <= num_slots ? rest : 0;
  }

  SummaryShape summary_shape() const { return paired_summary(extents, is_backward); }

  /// As mixing_of, a part of it.                             // [query blocks, pairs of key blocks]
  PairedRows paired_mixing_of(Index part, Index matrix, Index query_blocks,
                              Index key_blocks) const {
    const Index stride = pairs_of(problem.key_blocks);
    return {paired_mixing.data +
                (part * problem.shape.mix_heads + matrix) * problem.query_blocks * stride,
            query_blocks, key_blocks, stride};
  }
  /// Its transpose.                                         // [key blocks, pairs of query blocks]
  PairedRows transposed_mixing_of(Index part, Index matrix, Index query_blocks) const {
    const Index stride = pairs_of(problem.query_blocks);
    return {transposed_mixing.data +
                (part * problem.shape.mix_heads + matrix) * problem.key_blocks * stride,
            problem.key_blocks, query_blocks, stride};
  }
  /// What rows of these are times, from one of a matrix on, or nothing.
  const float* scales_of(Index matrix, Index block) const {
    return mixing_parts == 1 ? &mixing_scales[matrix * problem.query_blocks + block] : nullptr;
  }
  const float* transposed_scales_of(Index matrix, Index block) const {
    return mixing_parts == 1 ? &transposed_scales[matrix * problem.key_blocks + block] : nullptr;
  }

 private:
  // Into how many a unit's work is cut, apart from its keys' features.
  Index quadratic_tasks() const {
    if (is_backward) return cpu::quadratic::max_ranges(extents.key_tokens);
    return extents.group_size * ceil_div(extents.query_tokens, max_tokens_of_tile<L>);
  }
  TilesOf tiles_of() const { return quadratic ? TilesOf::sequence : TilesOf::block; }

  Index rows_mixed_at_once() const {
    if (is_structured<L> || quadratic || problem.stage == Stage::mix_gradient ||
        problem.stage == Stage::summarize_gradient)
      return 0;
    const Index rows = row_groups<L>(extents, problem.query_blocks, problem.key_blocks).max_size();
    if (!is_backward) return rows;
    return (std::max)(rows,
                      row_groups<L>(extents, problem.key_blocks, problem.query_blocks).max_size());
  }

  // Key sums are mixed by rounded_mixing: if the matrix is rounded, its error then is that of
  // another matrix, and not one of weights that no longer add up to 1. What a row does not see is 0
  // in pairs.
  void pack_paired_mixing() {
    const Index rows = problem.query_blocks;
    const Index cols = problem.key_blocks;
    const Index mix_heads = problem.shape.mix_heads;
    mixing_parts = errors_average_out() ? 1 : 2;
    std::copy_n(mixing.data, mixing.size, rounded_mixing.data);
    std::fill_n(paired_mixing.data, paired_mixing.size, Pair{0});
    std::fill_n(transposed_mixing.data, transposed_mixing.size, Pair{0});
    for (Index h = 0; h < mix_heads; ++h)
      for (Index i = 0; i < rows; ++i)
        for (Index b = 0; b < cols; ++b) {
          if (!sees(i, b)) continue;
          const Index element = (h * rows + i) * cols + b;
          float rest = mixing[element];
          for (Index part = 0; part < mixing_parts; ++part) {
            BFloat16 rounded;
            store(rounded, rest);
            rest -= load(rounded);
            if (mixing_parts == 1)
              rounded_mixing[element] = mixing_scales[h * rows + i] * load(rounded);
            const Index matrix = part * mix_heads + h;
            const Pair bits = rounded.bits;
            paired_mixing[(matrix * rows + i) * pairs_of(cols) + b / 2] |= bits << b % 2 * 16;
            if (transposed_mixing.size > 0)
              transposed_mixing[(matrix * cols + b) * pairs_of(rows) + i / 2] |= bits << i % 2 * 16;
          }
        }
  }
  static bool sees(Index row, Index block) {
    return !is_causal<L> || block <= row - lag_of(sight_of<L>);
  }

  // Whether rounding errors of mixing's elements do, once rows and columns have their
  // scales: 1.8e-3 of a row and more is what few different elements lose.
  bool errors_average_out() {
    constexpr Index few_blocks = 16;
    constexpr float most = 1.8e-3f;
    const Index rows = problem.query_blocks;
    const Index cols = problem.key_blocks;
    if ((std::min)(rows, cols) < few_blocks) return false;
    float lost_by_rows = 0;
    float lost_by_columns = 0;
    for (Index h = 0; h < problem.shape.mix_heads; ++h) {
      const auto seen = [&](Index i, Index b) {
        return sees(i, b) ? mixing[(h * rows + i) * cols + b] : 0;
      };
      for (Index i = 0; i < rows; ++i)
        lost_by_rows += fit(
            cols, [&](Index b) { return seen(i, b); }, mixing_scales[h * rows + i]);
      if (!is_backward) continue;
      for (Index b = 0; b < cols; ++b)
        lost_by_columns += fit(
            rows, [&](Index i) { return seen(i, b); }, transposed_scales[h * cols + b]);
    }
    const auto is_little = [&](float lost, Index lines) {
      return lost <= most * most * static_cast<float>(problem.shape.mix_heads * lines);
    };
    return is_little(lost_by_rows, rows) && is_little(lost_by_columns, cols);
  }

  // The scale that takes back what elements lose alike by rounding: the sizes of the rounded ones
  // then add up to those of the others. Returns which share of their squares is lost nevertheless.
  template <class Element>
  static float fit(Index count, const Element& element, float& scale) {
    const auto rounded = [&](Index n) {
      BFloat16 to;
      store(to, element(n));
      return load(to);
    };
    float exact_sizes = 0;
    float rounded_sizes = 0;
    for (Index n = 0; n < count; ++n) {
      exact_sizes += (std::abs)(element(n));
      rounded_sizes += (std::abs)(rounded(n));
    }
    scale = exact_sizes / rounded_sizes;
    if (!(std::isfinite)(scale) || scale <= 0) scale = 1;
    float squares = 0;
    float lost = 0;
    for (Index n = 0; n < count; ++n) {
      const float rest = element(n) - scale * rounded(n);
      squares += element(n) * element(n);
      lost += rest * rest;
    }
    return lost > 0 && (std::isfinite)(lost / squares) ? lost / squares : 0;
  }
};

/// Runs tasks in order on one slot: how a unit loops if it has one slot.
struct OneSlot {
  Index slot;

  static constexpr bool keeps_floating_point = true;
  static constexpr Index num_slots() { return 1; }
  template <class Task>
  void parallel_for(Index tasks, Task&& f) const {
    for (Index task = 0; task < tasks; ++task) f(task, slot);
  }
};

}  // namespace cpu

MHLA_NAMESPACE_END
