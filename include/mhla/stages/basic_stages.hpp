// SPDX-License-Identifier: MIT
// The stages of any backend: a call is checked once, and cut into one for each packed sequence.
#pragma once

#include <mhla/core/executor.hpp>
#include <mhla/policy/fingerprint.hpp>
#include <mhla/stages/calls.hpp>

MHLA_NAMESPACE_BEGIN

/// The stages of attention over sequences of one shape, or over a packed batch, by a backend:
/// Stages on an Executor, CudaStages on a CudaDevice. T is the storage type of the tensors; mix,
/// dmix and all sums are in the accumulator type. Any number of threads may use one object; a call
/// allocates nothing and has the same bits for any executor.
///
/// Of a packed batch, tensors are [1, heads, tokens, dim]; mix and dmix are whole. Of summaries
/// that queries read, the first is the first of `key_blocks(queries)`, which are those of their
/// sequences alone; queries of mix_gradient are `query_blocks(keys)`, or those of them that see the
/// keys. y, dq, dk and dv have the bits of a whole pass; dmix, with Update::overwrite, is the sum
/// over the given blocks: it differs from a whole pass's in rounding. By RecurrentMixing, ranges
/// begin and end at multiples of 16 blocks of a sequence, or with it. States before and after them
/// belong to the sequence that the range cuts there, if it cuts one: then `block_in_sequence` is
/// not 0. Otherwise states after the blocks are written as 0, and no other state is read or
/// written. Offsets are borrowed and must not change after the constructor.
///
/// Every call throws ShapeError if views or blocks do not fit, or if a result shares memory with
/// anything, WorkspaceError if `workspace` is smaller than workspace_size says or shares memory;
/// nothing is written then.
/// \ingroup stages
template <class V, class T, class Backend>
class BasicStages : public Backend::template Blocks<V, T> {
  using Blocks = typename Backend::template Blocks<V, T>;
  using A = Accumulator<T>;
  using Holds = stages::Holds;
  using Blocks::attention_;
  using Blocks::problem_;

 public:
  using Blocks::Blocks;
  /// \cond INTERNAL
  using Blocks::packs;
  using Blocks::recurs;
  using Blocks::sees_own;
  // What is done to tensors and sums besides stages.
  using Kernels = typename Backend::template Kernels<typename Blocks::Sequence, T>;
  template <class E>
  static constexpr bool runs_on = RunsOn<E, Backend>;
  static constexpr Borrowed compared = Backend::compared;  // by ranks, of what the variant borrows
  // Throws unless a call's stages can run on an executor and reach its memory.
  static void require_device(const auto& executor, const Footprint& memory) {
    Backend::require_device(executor);
    Kernels::require_memory(memory);
  }
  /// \endcond

  /// The stages of a padded batch on blocks whose tokens `masks` has. As in a whole pass, of which
  /// they have the bits, tokens that a mask takes away leave nothing and have y and gradients 0.
  /// Under Causal and BlockCausal, queries and keys have one mask. (CudaStages ignore the counts of
  /// blocks in `masks`.)
  auto padded(const StageMasks& masks) const requires(!is_batch_layout<V>) {
    BasicStages<Padded<V>, T, Backend> stages(problem_, Padded<V>(attention_, masks.tokens));
    stages.held_queries_ = this->held_queries_;
    stages.held_keys_ = this->held_keys_;
    stages.masks_ = masks;
    return stages;
  }

  /// These stages with Precision::exact.
  BasicStages exact() const {
    BasicStages stages = *this;
    stages.attention_.precision = Precision::exact;
    return stages;
  }
  /// \cond INTERNAL
  // Whether stages of a forward pass round features on machines that multiply bfloat16.
  bool may_round() const {
    return Backend::template rounds<V, T> && attention_.precision == Precision::fast;
  }
  /// \endcond

  /// Bytes of workspace of a stage that processes `blocks`; for mix_gradient these are query
  /// blocks, and `keys` its key blocks. No more than needed; 0 for a stage that the variant lacks.
  /// \throws ShapeError if there are no such blocks.
  Index workspace_size(Stage stage, const RunsOn<Backend> auto& executor, const BlockRange& blocks,
                       const BlockRange& keys = {}) const {
    const bool mixes = stage == Stage::mix_gradient;
    if (mixes ? recurs : !recurs && (stage == Stage::advance || stage == Stage::advance_gradient))
      return 0;
    this->require_blocks_of(stage, blocks, keys);
    if constexpr (!packs) {
      return Run(this->part_of(stage, blocks, keys), executor).workspace_size();
    } else {
      Index bytes = 0;
      for_each_sequence(mixes ? keys : blocks, {}, [&](const SequencePart& of, const auto& stages) {
        bytes = (std::max)(bytes, stages.workspace_size(stage, executor, of.of(blocks), of.part));
      });
      return bytes;
    }
  }

  /// S and z of key blocks: k [batch, kv_heads, tokens, key_dim], v [.., value_dim], summaries
  /// [blocks, summary_size()].
  void summarize(const RunsOn<Backend> auto& executor, const BlockRange& keys,
                 const TensorView<const T, 4>& k, const TensorView<const T, 4>& v,
                 const TensorView<A, 2>& summaries, WorkspaceView workspace) const {
    run(executor, stages::Summarize<T>{{keys}, {{}, k, v, {}}, summaries}, workspace);
  }

  /// y [batch, heads, tokens, value_dim] of query blocks. x.q has their tokens, x.mix their rows,
  /// [heads, mix_rows(), all key blocks]; x.k and x.v, the same blocks' keys, are used under Causal
  /// alone. Of all key blocks the summaries, under Causal and BlockCausal those that the queries
  /// see at least; by RecurrentMixing the same blocks', which begin and end at multiples of 16, and
  /// states.
  void read_out(const RunsOn<Backend> auto& executor, const BlockRange& queries,
                const OperandViews<T>& x, const std::type_identity_t<Sums<A>>& sums,
                const TensorView<T, 4>& y, WorkspaceView workspace) const {
    run(executor, stages::ReadOut<T>{{queries}, used(x), sums, y}, workspace);
  }

  /// dq and rows of dmix of query blocks, if they are wanted, and what these leave for keys.
  /// Operands as in read_out, dy as y, dmix as x.mix: its diagonal, under Causal, is left to
  /// summarize_gradient, by RecurrentMixing all of it to advance_gradient. Other gradients are not
  /// touched.
  void read_out_gradient(const RunsOn<Backend> auto& executor, const BlockRange& queries,
                         const OperandViews<T>& x, const std::type_identity_t<Sums<A>>& sums,
                         const TensorView<const T, 4>& dy, const GradientViews<T>& gradients,
                         QueryUpdate update, const QueryRows<A>& left,
                         WorkspaceView workspace) const {
    const GradientView<A, 3> dmix = recurs ? GradientView<A, 3>(skip) : gradients.mix;
    run(executor,
        stages::ReadOutGradient<T>{
            {queries}, used(x), sums, dy, gradients.query, dmix, update.query, update.mix, left},
        workspace);
  }

  /// dS and dz [key blocks, summary_size()] of key blocks, summed over query blocks: mix
  /// [heads, query blocks, key blocks] has the entries of both, of a packed batch it is whole;
  /// mixtures [query blocks, mixture_size()] is what read_out_gradient left.
  void mix_gradient(const RunsOn<Backend> auto& executor, const BlockRange& queries,
                    const BlockRange& keys, const TensorView<const A, 3>& mix,
                    const TensorView<const A, 2>& mixtures,
                    const TensorView<A, 2>& summary_gradients, WorkspaceView workspace) const
      requires(!recurs) {
    run(executor,
        stages::MixGradient<T>{{queries, keys}, {{}, {}, {}, mix}, mixtures, summary_gradients},
        workspace);
  }

  /// dk and dv of key blocks, if they are wanted, from dS and dz. x.k and x.v have the tokens of
  /// the blocks. The rest is used under Causal alone: x.q, dy and `denominators` of the same
  /// blocks' queries, x.mix their rows as in read_out, and dmix, to whose diagonal this adds: it
  /// holds what read_out_gradient, or advance_gradient, wrote. Other gradients are not touched.
  void summarize_gradient(const RunsOn<Backend> auto& executor, const BlockRange& keys,
                          const OperandViews<T>& x, const TensorView<const A, 2>& summary_gradients,
                          const TensorView<const T, 4>& dy,
                          const TensorView<const A, 2>& denominators,
                          const GradientViews<T>& gradients, Update update,
                          WorkspaceView workspace) const {
    const OperandViews<T> own = sees_own ? x : OperandViews<T>{{}, x.k, x.v, {}};
    const GradientView<A, 3> dmix = sees_own ? gradients.mix : GradientView<A, 3>(skip);
    const stages::SummarizeGradient<T> call{{keys},       own,           summary_gradients, dy,
                                            denominators, gradients.key, gradients.value,   dmix,
                                            update};
    run(executor, call, workspace);
  }

  /// RecurrentMixing: the states H after some blocks, [num_states(), mixture_size()], from H before
  /// them and their S. mix [heads, mix_rows(), columns]. The blocks begin and end at multiples of
  /// 16; the range may be empty, but blocks follow it.
  void advance(const RunsOn<Backend> auto& executor, const BlockRange& blocks,
               const TensorView<const A, 3>& mix, const Sums<A>& sums,
               const TensorView<A, 2>& after, WorkspaceView workspace) const requires recurs {
    run(executor, stages::Advance<T>{{blocks}, {{}, {}, {}, mix}, sums, after}, workspace);
    if (packs && !this->has_states_before(blocks.end())) Kernels::clear_tensor(executor, after);
  }

  /// RecurrentMixing: dS and dz [blocks, summary_size()] and dmix of blocks, and dH before them,
  /// from mixtures [blocks, mixture_size()], which read_out_gradient left, and dH after them.
  /// Operands as in advance; the blocks may be the last.
  ///
  /// dmix as mix. A block's weights enter states at the row of the next: of its first row this
  /// writes m_ii and a, of the last, the next block's, b and g, and of the others all: each entry
  /// is written for one range. Under Causal it leaves m_ii to summarize_gradient, with 0 there if
  /// it overwrites. Rows after the last block's are not touched. A single row for all gets the sum
  /// over these blocks; sums of several calls differ from the whole pass's in rounding.
  void advance_gradient(const RunsOn<Backend> auto& executor, const BlockRange& blocks,
                        const TensorView<const A, 3>& mix, const Sums<A>& sums,
                        const TensorView<const A, 2>& mixtures, const StateGradients<A>& states,
                        const TensorView<A, 2>& summary_gradients,
                        const std::type_identity_t<GradientView<A, 3>>& dmix, Update update,
                        WorkspaceView workspace) const requires recurs {
    run(executor,
        stages::AdvanceGradient<T>{
            {blocks}, {{}, {}, {}, mix}, sums, mixtures, states, summary_gradients, dmix, update},
        workspace);
  }

  /// \cond INTERNAL
#define MHLA_NO_SUCH_STAGE(stage, arguments)                                                \
  MHLA_NO_SUCH_CALL(                                                                        \
      static void stage,                                                                    \
      "mhla: call " #stage "(executor, " arguments                                          \
      ", workspace): tensors are views of the scalar of Stages; rows and mix have its "     \
      "accumulator type; results are not const; mhla::skip leaves a gradient out; advance " \
      "and advance_gradient are RecurrentMixing's, mix_gradient other mixings'")
  MHLA_NO_SUCH_STAGE(summarize, "keys, k, v, summaries")
  MHLA_NO_SUCH_STAGE(read_out, "queries, {q, k, v, mix}, sums, y")
  MHLA_NO_SUCH_STAGE(read_out_gradient,
                     "queries, {q, k, v, mix}, sums, dy, {dq, dk, dv, dmix}, update, {mixtures, "
                     "denominators}")
  MHLA_NO_SUCH_STAGE(mix_gradient, "queries, keys, mix, mixtures, summary_gradients")
  MHLA_NO_SUCH_STAGE(advance, "blocks, mix, sums, after")
  MHLA_NO_SUCH_STAGE(advance_gradient,
                     "blocks, mix, sums, mixtures, {after, before}, summary_gradients, dmix, "
                     "update")
  MHLA_NO_SUCH_STAGE(summarize_gradient,
                     "keys, {q, k, v, mix}, summary_gradients, dy, denominators, {dq, dk, dv, "
                     "dmix}, update")
#undef MHLA_NO_SUCH_STAGE
  MHLA_NO_SUCH_CALL(static Index workspace_size,
                    "mhla: call workspace_size(stage, executor, blocks), and for mix_gradient "
                    "(stage, executor, queries, keys), with an mhla::Stage, an executor, or for "
                    "CudaStages an mhla::CudaDevice, and mhla::BlockRange")
  /// \endcond

 private:
  using Run = typename Backend::template Run<typename Blocks::Sequence, T>;
  template <class, class, class>
  friend class BasicStages;

  // Of a padded batch, or of a packed sequence.
  BasicStages(const Problem& problem, const V& attention) : Blocks(problem, attention) {}

  // What queries use of x.
  static OperandViews<T> used(const OperandViews<T>& x) {
    if constexpr (sees_own) return x;
    return {x.q, {}, {}, x.mix};
  }

  void run(const auto& executor, const auto& call, WorkspaceView workspace) const {
    this->require_blocks_of(call.stage, call.blocks, call.keys);
    if (call.stage == Stage::advance && call.blocks.end() == this->query_blocks().count)
      throw ShapeError({"mhla: blocks: [", call.blocks.first, ", ", call.blocks.end(),
                        ") ends the sequence: no blocks follow that receive states"});
    Footprint memory;
    call.visit(
        call, *this,
        [&]<class X, int rank>(const char* name, Holds holds, const TensorView<X, rank>& view) {
          require_view(call, name, holds, view);
          memory.add(view, name);
          Backend::require_layout(call.stage, name, holds, view);
        });
    require_apart(memory, attention_, workspace, {});
    require_device(executor, memory);
    if constexpr (packs)
      run_sequences(executor, call, workspace);
    else
      run_checked(executor, call, workspace);
  }
  template <class Call>
  void run_checked(const auto& executor, Call call, WorkspaceView workspace) const {
    if constexpr (Call::stage == Stage::summarize_gradient && sees_own) {
      // Own keys use their own columns of mix.
      call.x.mix = columns_of(call.x.mix, this->mix_columns(call.blocks));
      if (call.dmix.wanted) call.dmix = columns_of(call.dmix.view, this->mix_columns(call.blocks));
    }
    Run(this->part_of(Call::stage, call.blocks, call.keys), executor).run(call, workspace);
    clear_untouched(executor, call);
  }
  // Zeros what a call overwrites but no unit touches: tokens that a mask takes away and, of a call
  // without an output, all gradients.
  template <class Call>
  void clear_untouched(const auto& executor, const Call& call) const {
    const bool empty = problem_.shape.empty();
    if constexpr (Call::stage == Stage::read_out_gradient)
      if (empty && call.dmix.wanted && call.mix_update == Update::overwrite)
        Kernels::clear_tensor(executor, call.dmix.view);
    if constexpr (requires { call.update; })
      if (call.update == Update::accumulate) return;
    const auto clear = [&]<class X, int rank>(const char*, [[maybe_unused]] Holds holds,
                                              const TensorView<X, rank>& view) {
      if constexpr (rank == 4 && !std::is_const_v<X>) {
        const TokenMasks& masks = this->masks_.tokens;
        if (empty)
          Kernels::clear_tensor(executor, view);
        else if (call.blocks.count > 0)
          Kernels::clear_masked(executor, stages::of_keys(holds) ? masks.key : masks.query, view);
      }
    };
    Call::visit(call, *this, clear);
  }

  // All checks are made before the first sequence writes, whose calls add up dmix.
  template <class Call>
  void run_sequences(const auto& executor, Call call, WorkspaceView workspace) const {
    Run::require_room(workspace, workspace_size(Call::stage, executor, call.blocks, call.keys));
    if constexpr (requires { call.mix_update; }) {
      if (call.dmix.wanted && call.mix_update == Update::overwrite)
        Kernels::clear_tensor(executor, call.dmix.view);
      call.mix_update = Update::accumulate;
    }
    const Index first_seen = this->key_blocks(call.blocks).first;
    constexpr bool of_keys =
        Call::stage == Stage::summarize || Call::stage == Stage::summarize_gradient;
    const auto run_one = [&](const SequencePart& sequence, const auto& stages) {
      const Call part = part_of_sequence(call, sequence, stages, first_seen);
      if (Call::stage != Stage::advance || sequence.part.end() < sequence.blocks)  // has not ended
        stages.run_checked(executor, part, workspace);
    };
    for_each_sequence(call.keys, this->held(of_keys, call.keys), run_one);
  }
  // What one sequence has of some blocks.
  struct SequencePart {
    Index first_block = 0;  // the sequence's, in the list
    Index blocks = 0;       // of the whole sequence
    Index length = 0;       // its tokens
    BlockRange part;        // its blocks of these, counted within the sequence
    BlockRange rows;        // the same, counted within the range
    BlockRange tokens;      // theirs, as tensors hold them

    // The blocks that the sequence has of another range, counted within the sequence.
    BlockRange of(const BlockRange& other) const {
      const Index first = std::clamp(other.first - first_block, Index{0}, blocks);
      return {first, std::clamp(other.end() - first_block, Index{0}, blocks) - first};
    }
  };
  // Calls visit(part, the stages of its sequence) for every sequence that has some of the blocks.
  // With no blocks a recurrence passes states on, in the sequence around them.
  template <class Visit>
  void for_each_sequence(const BlockRange& blocks, const BlockRange& held,
                         const Visit& visit) const {
    if (!recurs && blocks.count == 0) return;
    using Alone = typename Blocks::Sequence;
    const Index block = problem_.query_grid.block[2];
    const auto list = this->queries_listed();
    SequencePart of;
    of.tokens.first = list.first_token(blocks.first) - list.first_token(held.first);
    for (Index s = 0; s < attention_.sequences() && of.first_block < blocks.end(); ++s) {
      of.length = attention_.length(s);
      of.blocks = ceil_div(of.length, block);
      of.part = of.of(blocks);
      of.rows = {of.first_block + of.part.first - blocks.first, of.part.count};
      of.tokens.count = (std::min)(of.part.end() * block, of.length) -
                        (std::min)(of.part.first * block, of.length);
      if (of.blocks > 0 && blocks.first < of.first_block + of.blocks)
        visit(std::as_const(of), BasicStages<Alone, T, Backend>(
                                     problem_of(of), static_cast<const Alone&>(attention_)));
      of.first_block += of.blocks;
      of.tokens.first += of.tokens.count;
    }
  }
  Problem problem_of(const SequencePart& sequence) const {
    Problem problem = problem_;
    Shape& shape = problem.shape;
    problem.sequences = 1;
    shape.query_tokens = shape.key_tokens = sequence.length;
    problem.query_grid.extent[2] = problem.key_grid.extent[2] = sequence.length;
    problem.queries = problem.keys = {0, sequence.blocks};
    problem.query_blocks = problem.key_blocks = sequence.blocks;
    if (!recurs) shape.mix_query_blocks = shape.mix_key_blocks = sequence.blocks;
    return problem;
  }
  // A sequence's part of a call, whose stages are `of`; queries see summaries from `first_seen` on.
  template <class Call, class Stages>
  static Call part_of_sequence(const Call& call, const SequencePart& sequence, const Stages& of,
                               Index first_seen) {
    Call part = call;
    part.blocks = sequence.of(call.blocks);
    part.keys = sequence.part;
    const auto cut = [&]<class X, int rank>(const char*, Holds holds, TensorView<X, rank>& view) {
      if constexpr (rank == 4) {
        view = unchecked_slice(view, 2, sequence.tokens.first, sequence.tokens.count);
      } else if constexpr (rank == 3) {  // the corner that it uses
        view = columns_of(
            rows_of(view, of.mix_rows(part.blocks)),
            Call::stage == Stage::mix_gradient ? of.mix_columns(part.keys) : of.key_blocks());
      } else if (holds == Holds::summaries) {
        view = rows_of(view, sequence.rows);
      } else if (holds == Holds::seen && !Stages::recurs) {  // as far as they are there
        const Index first = sequence.first_block - first_seen;
        view =
            rows_of(view, {first, std::clamp(view.extent[0] - first, Index{0}, sequence.blocks)});
      } else if (holds != Holds::states) {
        const Index first = sequence.first_block + part.blocks.first - call.blocks.first;
        view = rows_of(view, {first, part.blocks.count});
        if (holds == Holds::denominators)  // fewer if the sequence is shorter than a block
          view.extent[1] = of.denominator_size();
      }
    };
    Call::visit(part, of, cut);
    return part;
  }

  // Throw ShapeError unless a view of a call has the extents of what it holds. Tensors have tokens,
  // mix and dmix rows and columns, sums a row for each block, or for each state.
  template <class X>
  void require_view(const auto& call, const char* name, Holds holds,
                    const TensorView<X, 4>& tensor) const {
    const Shape& shape = problem_.shape;
    const BlockRange& blocks = call.blocks;
    const bool of_keys = stages::of_keys(holds);
    const BlockRange held = this->held(of_keys, blocks);
    if (blocks.count > 0 && (blocks.first < held.first || blocks.end() > held.end()))
      throw ShapeError({"mhla: ", of_keys ? "keys" : "queries", ": tensors hold blocks [",
                        held.first, ", ", held.end(), "), not all of [", blocks.first, ", ",
                        blocks.end(), ")"});
    const bool of_values = holds == Holds::output || holds == Holds::value;
    require_extents(tensor, name, shape.batch, of_keys ? shape.kv_heads : shape.heads,
                    of_keys ? this->key_tokens(held) : this->query_tokens(held),
                    of_values ? shape.value_dim : shape.key_dim,
                    "a stage's tensors have the tokens of its blocks");
  }
  template <class Call, class X>
  void require_view(const Call& call, const char* name, Holds, const TensorView<X, 3>& mix) const {
    const bool some_columns = Call::stage == Stage::mix_gradient;
    require_extents(
        mix, name, problem_.shape.mix_heads, this->mix_rows(call.blocks).count,
        some_columns ? this->mix_columns(call.keys).count : problem_.shape.mix_key_blocks,
        "a stage's mix has the rows and columns of its blocks");
  }
  template <class X>
  void require_view(const auto& call, const char* name, Holds holds,
                    const TensorView<X, 2>& rows) const {
    const bool sums = holds == Holds::summaries || holds == Holds::seen;
    const Index size = sums                           ? this->summary_size()
                       : holds == Holds::denominators ? this->denominator_size()
                                                      : this->mixture_size();
    if (holds == Holds::states)
      require_extent(name, "states", rows.extent[0], this->num_states(),
                     "it has a row for each state");
    else if (holds == Holds::seen && !recurs)
      require_seen(call.blocks, name, rows.extent[0]);
    else
      require_extent(name, "blocks", rows.extent[0],
                     (holds == Holds::summaries ? call.keys : call.blocks).count,
                     "it has a row for each block");
    require_extent(name, "elements", rows.extent[1], size, "a row has what a block leaves");
    if (rows.size() > 0 && size > 1)
      require_extent(name, "elements' stride", rows.stride[1], 1, "a row is contiguous");
  }
  // Summaries of the key blocks, up to the last that queries see at least.
  void require_seen(const BlockRange& queries, const char* name, Index rows) const {
    const BlockRange keys = this->key_blocks(queries);
    const Index seen = is_causal<V>
                           ? (std::max)(Index{0}, queries.end() - keys.first - lag_of(sight_of<V>))
                           : keys.count;
    if (rows < seen || rows > keys.count)
      throw ShapeError({"mhla: ", name, ": axis blocks is ", rows, " but must be ", seen,
                        " or more, which the queries see, and at most ", keys.count});
  }
};

/// \cond INTERNAL
template <class V, class T, class Backend>
requires(!VariantOfTensors<V, T>) class BasicStages<V, T, Backend>
    : public NoVariantOfTensors<V, T> {
 public:
  using NoVariantOfTensors<V, T>::NoVariantOfTensors;
};
/// \endcond

MHLA_NAMESPACE_END
