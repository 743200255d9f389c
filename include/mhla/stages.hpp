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
#include <mhla/cpu/stage_units.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/traits.hpp>
#include <mhla/policy/variant.hpp>

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

/// \cond INTERNAL
// Rejects, at compile time, a variant whose stages need more than blocks of their own.
template <AttentionVariant V>
struct RequireStages {
  static_assert(
      !requires(const V& v) { v.offsets; },
      "mhla: the blocks of Stages are those of every batch item: give them the attention "
      "that was packed");
  static_assert(
      !factors_mixing<V>,
      "mhla: Stages have rows of the mixing matrix: use DenseMixing, with the matrix that "
      "mhla::expand makes");
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
  /// Elements that den and its gradient have for the tokens of a query block, which its own keys
  /// need under Causal with a normalizer; otherwise 0.
  Index denominator_size() const {
    if (!cpu::keeps_denominators<L>) return 0;
    return checked_mul(checked_mul(problem_.shape.batch, problem_.shape.heads),
                       checked_mul(Index{2}, extents().block_tokens));
  }

  /// Bytes of workspace of a stage on these blocks: those it is named for, and for mix_gradient
  /// query blocks and key blocks. Exact.
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
        return bytes<Stage::mix_gradient>(executor, blocks, keys);
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

  /// y [batch, heads, tokens, value_dim] of query blocks. x.q has their tokens, x.mix their rows,
  /// [heads, blocks, all key blocks]; x.k and x.v, the same blocks' keys, are used under Causal
  /// alone. summaries [all key blocks, summary_size()]: under Causal and BlockCausal those that the
  /// queries see are enough.
  template <Executor E>
  void read_out(const E& executor, const BlockRange& queries, const OperandViews<T>& x,
                const TensorView<const A, 2>& summaries, const TensorView<T, 4>& y,
                WorkspaceView workspace) const {
    require_queries(queries, x, summaries);
    require_query_tensor("y", y, queries, problem_.shape.value_dim);
    Footprint footprint;
    footprint.writes(y, "y");
    footprint.reads(summaries, "summaries");
    require_apart(footprint, attention_, used(x), workspace, {});
    run<Stage::read_out>(executor, queries, {}, workspace, [&](auto& plan) {
      plan.pack_mixing(x.mix);
      const cpu::Operands<L, T> operands{cpu::lower(attention_), plan, x.q, x.k, x.v, x.mix};
      cpu::run_units(plan, units(), executor,
                     [&](Index at, const cpu::UnitMemory<A>& memory, const ExecutorRef& loop) {
                       read_out_unit(
                           operands,
                           unit_at(plan, Stage::read_out, at, memory, cpu::read_only(summaries)), y,
                           loop);
                     });
      if constexpr (masked) cpu::clear_masked(attention_.masks.query, y);
    });
  }

  /// dq and rows of dmix of query blocks, if they are wanted, and what these leave for keys.
  /// Operands as in read_out, dy as y, dmix as x.mix: its diagonal, under Causal, is left to
  /// summarize_gradient. Other gradients are not touched.
  template <Executor E>
  void read_out_gradient(const E& executor, const BlockRange& queries, const OperandViews<T>& x,
                         const TensorView<const A, 2>& summaries, const TensorView<const T, 4>& dy,
                         const GradientViews<T>& gradients, Update update, const QueryRows<A>& left,
                         WorkspaceView workspace) const {
    require_queries(queries, x, summaries);
    require_query_tensor("dy", dy, queries, problem_.shape.value_dim);
    const auto& dq = gradients.query;
    const auto& dmix = gradients.mix;
    Footprint footprint;
    if (dq.wanted) {
      require_query_tensor("dq", dq.view, queries, problem_.shape.key_dim);
      footprint.writes(dq.view, "dq");
    }
    if (dmix.wanted) {
      require_matrix("dmix", dmix.view, queries.count, problem_.shape.mix_key_blocks);
      footprint.writes(dmix.view, "dmix");
    }
    require_rows("mixtures", left.mixtures, queries.count, mixture_size());
    footprint.writes(left.mixtures, "mixtures");
    if (cpu::keeps_denominators<L>) {
      require_rows("denominators", left.denominators, queries.count, denominator_size());
      footprint.writes(left.denominators, "denominators");
    }
    footprint.reads(summaries, "summaries");
    footprint.reads(dy, "dy");
    require_apart(footprint, attention_, used(x), workspace, {});
    cpu::BackwardRequest<L, T> request{dy, {dq, {}, {}, dmix}, update};
    request.gradients.key.wanted = request.gradients.value.wanted = true;  // by later stages
    run<Stage::read_out_gradient>(executor, queries, {}, workspace, [&](auto& backward) {
      auto& plan = backward.plan;
      plan.pack_mixing(x.mix);
      const cpu::Operands<L, T> operands{cpu::lower(attention_), plan, x.q, x.k, x.v, x.mix};
      cpu::run_backward_units(
          request, backward, executor,
          [&](Index item, Index kv_head, const cpu::UnitMemory<A>& memory, A* grad_mixing,
              const ExecutorRef& loop) {
            const Index at = item * problem_.shape.kv_heads + kv_head;
            const cpu::Unit<A> unit = cpu::stage_unit(
                plan, Stage::read_out_gradient, at, used_, memory,
                cpu::summary_rows<L>(plan.extents, plan.problem.key_blocks, memory.summaries.data,
                                     cpu::Orientation::transposed),
                cpu::Orientation::transposed);
            take_up_summaries(unit, sums_at(summaries, at, cpu::Orientation::straight), loop);
            for (Index b = summaries.extent[0]; b < unit.keys.blocks; ++b)  // that are not seen
              clear(unit.summaries.summary(b), unit.summaries.key_sum(b));
            read_out_unit_gradient(operands, request, unit, grad_mixing, loop);
            if (request.mixing()) mix_unit_matrix_gradient(operands, unit, grad_mixing, loop);
            for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix)
              cpu::copy_sums(mixed_gradients(plan, unit, matrix),
                             sums_at(left.mixtures, at * plan.extents.matrices + matrix,
                                     cpu::Orientation::transposed));
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

  /// dS and dz [key blocks, summary_size()] of key blocks, summed over query blocks: mix
  /// [heads, query blocks, key blocks] has the entries of both, mixtures [query blocks,
  /// mixture_size()] is what read_out_gradient left.
  template <Executor E>
  void mix_gradient(const E& executor, const BlockRange& queries, const BlockRange& keys,
                    const TensorView<const A, 3>& mix, const TensorView<const A, 2>& mixtures,
                    const TensorView<A, 2>& summary_gradients, WorkspaceView workspace) const {
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
  /// holds what read_out_gradient wrote. Other gradients are not touched.
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
      require_matrix("mix", x.mix, keys.count, problem_.shape.mix_key_blocks);
      if (cpu::keeps_denominators<L>)
        require_rows("denominators", denominators, keys.count, denominator_size());
      read = {x.q, x.k, x.v, columns_of(x.mix, keys)};
      request.dy = dy;
      if (dmix.wanted) {
        require_matrix("dmix", dmix.view, keys.count, problem_.shape.mix_key_blocks);
        request.gradients.mix = columns_of(dmix.view, keys);
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
          to_mix, backward, executor,
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
      cpu::write_mixing_gradient(operands, to_mix, backward, executor);
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
  static constexpr bool masked = requires(const V& v) { v.masks; };

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
    }
    problem.query_blocks = problem.queries.count;
    problem.key_blocks = problem.keys.count;
    if constexpr (stage == Stage::mix_gradient) problem.queries.count = problem.keys.count = 0;
    if constexpr (stage == Stage::read_out || stage == Stage::read_out_gradient) problem.keys = {};
    return problem;
  }
  template <Stage stage, class E>
  auto lay_out(Arena& arena, const E& executor, const Problem& problem) const {
    constexpr bool backward =
        stage == Stage::read_out_gradient || stage == Stage::summarize_gradient;
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
  void require_queries(const BlockRange& queries, const OperandViews<T>& x,
                       const TensorView<const A, 2>& summaries) const {
    require_query_tensor("q", x.q, queries, problem_.shape.key_dim);
    require_matrix("mix", x.mix, queries.count, problem_.shape.mix_key_blocks);
    if (masks_own_block<L>) require_keys(queries, x.k, x.v);
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
