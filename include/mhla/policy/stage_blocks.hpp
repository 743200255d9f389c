// SPDX-License-Identifier: MIT
// The blocks that stages (mhla/stages.hpp) run on, the sizes of what they leave, and the checks
// that every backend's make before anything is written.
#pragma once

#include <algorithm>
#include <mhla/core/any_argument.hpp>
#include <mhla/core/config.hpp>
#include <mhla/core/error.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/core/shape.hpp>
#include <mhla/core/stage.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/token_masks.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/policy/batch_layout.hpp>
#include <mhla/policy/block_geometry.hpp>
#include <mhla/policy/block_list.hpp>
#include <mhla/policy/checks.hpp>
#include <mhla/policy/fingerprint.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/stage_errors.hpp>
#include <mhla/policy/traits.hpp>
#include <mhla/policy/variant.hpp>
#include <optional>
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

/// Results of the query pass that the gradients of keys need, a row for each query block.
template <class A>
struct QueryRows {
  TensorView<A, 2> mixtures;      ///< [query blocks, mixture_size()]: dS~^T, dz~
  TensorView<A, 2> denominators;  ///< [query blocks, denominator_size()]: den and its gradient
};

/// What Stages::padded takes: which tokens of a stage's blocks take part, as in a call (see
/// mhla::padded), and how many blocks each item has up to its last such token, since a whole pass
/// drops later ones. A side without a mask has empty members. All borrowed.
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
// The blocks whose tokens tensors hold.
struct HeldBlocks {
  BlockRange queries;
  BlockRange keys;
};
/// \endcond

/// What read_out_gradient does with what dq and dmix hold; converts from one Update for both.
struct QueryUpdate {
  Update query;  ///< dq
  Update mix;    ///< dmix

  /// The same for both.
  constexpr QueryUpdate(Update both) : query(both), mix(both) {}  // NOLINT: reads as one
  /// One for each.
  constexpr QueryUpdate(Update of_query, Update of_mix) : query(of_query), mix(of_mix) {}
};

/// The blocks of one sequence shape, or of packed sequences, and what their stages leave: what the
/// stages of every backend have in common.
template <AttentionVariant V, StorageScalar T>
class StageBlocks : public StageErrors, RequireStages<V> {
 public:
  using Variant = V;  ///< 1st argument
  using Scalar = T;   ///< 2nd argument
  /// \cond INTERNAL
  static constexpr Borrowed compared = Borrowed::contents;  // by ranks, of what the variant borrows
  /// \endcond

  /// `shape` is that of the whole sequence. What the variant borrows must outlive this.
  /// \throws ShapeError if variant and shape do not fit.
  StageBlocks(const V& attention, const Shape& shape)
      : attention_(attention), problem_(checked_problem(attention, shape)) {
    static_assert(!masked,
                  "mhla: the masks of Stages are those of a stage's tokens: give Stages the "
                  "attention that was padded, and masks to padded()");
  }

  /// \cond INTERNAL
  MHLA_ANY_CALL(StageBlocks, {
    static_assert(no_such_call<Given...>,
                  "mhla: make stages by Stages<Attention, T>(attention, shape), or CudaStages: "
                  "shape is an mhla::Shape, as of mhla::shape_of(q, k, v, mix), of the whole "
                  "sequence");
  })
  /// \endcond

  /// All query blocks: of packed sequences those of all, end to end, of which an empty one has
  /// none.
  BlockRange query_blocks() const { return {0, queries_listed().num_blocks()}; }
  /// All key blocks.
  BlockRange key_blocks() const { return {0, keys_listed().num_blocks()}; }
  /// The query blocks of the sequences that some key blocks are of: all, but of packed sequences.
  /// \throws ShapeError if these have no such blocks.
  BlockRange query_blocks(const BlockRange& keys) const {
    if (packs) require_blocks("keys", keys, key_blocks().count);
    return queries_listed().sequences_of(keys);
  }
  /// The key blocks of the sequences that some query blocks are of. \throws ShapeError likewise.
  BlockRange key_blocks(const BlockRange& queries) const {
    if (packs) require_blocks("queries", queries, query_blocks().count);
    return keys_listed().sequences_of(queries);
  }
  /// A query block's index within its sequence; 0 behind the last block. A recurrence has states
  /// before a block if this is not 0. \throws ShapeError if there is neither such a block nor one
  /// before it.
  Index block_in_sequence(Index block) const {
    require_blocks("block", {block, 0}, query_blocks().count);
    return queries_listed().block_in_sequence(block);
  }
  /// Tokens of q, dy, y and dq for some blocks. \throws ShapeError if there are no such blocks.
  Index query_tokens(const BlockRange& queries) const {
    require_blocks("queries", queries, query_blocks().count);
    return queries_listed().num_tokens(queries);
  }
  /// Tokens of k, v, dk and dv for some blocks. \throws ShapeError if there are no such blocks.
  Index key_tokens(const BlockRange& keys) const {
    require_blocks("keys", keys, key_blocks().count);
    return keys_listed().num_tokens(keys);
  }

  /// From now on tensors, and masks, hold the tokens of these blocks, of which calls run on some:
  /// q, y and their gradients of `queries`, k, v and theirs of `keys`, under Causal the same ones.
  /// A call writes tokens of its own blocks, and zeros of any that a mask takes away.
  /// \throws ShapeError if there are no such blocks.
  void hold(const BlockRange& queries, const BlockRange& keys) {
    require_blocks("queries", queries, query_blocks().count);
    require_blocks("keys", keys, key_blocks().count);
    if (masks_own_block<V> && queries != keys)
      throw ShapeError(
          "mhla: keys: under Causal, tensors of keys hold the blocks that those of "
          "queries do");
    held_ = HeldBlocks{queries, keys};
  }

  /// Elements that a key block's sums have: for every item and kv head S [feature_dim, value_dim],
  /// in gradients S^T, and, if the variant has a normalizer, z [feature_dim].
  Index summary_size() const { return checked_mul(units(), sums_size()); }
  /// Elements that a query block's dS~^T and dz~ have, for every item and kv head, and for every
  /// query head if mix has a matrix for each.
  Index mixture_size() const { return checked_mul(summary_size(), matrices()); }
  /// States of RecurrentMixing; otherwise 0.
  Index num_states() const {
    if constexpr (recurs) return attention_.mixing.states;
    return 0;
  }
  /// Rows of mix that stages on some query blocks take: `rows_of(mix, mix_rows(queries))`. Of
  /// RecurrentMixing the blocks', and the next if there is one, of which `advance` reads what
  /// enters the states; or the single row for all. Of packed sequences all rows.
  /// \throws ShapeError if there are no such blocks.
  BlockRange mix_rows(const BlockRange& queries) const {
    require_blocks("queries", queries, query_blocks().count);
    const Index rows = problem_.shape.mix_query_blocks;
    if (packs || (recurs && rows == 1)) return {0, rows};
    if (!recurs) return queries;
    return {queries.first, queries.count + Index{queries.end() < problem_.query_blocks}};
  }
  /// Columns of mix that mix_gradient takes for some key blocks: theirs; of packed sequences, and
  /// of RecurrentMixing, all. \throws ShapeError if there are no such blocks.
  BlockRange mix_columns(const BlockRange& keys) const {
    require_blocks("keys", keys, key_blocks().count);
    if (packs || recurs) return {0, problem_.shape.mix_key_blocks};
    return keys;
  }
  /// Elements that den and its gradient have for the tokens of a query block, which its own keys
  /// need under Causal with a normalizer; otherwise 0.
  Index denominator_size() const {
    if (!keeps_denominators) return 0;
    return checked_mul(checked_mul(problem_.shape.batch, problem_.shape.heads),
                       checked_mul(Index{2}, problem_.query_grid.block_tokens()));
  }

 protected:
  using A = Accumulator<T>;

  static constexpr bool masked = requires(const V& v) { v.masks; };
  static constexpr bool recurs = factors_mixing<V>;
  static constexpr bool packs = requires(const V& v) { v.offsets; };

  // Of a padded batch, or of a packed sequence.
  StageBlocks(const Problem& problem, const V& attention)
      : attention_(attention), problem_(problem) {}

  // The blocks whose tokens tensors hold in a call on some.
  BlockRange held_queries(const BlockRange& queries) const {
    return held_ ? held_->queries : queries;
  }
  BlockRange held_keys(const BlockRange& keys) const { return held_ ? held_->keys : keys; }

  auto queries_listed() const { return query_list(attention_, problem_); }
  auto keys_listed() const { return key_list(attention_, problem_); }

  // Whether own keys take up what read_out_gradient leaves of denominators.
  static constexpr bool keeps_denominators = masks_own_block<V> && normalizes<V>;

  Index units() const { return checked_mul(problem_.shape.batch, problem_.shape.kv_heads); }
  // Of mix, for a kv head: 1 shared, or one per query head.
  Index matrices() const {
    const Index group_size = problem_.shape.group_size();
    return problem_.shape.mix_heads == 1 ? (std::min)(Index{1}, group_size) : group_size;
  }
  // Elements of S and z.
  Index sums_size() const {
    const Index summary = checked_mul(problem_.feature_dim, problem_.shape.value_dim);
    return checked_add(summary, normalizes<V> ? problem_.feature_dim : 0);
  }

  // The call that a stage is: which blocks have rows and columns of mix, which have tokens.
  Problem part_of(Stage stage, const BlockRange& queries, const BlockRange& keys) const {
    const bool of_keys = stage == Stage::summarize || stage == Stage::summarize_gradient;
    require_blocks("queries", queries, of_keys ? key_blocks().count : query_blocks().count);
    require_blocks("keys", keys, key_blocks().count);
    Problem problem = problem_;
    problem.stage = stage;
    if (stage == Stage::summarize) {
      problem.queries = {};
      problem.keys = keys;
    } else if (stage == Stage::mix_gradient) {
      problem.queries = queries;
      problem.keys = keys;
    } else if (stage == Stage::summarize_gradient) {
      problem.queries = masks_own_block<V> ? keys : BlockRange{};
      problem.keys = keys;
    } else {
      problem.queries = queries;
      if (recurs) problem.keys = queries;
    }
    problem.held_queries = held_queries(problem.queries);
    problem.held_keys = held_keys(problem.keys);
    problem.query_blocks = problem.queries.count;
    problem.key_blocks = problem.keys.count;
    const bool reads_out = stage == Stage::read_out || stage == Stage::read_out_gradient;
    const bool mixes =
        stage == Stage::mix_gradient || stage == Stage::advance || stage == Stage::advance_gradient;
    if (mixes) problem.queries.count = 0;
    if (mixes || reads_out) problem.keys.count = 0;
    require_chunks({problem.queries.first, problem.query_blocks});
    return problem;
  }

  // What read_out uses of x.
  static OperandViews<T> read_by_queries(const OperandViews<T>& x) {
    if constexpr (masks_own_block<V>) return x;
    return {x.q, {}, {}, x.mix};
  }
  // What summarize_gradient uses of x, and of dmix.
  OperandViews<T> read_by_keys(const BlockRange& keys, const OperandViews<T>& x) const {
    if constexpr (masks_own_block<V>) return {x.q, x.k, x.v, columns_of(x.mix, mix_columns(keys))};
    return {{}, x.k, x.v, {}};
  }
  GradientView<A, 3> own_entries(const BlockRange& keys, const GradientView<A, 3>& dmix) const {
    if (!masks_own_block<V> || !dmix.wanted) return skip;
    return columns_of(dmix.view, mix_columns(keys));
  }

  // These throw unless a stage's arguments fit; they return the memory that it touches.
  Footprint require_summarize(const BlockRange& keys, const TensorView<const T, 4>& k,
                              const TensorView<const T, 4>& v, const TensorView<A, 2>& summaries,
                              WorkspaceView workspace) const {
    require_keys(keys, k, v);
    require_rows("summaries", summaries, keys.count, summary_size());
    Footprint footprint;
    footprint.writes(summaries, "summaries");
    require_apart(footprint, attention_, OperandViews<T>{{}, k, v, {}}, workspace, {});
    return footprint;
  }
  Footprint require_read_out(const BlockRange& queries, const OperandViews<T>& x,
                             const Sums<A>& sums, const TensorView<T, 4>& y,
                             WorkspaceView workspace) const {
    require_queries(queries, x, sums);
    require_query_tensor("y", y, queries, problem_.shape.value_dim);
    Footprint footprint;
    footprint.writes(y, "y");
    add_sums(footprint, queries, sums);
    require_apart(footprint, attention_, read_by_queries(x), workspace, {});
    return footprint;
  }
  Footprint require_read_out_gradient(const BlockRange& queries, const OperandViews<T>& x,
                                      const Sums<A>& sums, const TensorView<const T, 4>& dy,
                                      const GradientViews<T>& gradients, const QueryRows<A>& left,
                                      WorkspaceView workspace) const {
    require_queries(queries, x, sums);
    require_query_tensor("dy", dy, queries, problem_.shape.value_dim);
    const auto& dq = gradients.query;
    const auto& dmix = gradients.mix;
    Footprint footprint;
    if (dq.wanted) {
      require_query_tensor("dq", dq.view, queries, problem_.shape.key_dim);
      footprint.writes(dq.view, "dq");
    }
    if (dmix.wanted && !recurs) {
      require_mix("dmix", dmix.view, queries);
      footprint.writes(dmix.view, "dmix");
    }
    require_rows("mixtures", left.mixtures, queries.count, mixture_size());
    footprint.writes(left.mixtures, "mixtures");
    if (keeps_denominators) {
      require_rows("denominators", left.denominators, queries.count, denominator_size());
      footprint.writes(left.denominators, "denominators");
    }
    add_sums(footprint, queries, sums);
    footprint.reads(dy, "dy");
    require_apart(footprint, attention_, read_by_queries(x), workspace, {});
    return footprint;
  }
  Footprint require_advance(const BlockRange& blocks, const TensorView<const A, 3>& mix,
                            const Sums<A>& sums, const TensorView<A, 2>& behind,
                            WorkspaceView workspace) const {
    require_mix("mix", mix, blocks);
    require_sums(blocks, sums);
    require_states("behind", behind);
    if (blocks.end() == query_blocks().count)
      throw ShapeError("mhla: blocks: [", blocks.first, ", ", blocks.end(),
                       ") ends the sequence: no blocks follow that receive states");
    Footprint footprint;
    footprint.writes(behind, "behind");
    add_sums(footprint, blocks, sums);
    require_apart(footprint, attention_, OperandViews<T>{{}, {}, {}, mix}, workspace, {});
    return footprint;
  }
  Footprint require_advance_gradient(const BlockRange& blocks, const TensorView<const A, 3>& mix,
                                     const Sums<A>& sums, const TensorView<const A, 2>& mixtures,
                                     const StateGradients<A>& states,
                                     const TensorView<A, 2>& summary_gradients,
                                     const GradientView<A, 3>& dmix,
                                     WorkspaceView workspace) const {
    require_mix("mix", mix, blocks);
    require_sums(blocks, sums);
    require_rows("mixtures", mixtures, blocks.count, mixture_size());
    require_rows("summary_gradients", summary_gradients, blocks.count, summary_size());
    Footprint footprint;
    footprint.writes(summary_gradients, "summary_gradients");
    if (has_states_before(blocks.first)) {
      require_states("before", states.before);
      footprint.writes(states.before, "before");
    }
    if (dmix.wanted) {
      require_mix("dmix", dmix.view, blocks);
      footprint.writes(dmix.view, "dmix");
    }
    add_sums(footprint, blocks, sums);
    footprint.reads(mixtures, "mixtures");
    if (has_states_before(blocks.end())) {
      require_states("behind", states.behind);
      footprint.reads(states.behind, "behind");
    }
    require_apart(footprint, attention_, OperandViews<T>{{}, {}, {}, mix}, workspace, {});
    return footprint;
  }
  Footprint require_mix_gradient(const BlockRange& queries, const BlockRange& keys,
                                 const TensorView<const A, 3>& mix,
                                 const TensorView<const A, 2>& mixtures,
                                 const TensorView<A, 2>& summary_gradients,
                                 WorkspaceView workspace) const {
    require_blocks("queries", queries, query_blocks().count);
    require_blocks("keys", keys, key_blocks().count);
    require_matrix("mix", mix, mix_rows(queries).count, mix_columns(keys).count);
    require_rows("mixtures", mixtures, queries.count, mixture_size());
    require_rows("summary_gradients", summary_gradients, keys.count, summary_size());
    Footprint footprint;
    footprint.writes(summary_gradients, "summary_gradients");
    footprint.reads(mixtures, "mixtures");
    require_apart(footprint, attention_, OperandViews<T>{{}, {}, {}, mix}, workspace, {});
    return footprint;
  }
  Footprint require_summarize_gradient(const BlockRange& keys, const OperandViews<T>& x,
                                       const TensorView<const A, 2>& summary_gradients,
                                       const TensorView<const T, 4>& dy,
                                       const TensorView<const A, 2>& denominators,
                                       const GradientViews<T>& gradients,
                                       WorkspaceView workspace) const {
    require_keys(keys, x.k, x.v);
    require_rows("summary_gradients", summary_gradients, keys.count, summary_size());
    const auto& dk = gradients.key;
    const auto& dv = gradients.value;
    Footprint footprint;
    if (dk.wanted) {
      require_key_tensor("dk", dk.view, keys, problem_.shape.key_dim);
      footprint.writes(dk.view, "dk");
    }
    if (dv.wanted) {
      require_key_tensor("dv", dv.view, keys, problem_.shape.value_dim);
      footprint.writes(dv.view, "dv");
    }
    if constexpr (masks_own_block<V>) {
      require_query_tensor("q", x.q, keys, problem_.shape.key_dim);
      require_query_tensor("dy", dy, keys, problem_.shape.value_dim);
      require_mix("mix", x.mix, keys);
      if (keeps_denominators)
        require_rows("denominators", denominators, keys.count, denominator_size());
      if (gradients.mix.wanted) {
        require_mix("dmix", gradients.mix.view, keys);
        footprint.writes(gradients.mix.view, "dmix");
      }
      footprint.reads(dy, "dy");
      footprint.reads(denominators, "denominators");
    }
    footprint.reads(summary_gradients, "summary_gradients");
    require_apart(footprint, attention_, read_by_keys(keys, x), workspace, {});
    return footprint;
  }

  V attention_;
  Problem problem_;
  std::optional<HeldBlocks> held_;  // none: those of a call

  static void require_blocks(const char* argument, const BlockRange& blocks, Index all) {
    if (blocks.first < 0 || blocks.count < 0 || blocks.first > all - blocks.count)
      throw ShapeError("mhla: ", argument, ": there are no blocks [", blocks.first, ", ",
                       blocks.first, " + ", blocks.count, "): the sequence has ", all);
  }
  static BlockRange require_held(const char* argument, const BlockRange& blocks,
                                 const BlockRange& held) {
    if (blocks.count > 0 && (blocks.first < held.first || blocks.end() > held.end()))
      throw ShapeError("mhla: ", argument, ": tensors hold blocks [", held.first, ", ", held.end(),
                       "), not all of [", blocks.first, ", ", blocks.end(), ")");
    return held;
  }
  // Behind the blocks before it.
  bool has_states_before(Index block) const { return recurs && block_in_sequence(block) > 0; }
  static constexpr Index chunk = RecurrentMixing::chunk;
  void require_chunks(const BlockRange& blocks) const {
    if (!recurs || blocks.count == 0) return;
    if (block_in_sequence(blocks.first) % chunk != 0 ||
        block_in_sequence(blocks.end()) % chunk != 0)
      throw ShapeError("mhla: blocks: RecurrentMixing takes ", chunk, " blocks at a time: [",
                       blocks.first, ", ", blocks.end(), ") must begin at a multiple of ", chunk,
                       ", and end at one or with the sequence");
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
    const BlockRange held = require_held("queries", queries, held_queries(queries));
    require_tokens(argument, tensor, problem_.shape.heads, query_tokens(held), dim);
  }
  template <class X>
  void require_key_tensor(const char* argument, const TensorView<X, 4>& tensor,
                          const BlockRange& keys, Index dim) const {
    const BlockRange held = require_held("keys", keys, held_keys(keys));
    require_tokens(argument, tensor, problem_.shape.kv_heads, key_tokens(held), dim);
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
  void require_queries(const BlockRange& queries, const OperandViews<T>& x,
                       const Sums<A>& sums) const {
    require_query_tensor("q", x.q, queries, problem_.shape.key_dim);
    require_mix("mix", x.mix, queries);
    if (masks_own_block<V>) require_keys(queries, x.k, x.v);
    require_sums(queries, sums);
  }
  void add_sums(Footprint& footprint, const BlockRange& queries, const Sums<A>& sums) const {
    footprint.reads(sums.summaries, "summaries");
    if (has_states_before(queries.first)) footprint.reads(sums.states, "states");
  }
  template <class X>
  void require_states(const char* argument, const TensorView<X, 2>& states) const {
    require_extent(argument, "states", states.extent[0], num_states(),
                   "it has a row for each state");
    require_row(argument, states, mixture_size());
  }
  void require_sums(const BlockRange& queries, const Sums<A>& sums) const {
    const TensorView<const A, 2>& summaries = sums.summaries;
    if (recurs) {
      require_rows("summaries", summaries, queries.count, summary_size());
      if (has_states_before(queries.first)) require_states("states", sums.states);
      return;
    }
    const BlockRange keys = key_blocks(queries);
    const Index all = keys.count;
    const Index seen = !sees_past_only<V>
                           ? all
                           : (std::max)(Index{0}, queries.end() - keys.first - lag_of(sight_of<V>));
    if (summaries.extent[0] < seen || summaries.extent[0] > all)
      throw ShapeError("mhla: summaries: axis blocks is ", summaries.extent[0], " but must be ",
                       seen, " or more, which the queries see, and at most ", all);
    require_row("summaries", summaries, summary_size());
  }
};

/// \}

MHLA_NAMESPACE_END
