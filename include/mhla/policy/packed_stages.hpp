// SPDX-License-Identifier: MIT
// Stages of packed sequences (mhla/stages.hpp): for every sequence that has some of the blocks, its
// own, on its parts of the views.
#pragma once

#include <algorithm>
#include <mhla/core/config.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/stage.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/packed_blocks.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/stage_blocks.hpp>
#include <mhla/policy/traits.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

/// \addtogroup stages
/// \{

/// Stages of a packed batch, by the stages S of a sequence: the same calls, on blocks of all its
/// sequences, end to end. Tensors [1, heads, tokens, dim] have the tokens of the given blocks, sums
/// a row for each. mix and dmix are whole. Of summaries that queries read, the first is the first
/// of `key_blocks(queries)`, which are those of their sequences alone; queries of mix_gradient are
/// `query_blocks(keys)`, or those of them that see the keys.
///
/// y, dq, dk and dv have the bits of a whole pass, as those of S have. dmix, with
/// Update::overwrite, is the sum over the given blocks: it differs from a whole pass's in rounding,
/// and is the same for any executor.
///
/// By RecurrentMixing, ranges begin and end at multiples of 16 blocks of a sequence, or with it.
/// States before and behind them are those of the sequence that goes on there: `block_in_sequence`
/// is not 0. Where none does, states behind are 0, and nothing else is read or written.
///
/// Offsets are borrowed; after the constructor they must not change.
template <class S, class Offset>
class PackedStages : public StageBlocks<Packed<typename S::Variant, Offset>, typename S::Scalar> {
  using V = typename S::Variant;
  using T = typename S::Scalar;
  using A = Accumulator<T>;
  using Blocks = StageBlocks<Packed<V, Offset>, T>;
  using Blocks::attention_;
  using Blocks::has_states_before;
  using Blocks::problem_;
  using Blocks::queries_listed;
  using Blocks::recurs;

 public:
  using Blocks::Blocks;
  /// \cond INTERNAL
  using StageErrors::advance;
  using StageErrors::advance_gradient;
  using StageErrors::mix_gradient;
  using StageErrors::read_out;
  using StageErrors::read_out_gradient;
  using StageErrors::summarize;
  using StageErrors::summarize_gradient;
  using StageErrors::workspace_size;
  template <class E>
  static constexpr bool runs_on = S::template runs_on<E>;
  /// \endcond
  /// \cond INTERNAL
  template <class E>
  static void require_device(const E& executor, const Footprint& memory) {
    S::require_device(executor, memory);
  }
  /// \endcond

  /// As Stages::workspace_size.
  template <class E>
  requires runs_on<E> Index workspace_size(Stage stage, const E& executor, const BlockRange& blocks,
                                           const BlockRange& keys = {})
  const {
    const bool mixes = stage == Stage::mix_gradient;
    this->query_tokens(blocks);  // throws unless they are there
    if (mixes) this->key_tokens(keys);
    Index bytes = 0;
    for_each_part(
        mixes ? keys : blocks, mixes ? keys : blocks, [&](const SequencePart& of, const S& stages) {
          const BlockRange queries = mixes ? of.of(blocks) : of.part;
          bytes = (std::max)(bytes, stages.workspace_size(stage, executor, queries, of.part));
        });
    return bytes;
  }

  /// As Stages::summarize.
  template <class E>
  requires runs_on<E>
  void summarize(const E& executor, const BlockRange& keys, const TensorView<const T, 4>& k,
                 const TensorView<const T, 4>& v, const TensorView<A, 2>& summaries,
                 WorkspaceView workspace) const {
    const Footprint memory = this->require_summarize(keys, k, v, summaries, workspace);
    require_call(Stage::summarize, executor, keys, {}, memory, workspace);
    for_each_part(keys, this->held_keys(keys), [&](const SequencePart& of, const S& stages) {
      stages.summarize(executor, of.part, tokens_of(k, of), tokens_of(v, of),
                       rows_of(summaries, of.rows), workspace);
    });
  }

  /// As Stages::advance.
  template <class E>
  requires runs_on<E>
  void advance(const E& executor, const BlockRange& blocks, const TensorView<const A, 3>& mix,
               const Sums<A>& sums, const TensorView<A, 2>& behind,
               WorkspaceView workspace) const requires recurs {
    const Footprint memory = this->require_advance(blocks, mix, sums, behind, workspace);
    require_call(Stage::advance, executor, blocks, {}, memory, workspace);
    for_each_part(blocks, blocks, [&](const SequencePart& of, const S& stages) {
      if (of.part.end() < of.blocks)  // the last
        stages.advance(executor, of.part, mix_of(mix, of, stages), sums_of(sums, 0, of), behind,
                       workspace);
    });
    if (!has_states_before(blocks.end()))
      for (Index i = 0; i < behind.size(); ++i) behind.element(i) = A(0);
  }

  /// As Stages::read_out.
  template <class E>
  requires runs_on<E>
  void read_out(const E& executor, const BlockRange& queries, const OperandViews<T>& x,
                const std::type_identity_t<Sums<A>>& sums, const TensorView<T, 4>& y,
                WorkspaceView workspace) const {
    const Footprint memory = this->require_read_out(queries, x, sums, y, workspace);
    S::require_pitch("summaries", sums.summaries);
    require_call(Stage::read_out, executor, queries, {}, memory, workspace);
    const Index first = this->key_blocks(queries).first;
    for_each_part(
        queries, this->held_queries(queries), [&](const SequencePart& of, const S& stages) {
          stages.read_out(executor, of.part, operands_of(this->read_by_queries(x), of, stages),
                          sums_of(sums, first, of), tokens_of(y, of), workspace);
        });
  }

  /// As Stages::read_out_gradient.
  template <class E>
  requires runs_on<E>
  void read_out_gradient(const E& executor, const BlockRange& queries, const OperandViews<T>& x,
                         const std::type_identity_t<Sums<A>>& sums,
                         const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                         QueryUpdate update, const QueryRows<A>& left,
                         WorkspaceView workspace) const {
    const Footprint memory =
        this->require_read_out_gradient(queries, x, sums, dy, gradients, left, workspace);
    S::require_pitch("summaries", sums.summaries);
    require_call(Stage::read_out_gradient, executor, queries, {}, memory, workspace);
    const GradientView<A, 3> dmix = recurs ? GradientView<A, 3>(skip) : gradients.mix;
    if (dmix.wanted && update.mix == Update::overwrite) S::clear_mix(executor, dmix.view);
    const Index first = this->key_blocks(queries).first;
    for_each_part(
        queries, this->held_queries(queries), [&](const SequencePart& of, const S& stages) {
          stages.read_out_gradient(
              executor, of.part, operands_of(this->read_by_queries(x), of, stages),
              sums_of(sums, first, of), tokens_of(dy, of),
              {tokens_of(gradients.query, of), skip, skip, mix_of(dmix, of, stages)},
              {update.query, Update::accumulate},
              {rows_of(left.mixtures, of.rows), denominators_of(left.denominators, of, stages)},
              workspace);
        });
  }

  /// As Stages::advance_gradient.
  template <class E>
  requires runs_on<E>
  void advance_gradient(const E& executor, const BlockRange& blocks,
                        const TensorView<const A, 3>& mix, const Sums<A>& sums,
                        const TensorView<const A, 2>& mixtures, const StateGradients<A>& states,
                        const TensorView<A, 2>& summary_gradients,
                        const std::type_identity_t<GradientView<A, 3>>& dmix, Update update,
                        WorkspaceView workspace) const requires recurs {
    const Footprint memory = this->require_advance_gradient(blocks, mix, sums, mixtures, states,
                                                            summary_gradients, dmix, workspace);
    require_call(Stage::advance_gradient, executor, blocks, {}, memory, workspace);
    if (dmix.wanted && update == Update::overwrite) S::clear_mix(executor, dmix.view);
    for_each_part(blocks, blocks, [&](const SequencePart& of, const S& stages) {
      stages.advance_gradient(executor, of.part, mix_of(mix, of, stages), sums_of(sums, 0, of),
                              rows_of(mixtures, of.rows), states,
                              rows_of(summary_gradients, of.rows), mix_of(dmix, of, stages),
                              Update::accumulate, workspace);
    });
  }

  /// As Stages::mix_gradient; mix is whole.
  template <class E>
  requires runs_on<E>
  void mix_gradient(const E& executor, const BlockRange& queries, const BlockRange& keys,
                    const TensorView<const A, 3>& mix, const TensorView<const A, 2>& mixtures,
                    const TensorView<A, 2>& summary_gradients, WorkspaceView workspace) const
      requires(!recurs) {
    const Footprint memory =
        this->require_mix_gradient(queries, keys, mix, mixtures, summary_gradients, workspace);
    S::require_pitch("mixtures", mixtures);
    S::require_pitch("summary_gradients", summary_gradients);
    require_call(Stage::mix_gradient, executor, queries, keys, memory, workspace);
    for_each_part(keys, keys, [&](const SequencePart& of, const S& stages) {
      const BlockRange seeing = of.of(queries);
      stages.mix_gradient(
          executor, seeing, of.part, columns_of(rows_of(mix, seeing), of.part),
          rows_of(mixtures, {of.first_block + seeing.first - queries.first, seeing.count}),
          rows_of(summary_gradients, of.rows), workspace);
    });
  }

  /// As Stages::summarize_gradient.
  template <class E>
  requires runs_on<E>
  void summarize_gradient(const E& executor, const BlockRange& keys, const OperandViews<T>& x,
                          const TensorView<const A, 2>& summary_gradients,
                          const TensorView<const T, 4>& dy,
                          const TensorView<const A, 2>& denominators,
                          const GradientViews<T>& gradients, Update update,
                          WorkspaceView workspace) const {
    const Footprint memory = this->require_summarize_gradient(keys, x, summary_gradients, dy,
                                                              denominators, gradients, workspace);
    require_call(Stage::summarize_gradient, executor, keys, {}, memory, workspace);
    const GradientView<A, 3> dmix = this->own_entries(keys, gradients.mix);
    for_each_part(keys, this->held_keys(keys), [&](const SequencePart& of, const S& stages) {
      stages.summarize_gradient(executor, of.part,
                                operands_of(this->read_by_keys(keys, x), of, stages),
                                rows_of(summary_gradients, of.rows), tokens_of(dy, of),
                                denominators_of(denominators, of, stages),
                                {skip, tokens_of(gradients.key, of), tokens_of(gradients.value, of),
                                 mix_of(dmix, of, stages)},
                                update, workspace);
    });
  }

 private:
  // Calls visit(part, the stages of its sequence). Its tokens are counted as tensors hold them. Of
  // no blocks, a recurrence alone makes something: it passes states on.
  template <class Visit>
  void for_each_part(const BlockRange& blocks, const BlockRange& held, const Visit& visit) const {
    if (!recurs && blocks.count == 0) return;
    const auto list = queries_listed();
    const Index before = list.first_token(blocks.first) - list.first_token(held.first);
    list.for_each_part(blocks, [&](SequencePart of) {
      of.tokens.first += before;
      Problem problem = problem_;
      Shape& shape = problem.shape;
      problem.sequences = 1;
      shape.query_tokens = shape.key_tokens = of.length;
      problem.query_grid.extent[2] = problem.key_grid.extent[2] = shape.query_tokens;
      problem.queries = problem.keys = {0, of.blocks};
      problem.query_blocks = problem.key_blocks = of.blocks;
      if (!recurs) shape.mix_query_blocks = shape.mix_key_blocks = of.blocks;
      visit(of, S(problem, static_cast<const V&>(attention_)));
    });
  }
  // The rest of the checks, so that none is left for when something has been written.
  template <class E>
  void require_call(Stage stage, const E& executor, const BlockRange& blocks,
                    const BlockRange& keys, const Footprint& memory,
                    WorkspaceView workspace) const {
    require_device(executor, memory);
    S::require_room(workspace, workspace_size(stage, executor, blocks, keys));
  }

  template <class X>
  static TensorView<X, 4> tokens_of(const TensorView<X, 4>& tensor, const SequencePart& of) {
    return blocks_along(2, tensor, of.tokens);
  }
  template <class X>
  static GradientView<X, 4> tokens_of(const GradientView<X, 4>& gradient, const SequencePart& of) {
    if (!gradient.wanted) return skip;
    return tokens_of(gradient.view, of);
  }
  // The corner of mix that a sequence uses, of its part the rows.
  template <class X>
  static TensorView<X, 3> mix_of(const TensorView<X, 3>& mix, const SequencePart& of,
                                 const S& stages) {
    return columns_of(rows_of(mix, stages.mix_rows(of.part)),
                      stages.mix_columns(stages.key_blocks()));
  }
  template <class X>
  static GradientView<X, 3> mix_of(const GradientView<X, 3>& dmix, const SequencePart& of,
                                   const S& stages) {
    if (!dmix.wanted) return skip;
    return mix_of(dmix.view, of, stages);
  }
  static OperandViews<T> operands_of(const OperandViews<T>& x, const SequencePart& of,
                                     const S& stages) {
    return {tokens_of(x.q, of), tokens_of(x.k, of), tokens_of(x.v, of), mix_of(x.mix, of, stages)};
  }
  // What a part of the queries reads: summaries of its sequence, as far as they are there, where
  // the first are of block `first`.
  static Sums<A> sums_of(const Sums<A>& sums, Index first, const SequencePart& of) {
    const TensorView<const A, 2>& all = sums.summaries;
    if (recurs) return {rows_of(all, of.rows), sums.states};
    const Index row = of.first_block - first;
    return rows_of(all, {row, std::clamp(all.extent[0] - row, Index{0}, of.blocks)});
  }
  // A sequence that is shorter than a block has fewer.
  template <class X>
  static TensorView<X, 2> denominators_of(const TensorView<X, 2>& all, const SequencePart& of,
                                          const S& stages) {
    return blocks_along(1, rows_of(all, of.rows), {0, stages.denominator_size()});
  }
};

/// \}

MHLA_NAMESPACE_END
