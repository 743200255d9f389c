// SPDX-License-Identifier: MIT
/// \defgroup stages Stages
/// What a whole pass does in turn, on blocks of a sequence: for caches of summaries, and for
/// sequences that are shared out.
/// \code
/// // A video of which 8 blocks are known, 4 are not.
/// const mhla::Stages<mhla::Attention<mhla::Relu, mhla::Blocks2D>, float> stages(attention, call);
/// const mhla::BlockRange known{0, 8}, next{8, 4};
/// std::vector<float> memory(static_cast<std::size_t>(12 * stages.summary_size()));
/// const auto sums = mhla::make_view(memory.data(), 12, stages.summary_size());
/// const mhla::Workspace scratch(stages.workspace_size(mhla::Stage::summarize, executor, known));
/// stages.summarize(executor, known, k_view, v_view, mhla::rows_of(sums, known), scratch);  // once
/// // For each of its continuations:
/// stages.summarize(executor, next, k_view, v_view, mhla::rows_of(sums, next), workspace);
/// stages.read_out(executor, next, {q_view, k_view, v_view, mhla::rows_of(mix_view, next)}, sums,
///                 y_view, workspace);
/// \endcode
/// Forward: `summarize` leaves S_b and z_b of key blocks, `read_out` makes y of query blocks from
/// all of them and rows of mix. Backward: `read_out_gradient` makes dq, rows of dmix and dS~_i of
/// query blocks, `mix_gradient` dS_b of key blocks from all of those, `summarize_gradient` dk and
/// dv. (arXiv 2601.07832, equations 3 to 5, and their adjoints.)
///
/// Tensors, and masks of a padded batch (`padded`), have the tokens of the given blocks alone, in
/// raster order; positions of a rotation are those of the whole sequence, with which neither a
/// stage's time nor its memory grows, but for sums and rows of mix that it is given. What passes
/// from stage to stage is matrices whose row b is all that block b leaves, for the whole batch, so
/// that some blocks are some rows: an all-gather appends them, a reduce-scatter adds them up and
/// shares them out.
///
/// forward_into and backward_into are these stages, called in turn: however blocks are shared out,
/// y, dq and dmix have their bits, and so have dk and dv, unless feature_dim is no multiple of 16
/// under Bidirectional with more than 128 query blocks, or with a matrix for each of the query
/// heads that share a kv head. `mix_gradient` then is given all query blocks that see its keys;
/// sums of several calls differ in rounding. Precision::fast is taken as exact.
///
/// By RecurrentMixing a part of a sequence needs no other summaries, but the states that the parts
/// before it left. These it waits for and sends on; their gradients go from the last part to the
/// first. All else runs side by side, and no memory grows with the sequence. Parts begin at
/// multiples of 16 blocks.
/// \code
/// using Recurrent = mhla::Attention<mhla::Relu, mhla::Blocks1D, mhla::Causal, mhla::MixedKeySum,
///                                   mhla::NoRotation, mhla::RecurrentMixing>;
/// const mhla::Stages<Recurrent, float> stages({.blocks = {.block = 64}}, call);
/// const mhla::BlockRange own{32, 32};
/// const auto rows = mhla::rows_of(mix_view, stages.mix_rows(own));
/// mhla::TensorView<float, 2> sums, before, behind, mixtures, dens, dsums, dbefore, dbehind;
/// mhla::TensorView<float, 3> drows;  // of dmix, as rows of mix
/// stages.summarize(executor, own, k_view, v_view, sums, workspace);
/// // Receive `before`,
/// stages.advance(executor, own, rows, {sums, before}, behind, workspace);
/// // send `behind`.
/// stages.read_out(executor, own, {q_view, k_view, v_view, rows}, {sums, before}, y_view,
/// workspace);
///
/// stages.read_out_gradient(executor, own, {q_view, k_view, v_view, rows}, {sums, before}, dy_view,
///                          {dq_view, mhla::skip, mhla::skip, mhla::skip}, mhla::Update::overwrite,
///                          {mixtures, dens}, workspace);
/// // Receive `dbehind`,
/// stages.advance_gradient(executor, own, rows, {sums, before}, mixtures, {dbehind, dbefore},
/// dsums,
///                         drows, mhla::Update::overwrite, workspace);
/// // send `dbefore`.
/// stages.summarize_gradient(executor, own, {q_view, k_view, v_view, rows}, dsums, dy_view, dens,
///                           {mhla::skip, dk_view, dv_view, drows}, mhla::Update::overwrite,
///                           workspace);
/// \endcode
#pragma once

#include <algorithm>
#include <cstdint>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/stage.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/token_masks.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/block_table.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/cpu/stage_states.hpp>
#include <mhla/cpu/stage_units.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/recurrent_mixing.hpp>
#include <mhla/policy/traits.hpp>
#include <mhla/policy/variant.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

/// \addtogroup stages
/// \{

/// \cond INTERNAL
// Some blocks along an axis of a view, which may be of nothing.
template <class T, int Rank>
TensorView<T, Rank> blocks_along(int axis, TensorView<T, Rank> view, const BlockRange& blocks) {
  if (view.data != nullptr) view.data += blocks.first * view.stride[axis];
  view.extent[axis] = blocks.count;
  return view;
}
/// \endcond

/// The rows of some blocks in a matrix with a row for every block.
template <class T>
TensorView<T, 2> rows_of(const TensorView<T, 2>& matrix, const BlockRange& blocks) {
  return blocks_along(0, matrix, blocks);
}
/// The rows of some query blocks in mix [heads, query blocks, key blocks], or in dmix.
template <class T>
TensorView<T, 3> rows_of(const TensorView<T, 3>& mix, const BlockRange& queries) {
  return blocks_along(1, mix, queries);
}
/// The columns of some key blocks in mix [heads, query blocks, key blocks].
template <class T>
TensorView<T, 3> columns_of(const TensorView<T, 3>& mix, const BlockRange& keys) {
  return blocks_along(2, mix, keys);
}

/// What queries leave for the gradients of keys, a row for each query block.
template <class A>
struct QueryRows {
  TensorView<A, 2> mixtures;      ///< [query blocks, mixture_size()]: dS~^T, dz~
  TensorView<A, 2> denominators;  ///< [query blocks, denominator_size()]: den and its gradient
};

/// What Stages::padded takes: which tokens of a stage's blocks take part, as in a call (see
/// mhla::padded), and how far every item reaches in the whole sequence, whose blocks behind that a
/// whole pass drops. All borrowed.
struct StageMasks {
  TokenMasks tokens;               ///< [batch, tokens of the blocks]; those that a stage lacks: any
  Span<const Index> query_blocks;  ///< [batch]: from count_used_queries
  Span<const Index> key_blocks;    ///< [batch]: from count_used_keys
};

/// What blocks leave for those that see them.
template <class A>
struct Sums {
  TensorView<const A, 2> summaries;  ///< [key blocks, summary_size()]
  /// RecurrentMixing alone: [num_states(), mixture_size()], what all blocks before left; not read
  /// before block 0
  TensorView<const A, 2> states;

  /// Of any views.
  Sums(const TensorView<const A, 2>& of_blocks,
       const std::type_identity_t<TensorView<const A, 2>>& before = {})
      : summaries(of_blocks), states(before) {}  // NOLINT: summaries are sums
  /// Of summaries that can be written.
  Sums(const TensorView<A, 2>& of_blocks) : summaries(of_blocks) {}  // NOLINT: likewise
};

/// Gradients of a recurrence's states, [num_states(), mixture_size()] each, H^T as S^T.
template <class A>
struct StateGradients {
  TensorView<const A, 2> behind;  ///< of those behind some blocks; not read behind the last block
  TensorView<A, 2> before;        ///< of those before them; not written before block 0
};

/// \cond INTERNAL
// Rejects, at compile time, a variant whose stages need more than blocks of their own.
template <AttentionVariant V>
struct RequireStages {
  static_assert(
      !requires(const V& v) { v.offsets; },
      "mhla: the blocks of Stages are those of every batch item: give them the attention "
      "that was packed");
  static_assert(!factors_mixing<V> || std::is_same_v<typename V::MixingType, RecurrentMixing>,
                "mhla: Stages have rows of the mixing matrix, or of RecurrentMixing's parameters: "
                "for another "
                "structured mixing use DenseMixing, with the matrix that mhla::expand makes");
  static_assert(!mixes_products<V>,
                "mhla: MixedProduct ties a token to the same offset of every other block, which a "
                "stage does not have: use MixedKeySum or Unnormalized for Stages");
};
/// \endcond

/// The stages of attention over sequences of one shape. T is the storage type of the tensors; mix,
/// its gradient and all sums are in the accumulator type. Any number of threads may use one object;
/// a call allocates nothing and has the same bits for any executor.
///
/// Every call throws ShapeError if views or blocks do not fit, or if a result shares memory with
/// anything, WorkspaceError if `workspace` is smaller than workspace_size says or shares memory;
/// nothing is written then.
template <AttentionVariant V, StorageScalar T>
class Stages : RequireStages<V> {
  using A = Accumulator<T>;
  using L = cpu::LoweredOf<V>;
  static constexpr bool masked = requires(const V& v) { v.masks; };
  static constexpr bool recurs = factors_mixing<V>;

 public:
  /// `shape` is that of the whole sequence. What the variant borrows must outlive this.
  /// \throws ShapeError if variant and shape do not fit.
  Stages(const V& attention, const Shape& shape)
      : attention_(attention), problem_(checked_problem(attention, shape)) {
    static_assert(!masked,
                  "mhla: the masks of Stages are those of a stage's tokens: give Stages the "
                  "attention that was padded, and masks to padded()");
  }

  /// The stages of a padded batch on blocks whose tokens `masks` has. As in a whole pass, of which
  /// they have the bits, tokens that a mask takes away leave nothing and have y and gradients 0.
  /// Under Causal and BlockCausal, queries and keys have one mask.
  auto padded(const StageMasks& masks) const requires(!is_batch_layout<V>) {
    return Stages<Padded<V>, T>(Padded<V>(attention_, masks.tokens), problem_,
                                {masks.query_blocks, masks.key_blocks});
  }
  /// Raises used[item], at first 0, to the blocks of the sequence up to the last of `queries` with
  /// a token that `mask` [batch, tokens of the blocks] keeps: over all blocks, what StageMasks
  /// takes.
  /// \throws ShapeError if blocks, mask or `used` [batch] do not fit.
  void count_used_queries(const BlockRange& queries, const TensorView<const std::uint8_t, 2>& mask,
                          Span<Index> used) const {
    count_used({"mask", "used", problem_.query_grid}, queries, mask, used);
  }
  /// The same of key blocks.
  void count_used_keys(const BlockRange& keys, const TensorView<const std::uint8_t, 2>& mask,
                       Span<Index> used) const {
    count_used({"mask", "used", problem_.key_grid}, keys, mask, used);
  }

  /// All query blocks.
  BlockRange query_blocks() const { return problem_.queries; }
  /// All key blocks.
  BlockRange key_blocks() const { return problem_.keys; }
  /// Tokens of q, dy, y and dq for some blocks. \throws ShapeError if there are no such blocks.
  Index query_tokens(const BlockRange& queries) const {
    require_blocks("queries", queries, problem_.query_blocks);
    return problem_.query_grid.num_tokens(queries);
  }
  /// Tokens of k, v, dk and dv for some blocks. \throws ShapeError if there are no such blocks.
  Index key_tokens(const BlockRange& keys) const {
    require_blocks("keys", keys, problem_.key_blocks);
    return problem_.key_grid.num_tokens(keys);
  }

  /// Elements that a key block's sums have: for every item and kv head S [feature_dim, value_dim],
  /// in gradients S^T, and, if the variant has a normalizer, z [feature_dim].
  Index summary_size() const { return checked_mul(units(), sums_size()); }
  /// Elements that a query block's dS~^T and dz~ have, for every item and kv head, and for every
  /// query head if mix has a matrix for each.
  Index mixture_size() const { return checked_mul(summary_size(), extents().matrices); }
  /// States of RecurrentMixing; otherwise 0.
  Index num_states() const {
    if constexpr (recurs) return attention_.mixing.states;
    return 0;
  }
  /// Rows of mix that stages on some query blocks take: `rows_of(mix, mix_rows(queries))`. Of
  /// RecurrentMixing the blocks', and the next if there is one, of which `advance` reads what
  /// enters the states; or the single row for all.
  /// \throws ShapeError if there are no such blocks.
  BlockRange mix_rows(const BlockRange& queries) const {
    require_blocks("queries", queries, problem_.query_blocks);
    if (!recurs) return queries;
    if (problem_.shape.mix_query_blocks == 1) return {0, 1};
    return {queries.first, queries.count + Index{queries.end() < problem_.query_blocks}};
  }
  /// Elements that den and its gradient have for the tokens of a query block, which its own keys
  /// need under Causal with a normalizer; otherwise 0.
  Index denominator_size() const {
    if (!cpu::keeps_denominators<L>) return 0;
    return checked_mul(checked_mul(problem_.shape.batch, problem_.shape.heads),
                       checked_mul(Index{2}, extents().block_tokens));
  }

  /// Bytes of workspace of a stage on these blocks: those it is named for, and for mix_gradient
  /// query blocks and key blocks. Exact; 0 of a stage that the variant does not have.
  /// \throws ShapeError if there are no such blocks.
  template <Executor E>
  Index workspace_size(Stage stage, const E& executor, const BlockRange& blocks,
                       const BlockRange& keys = {}) const {
    switch (stage) {
      case Stage::summarize:
        return bytes<Stage::summarize>(executor, blocks, blocks);
      case Stage::read_out:
        return bytes<Stage::read_out>(executor, blocks, {});
      case Stage::read_out_gradient:
        return bytes<Stage::read_out_gradient>(executor, blocks, {});
      case Stage::mix_gradient:
        if constexpr (!recurs) return bytes<Stage::mix_gradient>(executor, blocks, keys);
        break;
      case Stage::advance:
        if constexpr (recurs) return bytes<Stage::advance>(executor, blocks, {});
        break;
      case Stage::advance_gradient:
        if constexpr (recurs) return bytes<Stage::advance_gradient>(executor, blocks, {});
        break;
      case Stage::summarize_gradient:
        return bytes<Stage::summarize_gradient>(executor, blocks, blocks);
    }
    return 0;
  }

  /// S and z of key blocks: k [batch, kv_heads, tokens, key_dim], v [.., value_dim], summaries
  /// [blocks, summary_size()].
  template <Executor E>
  void summarize(const E& executor, const BlockRange& keys, const TensorView<const T, 4>& k,
                 const TensorView<const T, 4>& v, const TensorView<A, 2>& summaries,
                 WorkspaceView workspace) const {
    require_keys(keys, k, v);
    require_rows("summaries", summaries, keys.count, summary_size());
    Footprint footprint;
    footprint.writes(summaries, "summaries");
    require_apart(footprint, attention_, OperandViews<T>{{}, k, v, {}}, workspace, {});
    run<Stage::summarize>(executor, keys, keys, workspace, [&](const auto& plan) {
      const cpu::Operands<L, T> operands{cpu::lower(attention_), plan, {}, k, v, {}};
      cpu::run_units(plan, units(), executor,
                     [&](Index at, const cpu::UnitMemory<A>& memory, const ExecutorRef& loop) {
                       summarize_unit(operands,
                                      unit_at(plan, Stage::summarize, at, memory, summaries), loop);
                     });
    });
  }

  /// RecurrentMixing: H behind some blocks, [num_states(), mixture_size()], from H before them and
  /// their S. mix [heads, mix_rows(), columns]. The blocks begin and end at multiples of 16; there
  /// may be none of them, but there are some behind.
  template <Executor E>
  void advance(const E& executor, const BlockRange& blocks, const TensorView<const A, 3>& mix,
               const Sums<A>& sums, const TensorView<A, 2>& behind,
               WorkspaceView workspace) const requires recurs {
    require_mix("mix", mix, blocks);
    require_sums(blocks, sums);
    require_states("behind", behind);
    if (blocks.end() == problem_.query_blocks)
      throw ShapeError("mhla: blocks: behind [", blocks.first, ", ", blocks.end(),
                       ") there are no blocks that take up states");
    Footprint footprint;
    footprint.writes(behind, "behind");
    footprint.reads(sums.summaries, "summaries");
    if (blocks.first > 0) footprint.reads(sums.states, "states");
    require_apart(footprint, attention_, OperandViews<T>{{}, {}, {}, mix}, workspace, {});
    run<Stage::advance>(executor, blocks, {}, workspace, [&](auto& plan) {
      if (blocks.count == 0) return pass_on(blocks.first > 0, sums.states, behind);
      plan.pack_mixing(mix);
      cpu::run_units(plan, units(), executor,
                     [&](Index at, const cpu::UnitMemory<A>& memory, const ExecutorRef& loop) {
                       const cpu::Unit<A> unit = unit_of(plan, Stage::advance, at, memory, sums);
                       cpu::advance_unit(plan, unit,
                                         rows_for(plan, behind, at, cpu::Orientation::straight),
                                         loop);
                     });
    });
  }

  /// y [batch, heads, tokens, value_dim] of query blocks. x.q has their tokens, x.mix their rows,
  /// [heads, mix_rows(), all key blocks]; x.k and x.v, the same blocks' keys, are used under Causal
  /// alone. Of all key blocks the summaries, under Causal and BlockCausal those that the queries
  /// see at least; by RecurrentMixing the same blocks', which begin and end at multiples of 16, and
  /// states.
  template <Executor E>
  void read_out(const E& executor, const BlockRange& queries, const OperandViews<T>& x,
                const std::type_identity_t<Sums<A>>& sums, const TensorView<T, 4>& y,
                WorkspaceView workspace) const {
    require_queries(queries, x, sums);
    require_query_tensor("y", y, queries, problem_.shape.value_dim);
    Footprint footprint;
    footprint.writes(y, "y");
    footprint.reads(sums.summaries, "summaries");
    footprint.reads(sums.states, "states");
    require_apart(footprint, attention_, used(x), workspace, {});
    run<Stage::read_out>(executor, queries, {}, workspace, [&](auto& plan) {
      if (recurs && queries.count == 0) return;
      plan.pack_mixing(x.mix);
      const cpu::Operands<L, T> operands{cpu::lower(attention_), plan, x.q, x.k, x.v, x.mix};
      cpu::run_units(plan, units(), executor,
                     [&](Index at, const cpu::UnitMemory<A>& memory, const ExecutorRef& loop) {
                       read_out_unit(operands, unit_of(plan, Stage::read_out, at, memory, sums), y,
                                     loop);
                     });
      if constexpr (masked) cpu::clear_masked(attention_.masks.query, y);
    });
  }

  /// dq and rows of dmix of query blocks, if they are wanted, and what these leave for keys.
  /// Operands as in read_out, dy as y, dmix as x.mix: its diagonal, under Causal, is left to
  /// summarize_gradient, by RecurrentMixing all of it to advance_gradient. Other gradients are not
  /// touched.
  template <Executor E>
  void read_out_gradient(const E& executor, const BlockRange& queries, const OperandViews<T>& x,
                         const std::type_identity_t<Sums<A>>& sums,
                         const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                         Update update, const QueryRows<A>& left, WorkspaceView workspace) const {
    require_queries(queries, x, sums);
    require_query_tensor("dy", dy, queries, problem_.shape.value_dim);
    const auto& dq = gradients.query;
    const GradientView<A, 3> dmix = recurs ? GradientView<A, 3>(skip) : gradients.mix;
    Footprint footprint;
    if (dq.wanted) {
      require_query_tensor("dq", dq.view, queries, problem_.shape.key_dim);
      footprint.writes(dq.view, "dq");
    }
    if (dmix.wanted) {
      require_mix("dmix", dmix.view, queries);
      footprint.writes(dmix.view, "dmix");
    }
    require_rows("mixtures", left.mixtures, queries.count, mixture_size());
    footprint.writes(left.mixtures, "mixtures");
    if (cpu::keeps_denominators<L>) {
      require_rows("denominators", left.denominators, queries.count, denominator_size());
      footprint.writes(left.denominators, "denominators");
    }
    footprint.reads(sums.summaries, "summaries");
    footprint.reads(sums.states, "states");
    footprint.reads(dy, "dy");
    require_apart(footprint, attention_, used(x), workspace, {});
    cpu::BackwardRequest<L, T> request{dy, {dq, {}, {}, dmix}, update};
    request.gradients.key.wanted = request.gradients.value.wanted = true;  // by later stages
    run<Stage::read_out_gradient>(executor, queries, {}, workspace, [&](auto& backward) {
      if (recurs && queries.count == 0) return;
      auto& plan = backward.plan;
      plan.pack_mixing(x.mix);
      const cpu::Operands<L, T> operands{cpu::lower(attention_), plan, x.q, x.k, x.v, x.mix};
      cpu::run_backward_units(
          request, backward, executor,
          [&](Index item, Index kv_head, const cpu::UnitMemory<A>& memory, A* grad_mixing,
              const ExecutorRef& loop) {
            const Index at = item * problem_.shape.kv_heads + kv_head;
            const cpu::Unit<A> unit =
                transposed_unit_of(plan, Stage::read_out_gradient, at, memory, sums, loop);
            const auto mixtures = rows_for(plan, left.mixtures, at, cpu::Orientation::transposed);
            const auto leave = [&](Index matrix) {
              cpu::copy_sums(mixed_gradients(plan, unit, matrix).row_range(0, unit.queries.blocks),
                             mixtures(matrix));
            };
            read_out_unit_gradient(operands, request, unit, loop, leave);
            if constexpr (!recurs) {
              if (request.mixing()) mix_unit_matrix_gradient(operands, unit, grad_mixing, loop);
              for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix) leave(matrix);
            }
            if constexpr (cpu::keeps_denominators<L>)
              cpu::leave_denominators(plan, unit, at, left.denominators);
          });
      cpu::write_mixing_gradient(operands, request, backward, executor);
      if constexpr (masked)
        if (update == Update::overwrite) cpu::clear_masked(attention_.masks.query, dq.view);
    });
    if (problem_.shape.empty() && update == Update::overwrite) {
      cpu::clear(dq);
      cpu::clear(dmix);
    }
  }

  /// RecurrentMixing: dS and dz [blocks, summary_size()] and dmix of blocks, and dH before them,
  /// from mixtures [blocks, mixture_size()], which read_out_gradient left, and dH behind them.
  /// Operands as in advance; the blocks may be the last.
  ///
  /// dmix as mix. A block's weights enter states at the row of the next: of its first row this
  /// writes m_ii and a, of the last, the next block's, b and g, and of the others all, so that each
  /// entry is written for one range, and no other touches it. Under Causal it leaves m_ii to
  /// summarize_gradient, with 0 there if it overwrites. Rows behind the last block's are not
  /// touched. A single row for all gets the sum over these blocks; sums of several calls differ
  /// from the whole pass's in rounding.
  template <Executor E>
  void advance_gradient(const E& executor, const BlockRange& blocks,
                        const TensorView<const A, 3>& mix, const Sums<A>& sums,
                        const TensorView<const A, 2>& mixtures, const StateGradients<A>& states,
                        const TensorView<A, 2>& summary_gradients,
                        const std::type_identity_t<GradientView<A, 3>>& dmix, Update update,
                        WorkspaceView workspace) const requires recurs {
    require_mix("mix", mix, blocks);
    require_sums(blocks, sums);
    require_rows("mixtures", mixtures, blocks.count, mixture_size());
    require_rows("summary_gradients", summary_gradients, blocks.count, summary_size());
    const bool begun = blocks.first > 0;
    const bool ends = blocks.end() == problem_.query_blocks;
    Footprint footprint;
    footprint.writes(summary_gradients, "summary_gradients");
    if (begun) {
      require_states("before", states.before);
      footprint.writes(states.before, "before");
    }
    if (dmix.wanted) {
      require_mix("dmix", dmix.view, blocks);
      footprint.writes(dmix.view, "dmix");
    }
    footprint.reads(sums.summaries, "summaries");
    if (begun) footprint.reads(sums.states, "states");
    footprint.reads(mixtures, "mixtures");
    if (!ends) {
      require_states("behind", states.behind);
      footprint.reads(states.behind, "behind");
    }
    require_apart(footprint, attention_, OperandViews<T>{{}, {}, {}, mix}, workspace, {});
    run<Stage::advance_gradient>(executor, blocks, {}, workspace, [&](auto& backward) {
      if (blocks.count == 0) {
        if (begun) pass_on(!ends, states.behind, states.before);
        return;
      }
      auto& plan = backward.plan;
      plan.pack_mixing(mix);
      const cpu::Operands<L, T> operands{cpu::lower(attention_), plan, {}, {}, {}, mix};
      const cpu::BackwardRequest<L, T> request{{}, {{}, {}, {}, dmix}, Update::accumulate};
      cpu::run_backward_units(
          request, backward, executor,
          [&](Index item, Index kv_head, const cpu::UnitMemory<A>& memory, A* grad_mixing,
              const ExecutorRef& loop) {
            const Index at = item * problem_.shape.kv_heads + kv_head;
            const auto rows = [&](const TensorView<A, 2>& of) {
              return rows_for(plan, of, at, cpu::Orientation::transposed);
            };
            cpu::advance_unit_gradient(
                plan, transposed_unit_of(plan, Stage::advance_gradient, at, memory, sums, loop),
                rows(cpu::read_only(mixtures)), rows(cpu::read_only(states.behind)),
                rows(begun ? states.before : TensorView<A, 2>{}),
                sums_at(summary_gradients, at, cpu::Orientation::transposed),
                request.mixing() ? grad_mixing : nullptr, loop);
          });
      if (update == Update::overwrite) clear_parameters(dmix, blocks);
      cpu::write_mixing_gradient(operands, request, backward, executor);
    });
    if (update == Update::overwrite && (blocks.count == 0 || problem_.shape.empty()))
      clear_parameters(dmix, blocks);
  }

  /// dS and dz [key blocks, summary_size()] of key blocks, summed over query blocks: mix
  /// [heads, query blocks, key blocks] has the entries of both, mixtures [query blocks,
  /// mixture_size()] is what read_out_gradient left.
  template <Executor E>
  void mix_gradient(const E& executor, const BlockRange& queries, const BlockRange& keys,
                    const TensorView<const A, 3>& mix, const TensorView<const A, 2>& mixtures,
                    const TensorView<A, 2>& summary_gradients, WorkspaceView workspace) const
      requires(!recurs) {
    require_blocks("queries", queries, problem_.query_blocks);
    require_blocks("keys", keys, problem_.key_blocks);
    require_matrix("mix", mix, queries.count, keys.count);
    require_rows("mixtures", mixtures, queries.count, mixture_size());
    require_rows("summary_gradients", summary_gradients, keys.count, summary_size());
    Footprint footprint;
    footprint.writes(summary_gradients, "summary_gradients");
    footprint.reads(mixtures, "mixtures");
    require_apart(footprint, attention_, OperandViews<T>{{}, {}, {}, mix}, workspace, {});
    run<Stage::mix_gradient>(executor, queries, keys, workspace, [&](auto& plan) {
      plan.pack_mixing(mix);
      cpu::run_units(plan, units(), executor,
                     [&](Index at, const cpu::UnitMemory<A>& memory, const ExecutorRef& loop) {
                       const cpu::Unit<A> unit =
                           cpu::stage_unit(plan, Stage::mix_gradient, at, used_, memory,
                                           cpu::SummaryRows<A>{}, cpu::Orientation::transposed);
                       cpu::mix_stage_gradient<L>(
                           plan, unit, sums_at(summary_gradients, at, cpu::Orientation::transposed),
                           [&](Index matrix) {
                             return sums_at(mixtures, at * plan.extents.matrices + matrix,
                                            cpu::Orientation::transposed);
                           },
                           loop);
                     });
    });
  }

  /// dk and dv of key blocks, if they are wanted, from dS and dz. x.k and x.v have the tokens of
  /// the blocks. The rest is used under Causal alone: x.q, dy and `denominators` of the same
  /// blocks' queries, x.mix their rows as in read_out, and dmix, to whose diagonal this adds: it
  /// holds what read_out_gradient, or advance_gradient, wrote. Other gradients are not touched.
  template <Executor E>
  void summarize_gradient(const E& executor, const BlockRange& keys, const OperandViews<T>& x,
                          const TensorView<const A, 2>& summary_gradients,
                          const TensorView<const T, 4>& dy,
                          const TensorView<const A, 2>& denominators,
                          const GradientViews<T>& gradients, Update update,
                          WorkspaceView workspace) const {
    require_keys(keys, x.k, x.v);
    require_rows("summary_gradients", summary_gradients, keys.count, summary_size());
    const auto& dk = gradients.key;
    const auto& dv = gradients.value;
    [[maybe_unused]] const auto& dmix = gradients.mix;
    Footprint footprint;
    if (dk.wanted) {
      require_key_tensor("dk", dk.view, keys, problem_.shape.key_dim);
      footprint.writes(dk.view, "dk");
    }
    if (dv.wanted) {
      require_key_tensor("dv", dv.view, keys, problem_.shape.value_dim);
      footprint.writes(dv.view, "dv");
    }
    OperandViews<T> read{{}, x.k, x.v, {}};
    cpu::BackwardRequest<L, T> request{{}, {{}, dk, dv, {}}, update};
    if constexpr (masks_own_block<L>) {
      require_query_tensor("q", x.q, keys, problem_.shape.key_dim);
      require_query_tensor("dy", dy, keys, problem_.shape.value_dim);
      require_mix("mix", x.mix, keys);
      if (cpu::keeps_denominators<L>)
        require_rows("denominators", denominators, keys.count, denominator_size());
      const auto diagonal = [&](const auto& matrix) {
        return recurs ? matrix : columns_of(matrix, keys);
      };
      read = {x.q, x.k, x.v, diagonal(x.mix)};
      request.dy = dy;
      if (dmix.wanted) {
        require_mix("dmix", dmix.view, keys);
        request.gradients.mix = diagonal(dmix.view);
        footprint.writes(dmix.view, "dmix");
      }
      footprint.reads(dy, "dy");
      footprint.reads(denominators, "denominators");
    }
    footprint.reads(summary_gradients, "summary_gradients");
    require_apart(footprint, attention_, read, workspace, {});
    run<Stage::summarize_gradient>(executor, keys, keys, workspace, [&](auto& backward) {
      auto& plan = backward.plan;
      plan.pack_mixing(read.mix);
      const cpu::Operands<L, T> operands{
          cpu::lower(attention_), plan, read.q, read.k, read.v, read.mix};
      // Only the diagonal of dmix comes from here; what it is added to stays.
      cpu::BackwardRequest<L, T> to_mix = request;
      to_mix.update = Update::accumulate;
      cpu::run_backward_units(
          request, backward, executor,
          [&](Index item, Index kv_head, const cpu::UnitMemory<A>& memory, A* grad_mixing,
              const ExecutorRef& loop) {
            const Index at = item * problem_.shape.kv_heads + kv_head;
            const cpu::Unit<A> unit =
                cpu::stage_unit(plan, Stage::summarize_gradient, at, used_, memory,
                                cpu::SummaryRows<A>{}, cpu::Orientation::transposed);
            if constexpr (cpu::keeps_denominators<L>)
              cpu::take_up_denominators(plan, unit, at, denominators);
            cpu::summarize_stage_gradient(
                operands, request, unit,
                sums_at(cpu::read_only(summary_gradients), at, cpu::Orientation::transposed),
                grad_mixing, loop);
          });
      if constexpr (!recurs) {
        cpu::write_mixing_gradient(operands, to_mix, backward, executor);
      } else if (request.mixing()) {
        cpu::write_own_gradient(backward, dmix.view, executor);
      }
      if constexpr (masked) {
        if (update == Update::accumulate) return;
        cpu::clear_masked(attention_.masks.key, dk.view);
        cpu::clear_masked(attention_.masks.key, dv.view);
      }
    });
    if (problem_.shape.empty() && update == Update::overwrite) {
      cpu::clear(dk);
      cpu::clear(dv);
    }
  }

 private:
  template <AttentionVariant, StorageScalar>
  friend class Stages;

  // Of a padded batch.
  Stages(const V& attention, const Problem& problem, const cpu::UsedBlocks& used)
      : attention_(attention), problem_(problem), used_(used) {}

  cpu::Extents extents() const { return cpu::Extents(problem_); }
  Index units() const { return checked_mul(problem_.shape.batch, problem_.shape.kv_heads); }
  Index sums_size() const {
    const Index features = normalizes<L> ? problem_.feature_dim : 0;
    return checked_add(extents().summary_size(), features);
  }

  // Sums `at` in rows that have those of many units.
  template <class Sum>
  cpu::SummaryRows<Sum> sums_at(const TensorView<Sum, 2>& rows, Index at,
                                cpu::Orientation orientation) const {
    return cpu::sums_in_rows<L>(extents(), rows, at * sums_size(), orientation);
  }
  cpu::Unit<A> unit_at(const cpu::Plan<L, A>& plan, Stage stage, Index at,
                       const cpu::UnitMemory<A>& memory, const TensorView<A, 2>& summaries) const {
    return cpu::stage_unit(plan, stage, at, used_, memory,
                           sums_at(summaries, at, cpu::Orientation::straight),
                           cpu::Orientation::straight);
  }

  // The same by RecurrentMixing, and with states.
  cpu::Unit<A> unit_of(const cpu::Plan<L, A>& plan, Stage stage, Index at,
                       const cpu::UnitMemory<A>& memory, const Sums<A>& sums) const {
    return with_states(plan, stage, at, sums,
                       unit_at(plan, stage, at, memory, cpu::read_only(sums.summaries)));
  }
  // The same with summaries of its own, transposed.
  cpu::Unit<A> transposed_unit_of(const cpu::Plan<L, A>& plan, Stage stage, Index at,
                                  const cpu::UnitMemory<A>& memory, const Sums<A>& sums,
                                  const ExecutorRef& loop) const {
    const cpu::Unit<A> unit =
        cpu::stage_unit(plan, stage, at, used_, memory,
                        cpu::summary_rows<L>(plan.extents, plan.problem.key_blocks,
                                             memory.summaries.data, cpu::Orientation::transposed),
                        cpu::Orientation::transposed);
    const auto& summaries = sums.summaries;
    take_up_summaries(unit, sums_at(summaries, at, cpu::Orientation::straight), loop);
    for (Index b = summaries.extent[0]; b < unit.keys.blocks; ++b)  // that are not seen
      clear(unit.summaries.summary(b), unit.summaries.key_sum(b));
    return with_states(plan, stage, at, sums, unit);
  }
  cpu::Unit<A> with_states(const cpu::Plan<L, A>& plan, Stage stage, Index at, const Sums<A>& sums,
                           const cpu::Unit<A>& unit) const {
    if constexpr (!recurs) return unit;
    cpu::SummaryRows<A> before;
    if (plan.problem.queries.first > 0)
      before = rows_for(plan, cpu::read_only(sums.states), at, cpu::Orientation::straight)(0);
    return cpu::with_states(plan, unit, before,
                            stage == Stage::advance || stage == Stage::advance_gradient);
  }
  // The rows of each of a unit's matrices.
  auto rows_for(const cpu::Plan<L, A>& plan, const TensorView<A, 2>& rows, Index at,
                cpu::Orientation orientation) const {
    return [this, rows, orientation, first = at * plan.extents.matrices](Index matrix) {
      return sums_at(rows, first + matrix, orientation);
    };
  }
  // States that no block changes.
  static void pass_on(bool any, const TensorView<const A, 2>& from, const TensorView<A, 2>& to) {
    for (Index i = 0; i < to.size(); ++i) to.element(i) = any ? from.element(i) : A(0);
  }
  // What advance_gradient writes of dmix.
  void clear_parameters(const GradientView<A, 3>& dmix, const BlockRange& blocks) const {
    if (!dmix.wanted) return;
    const auto& view = dmix.view;
    const bool shared = problem_.shape.mix_query_blocks == 1;
    for (Index h = 0; h < view.extent[0]; ++h)
      for (Index i = 0; i < view.extent[1]; ++i)
        for (Index c = 0; c < view.extent[2]; ++c)
          if (shared || (c <= num_states() ? i < blocks.count : i > 0 || blocks.first == 0))
            view(h, i, c) = A(0);
  }

  // The call that a stage is: which blocks have rows and columns of mix, which have tokens.
  template <Stage stage>
  Problem part(const BlockRange& queries, const BlockRange& keys) const {
    Problem problem = problem_;
    if constexpr (stage == Stage::summarize) {
      problem.queries = {};
      problem.keys = keys;
    } else if constexpr (stage == Stage::mix_gradient) {
      problem.queries = queries;
      problem.keys = keys;
    } else if constexpr (stage == Stage::summarize_gradient) {
      problem.queries = masks_own_block<L> ? keys : BlockRange{};
      problem.keys = keys;
    } else {
      problem.queries = queries;
      if constexpr (recurs) problem.keys = queries;
    }
    problem.query_blocks = problem.queries.count;
    problem.key_blocks = problem.keys.count;
    constexpr bool reads_out = stage == Stage::read_out || stage == Stage::read_out_gradient;
    constexpr bool mixes =
        stage == Stage::mix_gradient || stage == Stage::advance || stage == Stage::advance_gradient;
    if (mixes) problem.queries.count = 0;
    if (mixes || reads_out) problem.keys.count = 0;
    return problem;
  }
  template <Stage stage, class E>
  auto lay_out(Arena& arena, const E& executor, const Problem& problem) const {
    constexpr bool backward = stage == Stage::read_out_gradient ||
                              stage == Stage::summarize_gradient ||
                              stage == Stage::advance_gradient;
    if constexpr (backward) {
      return cpu::BackwardPlan<L, A>(arena, attention_, problem, executor, false, stage);
    } else {
      return cpu::Plan<L, A>(arena, attention_, problem, executor, units(), false, false, stage);
    }
  }
  template <Stage stage, class E>
  Index bytes(const E& executor, const BlockRange& queries, const BlockRange& keys) const {
    require_blocks("queries", queries,
                   stage == Stage::summarize || stage == Stage::summarize_gradient
                       ? problem_.key_blocks
                       : problem_.query_blocks);
    require_blocks("keys", keys, problem_.key_blocks);
    const Problem problem = part<stage>(queries, keys);
    require_chunks({problem.queries.first, problem.query_blocks});
    require_masks(problem);
    Arena arena;
    if (!problem_.shape.empty()) lay_out<stage>(arena, executor, problem);
    return arena.used();
  }
  // Calls body(plan) if there is anything to do.
  template <Stage stage, class E, class Body>
  void run(const E& executor, const BlockRange& queries, const BlockRange& keys,
           WorkspaceView workspace, const Body& body) const {
    require_workspace(workspace, bytes<stage>(executor, queries, keys), "mhla::Stages",
                      "Stages::workspace_size says how many a stage takes");
    if (problem_.shape.empty()) return;
    Arena arena(workspace);
    auto plan = lay_out<stage>(arena, executor, part<stage>(queries, keys));
    body(plan);
  }

  // x without what read_out does not use.
  static OperandViews<T> used(const OperandViews<T>& x) {
    if constexpr (masks_own_block<L>) return x;
    return {x.q, {}, {}, x.mix};
  }

  static constexpr Index chunk = RecurrentMixing::chunk;
  void require_chunks(const BlockRange& blocks) const {
    if (!recurs || blocks.count == 0) return;
    if (blocks.first % chunk != 0 ||
        (blocks.end() % chunk != 0 && blocks.end() != problem_.query_blocks))
      throw ShapeError("mhla: blocks: RecurrentMixing takes ", chunk, " blocks at a time: [",
                       blocks.first, ", ", blocks.end(), ") must begin at a multiple of ", chunk,
                       ", and end at one or with the sequence");
  }

  // A side of a padded batch: what its mask and its counts are called, and its grid.
  struct Side {
    const char* mask;
    const char* used;
    const Grid& grid;
  };
  // Calls visit(item, n) where blocks [0, n) of an item are those up to the last of `blocks` with a
  // token that `mask` keeps; 0: there is none.
  template <class X, class Visit>
  void for_each_used(const Side& side, const BlockRange& blocks,
                     const TensorView<const std::uint8_t, 2>& mask, Span<X> used,
                     const Visit& visit) const {
    const Index batch = problem_.shape.batch;
    TokenMasks::require_fit(mask, side.mask, batch, side.grid.num_tokens(blocks));
    require_extent(side.used, "batch", used.size, batch, "it counts the blocks of every item");
    for (Index item = 0; item < batch; ++item) {
      const Index last = cpu::block_table::Builder(1, nullptr).add(side.grid, blocks, mask, item);
      visit(item, last == 0 ? 0 : blocks.first + last);
    }
  }
  void count_used(const Side& side, const BlockRange& blocks,
                  const TensorView<const std::uint8_t, 2>& mask, Span<Index> used) const {
    require_blocks("blocks", blocks, side.grid.num_blocks());
    for_each_used(side, blocks, mask, used,
                  [&](Index item, Index n) { used[item] = std::max(used[item], n); });
  }
  // Throws unless the masks fit the blocks of which a stage has tokens.
  void require_masks([[maybe_unused]] const Problem& part) const {
    if constexpr (masked) {
      const auto require = [&](const Side& side, const BlockRange& blocks,
                               const TensorView<const std::uint8_t, 2>& mask,
                               Span<const Index> used) {
        const auto& of = blocks.count > 0 ? mask : TensorView<const std::uint8_t, 2>{};
        for_each_used(side, blocks, of, used, [&](Index item, Index n) {
          if (used[item] < n || used[item] > side.grid.num_blocks())
            throw ShapeError("mhla: ", side.used, "[", item, "] is ", used[item],
                             " but must be at least ", n, ", by the mask of blocks [", blocks.first,
                             ", ", blocks.end(), "), and at most ", side.grid.num_blocks());
        });
      };
      const TokenMasks& masks = attention_.masks;
      if (masks_own_block<V> && part.queries.count > 0) masks.require_one();
      require({"masks.query", "masks.query_blocks", part.query_grid}, part.queries, masks.query,
              used_.queries);
      require({"masks.key", "masks.key_blocks", part.key_grid}, part.keys, masks.key, used_.keys);
    }
  }

  static void require_blocks(const char* argument, const BlockRange& blocks, Index all) {
    if (blocks.first < 0 || blocks.count < 0 || blocks.first > all - blocks.count)
      throw ShapeError("mhla: ", argument, ": there are no blocks [", blocks.first, ", ",
                       blocks.first, " + ", blocks.count, "): the sequence has ", all);
  }
  template <class Tensor>
  void require_tokens(const char* argument, const Tensor& tensor, Index heads, Index tokens,
                      Index dim) const {
    require_extents(tensor, argument, problem_.shape.batch, heads, tokens, dim,
                    "a stage's tensors have the tokens of its blocks");
    require_aligned(tensor, argument);
  }
  template <class X>
  void require_query_tensor(const char* argument, const TensorView<X, 4>& tensor,
                            const BlockRange& queries, Index dim) const {
    require_tokens(argument, tensor, problem_.shape.heads, query_tokens(queries), dim);
  }
  template <class X>
  void require_key_tensor(const char* argument, const TensorView<X, 4>& tensor,
                          const BlockRange& keys, Index dim) const {
    require_tokens(argument, tensor, problem_.shape.kv_heads, key_tokens(keys), dim);
  }
  void require_keys(const BlockRange& keys, const TensorView<const T, 4>& k,
                    const TensorView<const T, 4>& v) const {
    require_key_tensor("k", k, keys, problem_.shape.key_dim);
    require_key_tensor("v", v, keys, problem_.shape.value_dim);
  }
  template <class X>
  void require_matrix(const char* argument, const TensorView<X, 3>& matrix, Index rows,
                      Index columns) const {
    constexpr const char* rule = "a stage's mix has the rows and columns of its blocks";
    require_extent(argument, "heads", matrix.extent[0], problem_.shape.mix_heads, rule);
    require_extent(argument, "query blocks", matrix.extent[1], rows, rule);
    require_extent(argument, "key blocks", matrix.extent[2], columns, rule);
    require_aligned(matrix, argument);
  }
  template <class X>
  void require_mix(const char* argument, const TensorView<X, 3>& mix,
                   const BlockRange& queries) const {
    require_matrix(argument, mix, mix_rows(queries).count, problem_.shape.mix_key_blocks);
  }
  template <class X>
  void require_rows(const char* argument, const TensorView<X, 2>& rows, Index blocks,
                    Index size) const {
    require_extent(argument, "blocks", rows.extent[0], blocks, "it has a row for each block");
    require_row(argument, rows, size);
  }
  template <class X>
  void require_row(const char* argument, const TensorView<X, 2>& rows, Index size) const {
    require_extent(argument, "elements", rows.extent[1], size, "a row has what a block leaves");
    if (rows.size() > 0 && size > 1)
      require_extent(argument, "elements' stride", rows.stride[1], 1, "a row is contiguous");
    require_aligned(rows, argument);
  }
  template <class X>
  void require_states(const char* argument, const TensorView<X, 2>& states) const {
    require_extent(argument, "states", states.extent[0], num_states(),
                   "it has a row for each state");
    require_row(argument, states, mixture_size());
  }
  void require_queries(const BlockRange& queries, const OperandViews<T>& x,
                       const Sums<A>& sums) const {
    require_query_tensor("q", x.q, queries, problem_.shape.key_dim);
    require_mix("mix", x.mix, queries);
    if (masks_own_block<L>) require_keys(queries, x.k, x.v);
    require_sums(queries, sums);
  }
  void require_sums(const BlockRange& queries, const Sums<A>& sums) const {
    const TensorView<const A, 2>& summaries = sums.summaries;
    if (recurs) {
      require_rows("summaries", summaries, queries.count, summary_size());
      if (queries.first > 0) require_states("states", sums.states);
      return;
    }
    const Index all = problem_.key_blocks;
    const Index seen =
        !sees_past_only<L> ? all : std::max(Index{0}, queries.end() - lag_of(sight_of<L>));
    if (summaries.extent[0] < seen || summaries.extent[0] > all)
      throw ShapeError("mhla: summaries: axis blocks is ", summaries.extent[0], " but must be ",
                       seen, " or more, which the queries see, and at most ", all);
    require_row("summaries", summaries, summary_size());
  }

  V attention_;
  Problem problem_;
  cpu::UsedBlocks used_;
};

/// \}

MHLA_NAMESPACE_END
