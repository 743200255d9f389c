// SPDX-License-Identifier: MIT
// A variant as units are compiled for it. What a call lays out before it runs, in the caller's
// workspace or memory of its own: tables, the packed mixing matrix, and the memory of slots and
// units. What a backward pass is asked for. A unit of work, which is one kv head of one sequence,
// with the query heads that read it.
#pragma once

#include <mhla/cpu/memory.hpp>
#include <mhla/cpu/pairs/choice.hpp>
#include <mhla/cpu/pairs/rounded_mixing.hpp>
#include <mhla/cpu/partial_sums.hpp>
#include <mhla/cpu/quadratic/choice.hpp>
#include <mhla/cpu/rotation_table.hpp>
#include <mhla/cpu/strided_rows.hpp>

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

/// The kv heads of all sequences.
inline Index num_units(const Problem& problem) {
  return checked_mul(problem.sequences, problem.shape.kv_heads);
}

/// Everything a call knows before it runs. Constructed on a measuring arena, it only determines how
/// much workspace the call takes.
template <class L, class A>
struct Plan : Needs {
  Index parts;      // of a head's value columns, in a forward pass a unit each
  Problem problem;  // of one part
  Extents extents;
  BlockTables tables;
  RotationTable<A> rotation;
  MixingRef<A> structure;
  Index matrix_size;  // elements of one of `mixing`
  // [mix_heads, query blocks, key blocks]: the leading corner, packed; of a structured mixing
  // [mix_heads, coefficients].
  Span<A> mixing;
  RoundedMixing rounded;  // if mixes_pairs()
  Span<SlotScratch<A>> scratch;
  Span<UnitMemory<A>> units;
  bool shares_units;  // whether slots share a unit: not if it is a single task
  // Whether a slot runs units of its own: there are enough for every slot, or several that are not
  // shared.
  bool whole_units;
  PartialSums<A> partials;  // of a backward pass

  /// `backward` is a bool or a constant: with std::false_type nothing is compiled for backward
  /// passes.
  template <class V, class MayPair>
  MHLA_ONCE_A_CALL Plan(Arena& arena, const V& attention, const Problem& whole,
                        const ExecutorRef& executor, auto backward, MayPair in_pairs)
      : Needs{.mixed_key_sums = mixes_key_sums<L>,
              .mixed_products = mixes_products<L>,
              .is_backward = backward,
              .quadratic = takes_quadratic_path(attention, whole, backward, in_pairs)},
        parts(parts_of(whole, executor, in_pairs)),
        problem(part_of(whole, parts)),
        extents(problem, max_tokens_of_tile<L>, tiles_of()),
        tables(block_tables(arena, attention, problem, max_tokens_of_tile<L>, tiles_of())),
        rotation(rotation_table<A>(arena, attention.rotation, V::GeometryType::rank,
                                   problem.feature_dim, problem.grid_box(), executor)) {
    constexpr bool may_pair = std::is_same_v<MayPair, bool>;
    const Shape& shape = problem.shape;
    own_tiles = is_causal_within_block<L> && !quadratic;
    pairs = in_pairs && !quadratic;
    mixes_in_float = pairs && (is_structured<L> || problem.stage);
    structure = structured_mixing<A>(attention, problem);
    matrix_size = matrix_size_of(structure, problem);
    mixing = arena.take<A>(checked_mul(shape.mix_heads, matrix_size));
    if constexpr (may_pair)
      if (mixes_pairs())
        rounded = RoundedMixing(arena, shape.mix_heads, problem.query_blocks, problem.key_blocks,
                                is_backward);
    rotates = rotation.rotates();
    sums = !problem.stage || problem.stage == Stage::read_out_gradient ||
           problem.stage == Stage::advance_gradient;
    if (is_structured<L> && problem.stage != Stage::summarize &&
        problem.stage != Stage::summarize_gradient) {
      mixing_rows = structure.num_rows();
      mixing_products = structure.num_products();
    }
    const Index num_slots = executor.num_slots();
    if constexpr (!std::is_same_v<decltype(backward), std::false_type>)
      if (backward) partials = partial_sums(attention, problem);
    const Index concurrent = num_tasks();
    shares_units = !quadratic || quadratic_tasks() > 1;
    whole_units = concurrent >= num_slots || (concurrent > 1 && !shares_units);
    const Index group_rows = rows_mixed_at_once();
    scratch = arena.take<SlotScratch<A>>(num_slots);
    for (Index s = 0; s < num_slots; ++s) {
      SlotScratch<A> slot(arena, extents, shape.key_dim, group_rows, *this);
      if constexpr (may_pair)
        if (pairs) slot.lay_out_pairs(arena, extents, group_rows, *this);
      if (!arena.measures()) scratch[s] = slot;
    }
    units = arena.take<UnitMemory<A>>(whole_units ? num_slots : 1);
    for (Index u = 0; u < units.size; ++u) {
      UnitMemory<A> unit(arena, extents, *this);
      if constexpr (may_pair)
        if (pairs) unit.lay_out_pairs(arena, extents, *this);
      if (!arena.measures()) units[u] = unit;
    }
    partials.sums = arena.take<A>(checked_mul(partials.count(), partials.size));
  }

  /// The partial sums of a backward pass, without memory.
  MHLA_ONCE_A_CALL static PartialSums<A> partial_sums(const auto& attention,
                                                      const Problem& problem) {
    // Of a stage some rows, of a recurrence some chunks.
    Problem all = problem;
    all.queries.first = all.keys.first = 0;
    all.query_blocks = problem.query_grid.num_blocks();
    all.key_blocks = problem.key_grid.num_blocks();
    const auto elements = [&](const Problem& of) {
      return matrix_size_of(structured_mixing<A>(attention, of), of);
    };
    return {problem, elements(problem), elements(all)};
  }

  /// What can run at once without sharing a unit: units of a forward pass, of a backward pass
  /// partial sums.
  Index num_tasks() const {
    return is_backward ? partials.count() : checked_mul(num_units(problem), parts);
  }

  /// Elements of one matrix of `mixing`, or of its gradient.
  static Index matrix_size_of(const MixingRef<A>& structure, const Problem& problem) {
    if constexpr (is_structured<L>) return structure.num_coefficients();
    return checked_mul(problem.query_blocks, problem.key_blocks);
  }

  const A* matrix(Index index, bool in_pairs = false) const {
    if constexpr (std::is_same_v<A, float>)
      if (in_pairs) return rounded.of_key_sums.data + index * matrix_size;
    return mixing.data + index * matrix_size;
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
  void pack_mixing(const TensorView<const A, 3>& mix) {
    if constexpr (is_structured<L>) {
      for (Index h = 0; h < problem.shape.mix_heads; ++h)
        structure.coefficients(matrix_view(mix, h), {mixing.data + h * matrix_size, matrix_size});
      return;
    }
    for (Index h = 0; h < problem.shape.mix_heads; ++h)
      for (Index i = 0; i < problem.query_blocks; ++i)
        for (Index b = 0; b < problem.key_blocks; ++b)
          mixing[(h * problem.query_blocks + i) * problem.key_blocks + b] = mix(h, i, b);
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

  /// Of the summaries of a forward or backward pass. Stage::mix_gradient, which has a forward plan,
  /// mixes transposed rows as they are stored.
  Orientation orientation() const {
    return is_backward ? Orientation::transposed : Orientation::not_transposed;
  }
  SummaryShape summary_shape() const { return {extents, is_backward}; }

 private:
  // Whether a unit is rounded or exact is decided by all of its head's values.
  Index parts_of(const Problem& whole, const ExecutorRef& executor, bool in_pairs) const {
    if (is_backward || quadratic || whole.stage || (in_pairs && !is_causal<L>)) return 1;
    return value_parts<L>(whole, num_units(whole), executor.num_slots());
  }
  static Problem part_of(Problem whole, Index parts) {
    whole.shape.value_dim /= parts;
    return whole;
  }

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
};

/// A unit's blocks of queries, or of keys.
struct UnitBlocks : SequenceSpan {
  const BlockTable& table;

  const BlockSpan& operator[](Index i) const { return table.blocks[first_block + i]; }
  Span<const TokenTile> tiles_of(Index i) const { return table.tiles_of((*this)[i]); }
  Span<const BlockSpan> all() const { return {table.blocks.data + first_block, blocks}; }
  /// On the quadratic path all tiles: there the first block has those of the whole sequence.
  Span<const TokenTile> tiles() const {
    return blocks == 0 ? Span<const TokenTile>{} : tiles_of(0);
  }
};

/// The operands of a call, and its plan.
template <class L, class T>
struct Operands : OperandViews<T> {
  using A = Accumulator<T>;
  L variant;
  const Plan<L, A>& plan;

  A scale() const { return static_cast<A>(variant.scale); }
};

/// Which gradients a backward pass is to compute, and what they need: work for unwanted gradients
/// is skipped, and the rest has the same bits.
template <class L, class T>
struct BackwardRequest {
  TensorView<const T, 4> dy;
  GradientViews<T> gradients;
  Update update;

  bool query() const { return gradients.query.wanted; }
  bool keys() const { return gradients.key.wanted || gradients.value.wanted; }
  bool mixing() const { return gradients.mix.wanted; }
  /// dS~: needed for dk, dv and dmix.
  bool mixed_summaries() const { return keys() || mixing(); }
  /// What own queries send back to keys' features: needed for dk and m_ii's gradient.
  bool own_keys() const { return gradients.key.wanted || mixing(); }
  /// dQ^r = U S~^T: needed for dq, and for the gradient of the denominators, which all but dv need.
  bool grad_features() const { return query() || (normalizes<L> && own_keys()); }
};

/// A unit of a call, and its memory.
template <class L, class T>
struct Unit {
  using A = Accumulator<T>;

  const Operands<L, T>& operands;
  UnitBlocks queries;
  UnitBlocks keys;
  Index kv_head;
  const UnitMemory<A>& memory;
  SummaryRows<A> summaries;              // S and z of every key block
  Span<const MixingProduct> products{};  // of a structured mixing
  // Of a stage:
  Index other_queries = 0;  // blocks of the sequence that it lacks
  // States that a recurrence left before its blocks: of the first matrix, not transposed.
  SummaryRows<A> states{};
  bool states_after = false;  // whether later blocks take its states

  bool in_pairs = false;  // whether S, S~, dS~ and dS are, of bfloat16 (Precision::fast)
  const Plan<L, A>& plan = operands.plan;

  const Extents& extents() const { return plan.extents; }
  /// How the unit stores all summaries.
  Orientation orientation() const { return plan.orientation(); }

  /// Its rows in a tensor of queries, for query head g, and in one of keys.
  template <class Stored>
  TokenRows<Stored> query_rows(Index g, const TensorView<Stored, 4>& tensor) const {
    return {tensor, queries.batch, kv_head * extents().group_size + g};
  }
  template <class Stored>
  TokenRows<Stored> key_rows(const TensorView<Stored, 4>& tensor) const {
    return {tensor, keys.batch, kv_head};
  }

  /// Which of mix's matrices query head g uses.
  Index matrix_of(Index g) const {
    return plan.problem.shape.mix_of(queries.batch, kv_head * extents().group_size + g);
  }
  const A* matrix(Index g) const { return plan.matrix(matrix_of(g), in_pairs); }
  /// The corner of it that the sequence uses.
  Panel<const A> mixing(Index g) const {
    return {matrix(g), queries.blocks, keys.blocks, plan.problem.key_blocks};
  }
  /// m_ii of it (Causal).
  A own_weight(Index g, Index block) const { return matrix(g)[plan.own_entry(block)]; }
};

}  // namespace cpu

MHLA_NAMESPACE_END
