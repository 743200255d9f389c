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
/// Tensors, and masks of a padded batch (`padded`), have the tokens of the given blocks alone, or
/// of more (`hold`), in raster order; blocks of a packed batch are those of its sequences, end to
/// end (PackedStages); positions of a rotation are those of the whole sequence, with which neither
/// a stage's time nor its memory grows, but for sums and rows of mix that it is given. What passes
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
/// const mhla::OperandViews<float> x{q_view, k_view, v_view, rows};
/// stages.read_out(executor, own, x, {sums, before}, y_view, workspace);
///
/// stages.read_out_gradient(executor, own, x, {sums, before}, dy_view,
///                          {dq_view, mhla::skip, mhla::skip, mhla::skip}, mhla::Update::overwrite,
///                          {mixtures, dens}, workspace);
/// // Receive `dbehind`,
/// stages.advance_gradient(executor, own, rows, {sums, before}, mixtures, {dbehind, dbefore},
///                         dsums, drows, mhla::Update::overwrite, workspace);
/// // send `dbefore`.
/// stages.summarize_gradient(executor, own, x, dsums, dy_view, dens,
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
#include <mhla/cpu/pipeline.hpp>
#include <mhla/cpu/stage_states.hpp>
#include <mhla/cpu/stage_units.hpp>
#include <mhla/cpu/used_blocks.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/packed_stages.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/stage_blocks.hpp>
#include <mhla/policy/traits.hpp>
#include <mhla/policy/variant.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup stages
/// \{

/// The stages of attention over sequences of one shape. T is the storage type of the tensors; mix,
/// its gradient and all sums are in the accumulator type. Any number of threads may use one object;
/// a call allocates nothing and has the same bits for any executor.
///
/// Every call throws ShapeError if views or blocks do not fit, or if a result shares memory with
/// anything, WorkspaceError if `workspace` is smaller than workspace_size says or shares memory;
/// nothing is written then.
template <class V, class T = void>
class Stages : public StageBlocks<V, T> {
  using Blocks = StageBlocks<V, T>;
  using A = Accumulator<T>;
  using L = cpu::LoweredOf<V>;
  static constexpr std::false_type in_pairs{};  // stages round nothing
  using Blocks::attention_;
  using Blocks::keeps_denominators;
  using Blocks::masked;
  using Blocks::part_of;
  using Blocks::problem_;
  using Blocks::recurs;
  using Blocks::sums_size;
  using Blocks::units;

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
  static constexpr bool runs_on = Executor<E>;
  // Throws unless a call's stages can run on an executor and reach its memory.
  template <class E>
  static void require_device(const E&, const Footprint& memory) {
    memory.require_addresses();
  }
  /// \endcond

  /// The stages of a padded batch on blocks whose tokens `masks` has. As in a whole pass, of which
  /// they have the bits, tokens that a mask takes away leave nothing and have y and gradients 0.
  /// Under Causal and BlockCausal, queries and keys have one mask.
  auto padded(const StageMasks& masks) const requires(!is_batch_layout<V>) {
    Stages<Padded<V>, T> stages(problem_, Padded<V>(attention_, masks.tokens),
                                {masks.query_blocks, masks.key_blocks});
    stages.held_ = this->held_;
    return stages;
  }
  /// Raises used[item], at first 0, to the blocks of the sequence up to the last of `queries` with
  /// a token that `mask` [batch, tokens of the blocks] keeps: over all blocks, what StageMasks
  /// takes.
  /// \throws ShapeError if blocks, mask or `used` [batch] do not fit.
  void count_used_queries(const BlockRange& queries, const TensorView<const std::uint8_t, 2>& mask,
                          Span<Index> used) const {
    count_used(problem_.query_grid, queries, mask, used);
  }
  /// The same of key blocks.
  void count_used_keys(const BlockRange& keys, const TensorView<const std::uint8_t, 2>& mask,
                       Span<Index> used) const {
    count_used(problem_.key_grid, keys, mask, used);
  }

  /// Bytes of workspace of a stage that processes `blocks`; for mix_gradient these are query
  /// blocks, and `keys` its key blocks. No more than needed; 0 for a stage that the variant lacks.
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
    this->require_summarize(keys, k, v, summaries, workspace).require_addresses();
    run<Stage::summarize>(executor, keys, keys, workspace, [&](const auto& plan) {
      const cpu::Operands<L, T> operands{cpu::lower(attention_), plan, {}, k, v, {}};
      cpu::run_units(plan, units(), executor,
                     [&](Index at, const cpu::UnitMemory<A>& memory, const ExecutorRef& loop) {
                       summarize_unit(operands, unit_at(plan, at, memory, summaries), loop);
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
    this->require_advance(blocks, mix, sums, behind, workspace).require_addresses();
    run<Stage::advance>(executor, blocks, {}, workspace, [&](auto& plan) {
      if (blocks.count == 0)
        return pass_on(this->has_states_before(blocks.first), sums.states, behind);
      plan.pack_mixing(mix, in_pairs);
      cpu::run_units(plan, units(), executor,
                     [&](Index at, const cpu::UnitMemory<A>& memory, const ExecutorRef& loop) {
                       const cpu::Unit<A> unit = unit_of(plan, at, memory, sums);
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
    this->require_read_out(queries, x, sums, y, workspace).require_addresses();
    run<Stage::read_out>(executor, queries, {}, workspace, [&](auto& plan) {
      if (recurs && queries.count == 0) return;
      plan.pack_mixing(x.mix, in_pairs);
      const cpu::Operands<L, T> operands{cpu::lower(attention_), plan, x.q, x.k, x.v, x.mix};
      cpu::run_units(plan, units(), executor,
                     [&](Index at, const cpu::UnitMemory<A>& memory, const ExecutorRef& loop) {
                       read_out_unit(operands, unit_of(plan, at, memory, sums), y, loop);
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
                         QueryUpdate update, const QueryRows<A>& left,
                         WorkspaceView workspace) const {
    this->require_read_out_gradient(queries, x, sums, dy, gradients, left, workspace)
        .require_addresses();
    const auto& dq = gradients.query;
    const GradientView<A, 3> dmix = recurs ? GradientView<A, 3>(skip) : gradients.mix;
    cpu::BackwardRequest<L, T> request{dy, {dq, skip, skip, dmix}, update.query};
    request.gradients.key.wanted = request.gradients.value.wanted = true;  // by later stages
    run<Stage::read_out_gradient>(executor, queries, {}, workspace, [&](auto& backward) {
      if (recurs && queries.count == 0) return;
      auto& plan = backward.plan;
      plan.pack_mixing(x.mix, in_pairs);
      const cpu::Operands<L, T> operands{cpu::lower(attention_), plan, x.q, x.k, x.v, x.mix};
      cpu::run_backward_units(
          request, backward, executor,
          [&](Index item, Index kv_head, const cpu::UnitMemory<A>& memory, A* grad_mixing,
              const ExecutorRef& loop) {
            const Index at = item * problem_.shape.kv_heads + kv_head;
            const cpu::Unit<A> unit = transposed_unit_of(plan, at, memory, sums, loop);
            const auto mixtures = rows_for(plan, left.mixtures, at, cpu::Orientation::transposed);
            const auto hand_over = [&](Index matrix) {
              cpu::copy_sums(mixed_gradients(plan, unit, matrix).row_range(0, unit.queries.blocks),
                             mixtures(matrix));
            };
            read_out_unit_gradient(operands, request, unit, loop, hand_over);
            if constexpr (!recurs) {
              if (request.mixing()) mix_unit_matrix_gradient(operands, unit, grad_mixing, loop);
              for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix) hand_over(matrix);
            }
            if constexpr (keeps_denominators)
              cpu::leave_denominators(plan, unit, at, left.denominators);
          });
      request.update = update.mix;
      cpu::write_mixing_gradient(operands, request, backward, executor);
      if constexpr (masked)
        if (update.query == Update::overwrite) cpu::clear_masked(attention_.masks.query, dq.view);
    });
    if (problem_.shape.empty()) {
      if (update.query == Update::overwrite) cpu::set_zero(dq.view);
      if (update.mix == Update::overwrite) cpu::set_zero(dmix.view);
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
    this->require_advance_gradient(blocks, mix, sums, mixtures, states, summary_gradients, dmix,
                                   workspace)
        .require_addresses();
    const bool begun = this->has_states_before(blocks.first);
    run<Stage::advance_gradient>(executor, blocks, {}, workspace, [&](auto& backward) {
      if (blocks.count == 0) {
        if (begun) pass_on(true, states.behind, states.before);
        return;
      }
      auto& plan = backward.plan;
      plan.pack_mixing(mix, in_pairs);
      const cpu::Operands<L, T> operands{cpu::lower(attention_), plan, {}, {}, {}, mix};
      const cpu::BackwardRequest<L, T> request{{}, {skip, skip, skip, dmix}, Update::accumulate};
      cpu::run_backward_units(request, backward, executor,
                              [&](Index item, Index kv_head, const cpu::UnitMemory<A>& memory,
                                  A* grad_mixing, const ExecutorRef& loop) {
                                const Index at = item * problem_.shape.kv_heads + kv_head;
                                const auto rows = [&](const TensorView<A, 2>& of) {
                                  return rows_for(plan, of, at, cpu::Orientation::transposed);
                                };
                                cpu::advance_unit_gradient(
                                    plan, transposed_unit_of(plan, at, memory, sums, loop),
                                    rows(cpu::read_only(mixtures)),
                                    rows(cpu::read_only(states.behind)),
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
    this->require_mix_gradient(queries, keys, mix, mixtures, summary_gradients, workspace)
        .require_addresses();
    run<Stage::mix_gradient>(executor, queries, keys, workspace, [&](auto& plan) {
      plan.pack_mixing(mix, in_pairs);
      cpu::run_units(plan, units(), executor,
                     [&](Index at, const cpu::UnitMemory<A>& memory, const ExecutorRef& loop) {
                       const cpu::Unit<A> unit =
                           cpu::stage_unit(plan, at, used_, memory, cpu::SummaryRows<A>{},
                                           cpu::Orientation::transposed);
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
    this->require_summarize_gradient(keys, x, summary_gradients, dy, denominators, gradients,
                                     workspace)
        .require_addresses();
    const auto& dk = gradients.key;
    const auto& dv = gradients.value;
    const OperandViews<T> read = this->read_by_keys(keys, x);
    cpu::BackwardRequest<L, T> request{
        {}, {skip, dk, dv, this->own_entries(keys, gradients.mix)}, update};
    if constexpr (masks_own_block<V>) request.dy = dy;
    run<Stage::summarize_gradient>(executor, keys, keys, workspace, [&](auto& backward) {
      auto& plan = backward.plan;
      plan.pack_mixing(read.mix, in_pairs);
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
            const cpu::Unit<A> unit = cpu::stage_unit(
                plan, at, used_, memory, cpu::SummaryRows<A>{}, cpu::Orientation::transposed);
            if constexpr (keeps_denominators)
              cpu::take_up_denominators(plan, unit, at, denominators);
            cpu::summarize_stage_gradient(
                operands, request, unit,
                sums_at(cpu::read_only(summary_gradients), at, cpu::Orientation::transposed),
                grad_mixing, loop);
          });
      if constexpr (!recurs) {
        cpu::write_mixing_gradient(operands, to_mix, backward, executor);
      } else if (request.mixing()) {
        cpu::write_own_gradient(backward, request.gradients.mix.view, executor);
      }
      if constexpr (masked) {
        if (update == Update::accumulate) return;
        cpu::clear_masked(attention_.masks.key, dk.view);
        cpu::clear_masked(attention_.masks.key, dv.view);
      }
    });
    if (problem_.shape.empty() && update == Update::overwrite) {
      cpu::set_zero(dk.view);
      cpu::set_zero(dv.view);
    }
  }

 private:
  template <class, class>
  friend class Stages;
  template <class, class>
  friend class PackedStages;

  // Of a padded batch, or of a packed sequence.
  Stages(const Problem& problem, const V& attention, const cpu::UsedBlocks& used = {})
      : Blocks(problem, attention), used_(used) {}

  // What PackedStages ask of a backend, before anything is written but dmix.
  static void require_pitch(const char*, const TensorView<const A, 2>&) {}
  static void require_room(WorkspaceView workspace, Index bytes) {
    require_workspace(workspace, bytes, "mhla::Stages",
                      "Stages::workspace_size says how many a stage takes");
  }
  template <class E>
  static void clear_mix(const E&, const TensorView<A, 3>& dmix) {
    cpu::set_zero(dmix);
  }

  cpu::Extents extents() const { return cpu::Extents(problem_); }

  // Sums `at` in rows that have those of many units.
  template <class Sum>
  cpu::SummaryRows<Sum> sums_at(const TensorView<Sum, 2>& rows, Index at,
                                cpu::Orientation orientation) const {
    return cpu::sums_in_rows<L>(extents(), rows, at * sums_size(), orientation);
  }
  cpu::Unit<A> unit_at(const cpu::Plan<L, A>& plan, Index at, const cpu::UnitMemory<A>& memory,
                       const TensorView<A, 2>& summaries) const {
    return cpu::stage_unit(plan, at, used_, memory,
                           sums_at(summaries, at, cpu::Orientation::straight),
                           cpu::Orientation::straight);
  }

  // The same by RecurrentMixing, and with states.
  cpu::Unit<A> unit_of(const cpu::Plan<L, A>& plan, Index at, const cpu::UnitMemory<A>& memory,
                       const Sums<A>& sums) const {
    return with_states(plan, at, sums, unit_at(plan, at, memory, cpu::read_only(sums.summaries)));
  }
  // The same with summaries of its own, transposed.
  cpu::Unit<A> transposed_unit_of(const cpu::Plan<L, A>& plan, Index at,
                                  const cpu::UnitMemory<A>& memory, const Sums<A>& sums,
                                  const ExecutorRef& loop) const {
    const cpu::Unit<A> unit =
        cpu::stage_unit(plan, at, used_, memory,
                        cpu::summary_rows<L>(plan.extents, plan.problem.key_blocks,
                                             memory.summaries.data, cpu::Orientation::transposed),
                        cpu::Orientation::transposed);
    const auto& summaries = sums.summaries;
    take_up_summaries(unit, sums_at(summaries, at, cpu::Orientation::straight), loop);
    for (Index b = summaries.extent[0]; b < unit.keys.blocks; ++b)  // that are not seen
      set_zero(unit.summaries.summary(b), unit.summaries.key_sum(b));
    return with_states(plan, at, sums, unit);
  }
  cpu::Unit<A> with_states(const cpu::Plan<L, A>& plan, Index at, const Sums<A>& sums,
                           const cpu::Unit<A>& unit) const {
    if constexpr (!recurs) return unit;
    cpu::SummaryRows<A> before;
    if (plan.problem.queries.first > 0)
      before = rows_for(plan, cpu::read_only(sums.states), at, cpu::Orientation::straight)(0);
    return cpu::with_states(
        plan, unit, before,
        plan.problem.stage == Stage::advance || plan.problem.stage == Stage::advance_gradient);
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
          if (shared || (c <= this->num_states() ? i < blocks.count : i > 0 || blocks.first == 0))
            view(h, i, c) = A(0);
  }

  template <Stage stage, class E>
  auto lay_out(Arena& arena, const E& executor, const Problem& problem) const {
    constexpr bool backward = stage == Stage::read_out_gradient ||
                              stage == Stage::summarize_gradient ||
                              stage == Stage::advance_gradient;
    if constexpr (backward) {
      return cpu::BackwardPlan<L, A>(arena, attention_, problem, executor, in_pairs);
    } else {
      return cpu::Plan<L, A>(arena, attention_, problem, executor, units(), false, in_pairs);
    }
  }
  template <Stage stage, class E>
  Index bytes(const E& executor, const BlockRange& queries, const BlockRange& keys) const {
    const Problem problem = part_of(stage, queries, keys);
    require_masks(problem);
    Arena arena;
    if (!problem_.shape.empty()) lay_out<stage>(arena, executor, problem);
    return arena.used();
  }
  // Calls body(plan) if there is anything to do.
  template <Stage stage, class E, class Body>
  void run(const E& executor, const BlockRange& queries, const BlockRange& keys,
           WorkspaceView workspace, const Body& body) const {
    require_room(workspace, bytes<stage>(executor, queries, keys));
    if (problem_.shape.empty()) return;
    Arena arena(workspace);
    auto plan = lay_out<stage>(arena, executor, part_of(stage, queries, keys));
    body(plan);
  }

  void count_used(const Grid& grid, const BlockRange& blocks,
                  const TensorView<const std::uint8_t, 2>& mask, Span<Index> used) const {
    this->require_blocks("blocks", blocks, grid.num_blocks());
    cpu::count_used({"mask", "used", grid, blocks, blocks, mask}, problem_.shape.batch, used);
  }
  // Throws unless the masks fit the blocks of which a stage has tokens.
  void require_masks([[maybe_unused]] const Problem& part) const {
    if constexpr (masked) {
      const TokenMasks& masks = attention_.masks;
      if (masks_own_block<V> && part.queries.count > 0) masks.require_one();
      const auto of = [](const BlockRange& blocks, const TensorView<const std::uint8_t, 2>& mask) {
        return blocks.count > 0 ? mask : TensorView<const std::uint8_t, 2>{};
      };
      const Index batch = problem_.shape.batch;
      if (masks.query.data != nullptr || used_.queries.size > 0)
        cpu::require_used({"masks.query", "masks.query_blocks", part.query_grid, part.queries,
                           part.held_queries, of(part.queries, masks.query)},
                          batch, used_.queries);
      if (masks.key.data != nullptr || used_.keys.size > 0)
        cpu::require_used({"masks.key", "masks.key_blocks", part.key_grid, part.keys,
                           part.held_keys, of(part.keys, masks.key)},
                          batch, used_.keys);
    }
  }

  cpu::UsedBlocks used_;
};

/// \cond INTERNAL
template <class V, class T>
requires(!VariantOfTensors<V, T>) class Stages<V, T> : public NoVariantOfTensors<V, T> {
 public:
  using NoVariantOfTensors<V, T>::NoVariantOfTensors;
};
/// \endcond

/// The stages of a packed batch: see PackedStages.
template <AttentionVariant V, class Offset, StorageScalar T>
class Stages<Packed<V, Offset>, T> : public PackedStages<Stages<V, T>, Offset> {
 public:
  using PackedStages<Stages<V, T>, Offset>::PackedStages;
};

/// \}

MHLA_NAMESPACE_END
