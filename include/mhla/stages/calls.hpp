// SPDX-License-Identifier: MIT
// The blocks that stages (mhla/stages.hpp) run on, and a call of a stage as a value: its blocks,
// and its views, which `visit` lists with what each holds. A view that the variant, or these
// blocks, do not use is not on the list.
#pragma once

#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup stages
/// \{

/// The rows of some blocks in a matrix with a row for every block.
template <class T>
TensorView<T, 2> rows_of(const TensorView<T, 2>& matrix, const BlockRange& blocks) {
  return unchecked_slice(matrix, 0, blocks.first, blocks.count);
}
/// The rows of some query blocks in mix [heads, query blocks, key blocks], or in dmix.
template <class T>
TensorView<T, 3> rows_of(const TensorView<T, 3>& mix, const BlockRange& queries) {
  return unchecked_slice(mix, 1, queries.first, queries.count);
}
/// The columns of some key blocks in mix [heads, query blocks, key blocks].
template <class T>
TensorView<T, 3> columns_of(const TensorView<T, 3>& mix, const BlockRange& keys) {
  return unchecked_slice(mix, 2, keys.first, keys.count);
}

/// What Stages::padded takes: which tokens of a stage's blocks take part, as in a call (see
/// mhla::padded), and how many blocks each item has up to its last such token, since a whole pass
/// drops later ones. A side without a mask has empty members. All borrowed.
struct StageMasks {
  TokenMasks tokens;               ///< [batch, tokens of the blocks]; those that a stage lacks: any
  Span<const Index> query_blocks;  ///< [batch]: from count_used_queries
  Span<const Index> key_blocks;    ///< [batch]: from count_used_keys
};

/// Results of the query pass that the gradients of keys need, a row for each query block.
template <class A>
struct QueryRows {
  TensorView<A, 2> mixtures;      ///< [query blocks, mixture_size()]: dS~^T, dz~
  TensorView<A, 2> denominators;  ///< [query blocks, denominator_size()]: den and its gradient
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
  TensorView<const A, 2> after;  ///< of those after some blocks; not read after the last block
  TensorView<A, 2> before;       ///< of those before them; not written before block 0
};

/// What read_out_gradient does with what dq and dmix hold; converts from one Update for both.
struct QueryUpdate {
  Update query;  ///< dq
  Update mix;    ///< dmix

  /// One update for both, or one for each.
  constexpr QueryUpdate(Update of_query, std::optional<Update> of_mix = {})
      : query(of_query), mix(of_mix.value_or(of_query)) {}  // NOLINT: reads as one
};

/// \cond INTERNAL
namespace stages {

// The variant of one sequence: of a packed batch, the variant that was packed. For decltype alone.
template <class V>
V sequence_of(const V&);
template <class V, class Offset>
V sequence_of(const Packed<V, Offset>&);

// Some blocks' part of a call, by which a backend runs a stage.
template <class V>
struct Part {
  const V& attention;
  Problem problem;
  const StageMasks& masks;
};

// What a view holds, by which its extents are known, and what a sequence has of it.
enum class Holds {
  query,         // [batch, heads, tokens of queries, key_dim]
  output,        // [batch, heads, tokens of queries, value_dim]
  key,           // [batch, kv_heads, tokens of keys, key_dim]
  value,         // [batch, kv_heads, tokens of keys, value_dim]
  mix,           // [heads, rows, columns]
  summaries,     // [key blocks, summary_size()]
  seen,          // [key blocks that queries read, summary_size()]
  mixtures,      // [query blocks, mixture_size()]
  denominators,  // [query blocks, denominator_size()]
  states,        // [num_states(), mixture_size()]
};

inline bool of_keys(Holds holds) { return holds == Holds::key || holds == Holds::value; }

// A call on some blocks.
template <Stage of>
struct CallOf {
  static constexpr Stage stage = of;
  BlockRange blocks;
  BlockRange keys = blocks;  // other ones in mix_gradient alone
};

void visit_sums(auto& call, const auto& of, const auto& f) {
  f("summaries", Holds::seen, call.sums.summaries);
  if (of.has_states_before(call.blocks.first)) f("states", Holds::states, call.sums.states);
}
template <class Blocks>
void visit_operands(auto& call, const Blocks& of, const auto& f) {
  f("q", Holds::query, call.x.q);
  if constexpr (Blocks::sees_own) {
    f("k", Holds::key, call.x.k);
    f("v", Holds::value, call.x.v);
  }
  f("mix", Holds::mix, call.x.mix);
  visit_sums(call, of, f);
}

template <class T>
struct Summarize : CallOf<Stage::summarize> {
  OperandViews<T> x;
  TensorView<Accumulator<T>, 2> summaries;

  static void visit(auto& call, const auto&, const auto& f) {
    f("k", Holds::key, call.x.k);
    f("v", Holds::value, call.x.v);
    f("summaries", Holds::summaries, call.summaries);
  }
};

template <class T>
struct ReadOut : CallOf<Stage::read_out> {
  OperandViews<T> x;
  Sums<Accumulator<T>> sums;
  TensorView<T, 4> y;

  static void visit(auto& call, const auto& of, const auto& f) {
    visit_operands(call, of, f);
    f("y", Holds::output, call.y);
  }
};

template <class T>
struct ReadOutGradient : CallOf<Stage::read_out_gradient> {
  OperandViews<T> x;
  Sums<Accumulator<T>> sums;
  TensorView<const T, 4> dy;
  GradientView<T, 4> dq;
  GradientView<Accumulator<T>, 3> dmix;
  Update update;  // of dq
  Update mix_update;
  QueryRows<Accumulator<T>> left;

  template <class Blocks>
  static void visit(auto& call, const Blocks& of, const auto& f) {
    visit_operands(call, of, f);
    f("dy", Holds::output, call.dy);
    if (call.dq.wanted) f("dq", Holds::query, call.dq.view);
    if (call.dmix.wanted) f("dmix", Holds::mix, call.dmix.view);
    f("mixtures", Holds::mixtures, call.left.mixtures);
    if constexpr (Blocks::keeps_denominators)
      f("denominators", Holds::denominators, call.left.denominators);
  }
};

template <class T>
struct Advance : CallOf<Stage::advance> {
  OperandViews<T> x;
  Sums<Accumulator<T>> sums;
  TensorView<Accumulator<T>, 2> after;

  static void visit(auto& call, const auto& of, const auto& f) {
    f("mix", Holds::mix, call.x.mix);
    visit_sums(call, of, f);
    f("after", Holds::states, call.after);
  }
};

template <class T>
struct AdvanceGradient : CallOf<Stage::advance_gradient> {
  OperandViews<T> x;
  Sums<Accumulator<T>> sums;
  TensorView<const Accumulator<T>, 2> mixtures;
  StateGradients<Accumulator<T>> states;
  TensorView<Accumulator<T>, 2> summary_gradients;
  GradientView<Accumulator<T>, 3> dmix;
  Update mix_update;

  static void visit(auto& call, const auto& of, const auto& f) {
    f("mix", Holds::mix, call.x.mix);
    visit_sums(call, of, f);
    f("mixtures", Holds::mixtures, call.mixtures);
    if (of.has_states_before(call.blocks.end())) f("after", Holds::states, call.states.after);
    if (of.has_states_before(call.blocks.first)) f("before", Holds::states, call.states.before);
    f("summary_gradients", Holds::summaries, call.summary_gradients);
    if (call.dmix.wanted) f("dmix", Holds::mix, call.dmix.view);
  }
};

template <class T>
struct MixGradient : CallOf<Stage::mix_gradient> {
  OperandViews<T> x;
  TensorView<const Accumulator<T>, 2> mixtures;
  TensorView<Accumulator<T>, 2> summary_gradients;

  static void visit(auto& call, const auto&, const auto& f) {
    f("mix", Holds::mix, call.x.mix);
    f("mixtures", Holds::mixtures, call.mixtures);
    f("summary_gradients", Holds::summaries, call.summary_gradients);
  }
};

template <class T>
struct SummarizeGradient : CallOf<Stage::summarize_gradient> {
  OperandViews<T> x;
  TensorView<const Accumulator<T>, 2> summary_gradients;
  TensorView<const T, 4> dy;
  TensorView<const Accumulator<T>, 2> denominators;
  GradientView<T, 4> dk;
  GradientView<T, 4> dv;
  GradientView<Accumulator<T>, 3> dmix;
  Update update;  // of dk and dv; dmix is added to

  template <class Blocks>
  static void visit(auto& call, const Blocks&, const auto& f) {
    f("k", Holds::key, call.x.k);
    f("v", Holds::value, call.x.v);
    f("summary_gradients", Holds::summaries, call.summary_gradients);
    if constexpr (Blocks::sees_own) {
      f("q", Holds::query, call.x.q);
      f("dy", Holds::output, call.dy);
      f("mix", Holds::mix, call.x.mix);
    }
    if constexpr (Blocks::keeps_denominators)
      f("denominators", Holds::denominators, call.denominators);
    if (call.dk.wanted) f("dk", Holds::key, call.dk.view);
    if (call.dv.wanted) f("dv", Holds::value, call.dv.view);
    if (call.dmix.wanted) f("dmix", Holds::mix, call.dmix.view);
  }
};

}  // namespace stages
/// \endcond

/// The blocks of one sequence shape, or of packed sequences, and what stages of any backend leave.
/// Functions that take blocks throw ShapeError if there are none such.
template <AttentionVariant V, StorageScalar T>
class StageBlocks {
  static_assert(!is_structured<V> || std::is_same_v<typename V::MixingType, RecurrentMixing>,
                "mhla: Stages have rows of the mixing matrix, or of RecurrentMixing's parameters: "
                "for another structured mixing use DenseMixing, with the matrix that mhla::expand "
                "makes");
  static_assert(!mixes_products<V>,
                "mhla: MixedProduct ties a token to the same offset of every other block, which a "
                "stage does not have: use MixedKeySum or Unnormalized for Stages");

 public:
  using Variant = V;  ///< 1st argument
  using Scalar = T;   ///< 2nd argument
  /// `shape` is that of the whole sequence. What the variant borrows must outlive this.
  /// \throws ShapeError if variant and shape do not fit.
  StageBlocks(const V& attention, const Shape& shape)
      : attention_(attention), problem_(checked_problem(attention, shape)) {
    static_assert(!masked,
                  "mhla: the masks of Stages are those of a stage's tokens: give Stages the "
                  "attention that was padded, and masks to padded()");
  }

  /// \cond INTERNAL
  using Sequence = decltype(stages::sequence_of(std::declval<V>()));
  static constexpr bool recurs = is_structured<V>;
  static constexpr bool packs = is_packed<V>;
  static constexpr bool masked = requires(const V& v) { v.masks; };
  static constexpr bool sees_own = is_causal_within_block<V>;
  // Whether own keys take up what read_out_gradient leaves of denominators.
  static constexpr bool keeps_denominators = sees_own && normalizes<V>;
  SumsLayout summary_layout() const { return sums_layout<V>(problem_, 1); }
  SumsLayout mixture_layout() const { return sums_layout<V>(problem_, problem_.shape.matrices()); }
  // After the blocks before it.
  bool has_states_before(Index block) const { return recurs && block_in_sequence(block) > 0; }

  MHLA_NO_SUCH_CALL(StageBlocks,
                    "mhla: make stages by Stages<Attention, T>(attention, shape), or CudaStages: "
                    "shape is an mhla::Shape, as of mhla::shape_of(q, k, v, mix), of the whole "
                    "sequence")
  /// \endcond

  /// All query blocks: of packed sequences those of all, end to end, of which an empty one has
  /// none.
  BlockRange query_blocks() const { return {0, queries_listed().num_blocks()}; }
  /// All key blocks.
  BlockRange key_blocks() const { return {0, keys_listed().num_blocks()}; }
  /// The query blocks of the sequences that some key blocks are of: all, but of packed sequences.
  BlockRange query_blocks(const BlockRange& keys) const {
    if (packs) require_blocks("keys", keys, key_blocks().count);
    return queries_listed().sequences_of(keys);
  }
  /// The key blocks of the sequences that some query blocks are of.
  BlockRange key_blocks(const BlockRange& queries) const {
    if (packs) require_blocks("queries", queries, query_blocks().count);
    return keys_listed().sequences_of(queries);
  }
  /// A query block's index within its sequence; 0 after the last block. A recurrence has states
  /// before a block if this is not 0.
  Index block_in_sequence(Index block) const {
    require_blocks("block", {block, 0}, query_blocks().count);
    return queries_listed().block_in_sequence(block);
  }
  /// Tokens of q, dy, y and dq for some blocks.
  Index query_tokens(const BlockRange& queries) const {
    require_blocks("queries", queries, query_blocks().count);
    return queries_listed().num_tokens(queries);
  }
  /// Tokens of k, v, dk and dv for some blocks.
  Index key_tokens(const BlockRange& keys) const {
    require_blocks("keys", keys, key_blocks().count);
    return keys_listed().num_tokens(keys);
  }

  /// From now on tensors, and masks, hold the tokens of these blocks, of which calls run on some:
  /// q, y and their gradients of `queries`, k, v and theirs of `keys`, under Causal the same ones.
  /// A call writes tokens of its own blocks, and zeros of any that a mask takes away.
  void hold(const BlockRange& queries, const BlockRange& keys) {
    require_blocks("queries", queries, query_blocks().count);
    require_blocks("keys", keys, key_blocks().count);
    if (is_causal_within_block<V> && queries != keys)
      throw ShapeError(
          "mhla: keys: under Causal, tensors of keys hold the blocks that those of queries do");
    held_queries_ = queries;
    held_keys_ = keys;
  }

  /// Elements that a key block's sums have: for every item and kv head S [feature_dim, value_dim],
  /// in gradients S^T, and, if the variant has a normalizer, z [feature_dim].
  Index summary_size() const { return summary_layout().elements(); }
  /// Elements that a query block's dS~^T and dz~ have, for every item and kv head, and for every
  /// query head if mix has a matrix for each.
  Index mixture_size() const { return mixture_layout().elements(); }
  /// States of RecurrentMixing; otherwise 0.
  Index num_states() const {
    if constexpr (recurs) return attention_.mixing.states;
    return 0;
  }
  /// Rows of mix that stages on some query blocks take: `rows_of(mix, mix_rows(queries))`. Of
  /// RecurrentMixing the blocks', and the next if there is one, of which `advance` reads what
  /// enters the states; or the single row for all. Of packed sequences all rows.
  BlockRange mix_rows(const BlockRange& queries) const {
    require_blocks("queries", queries, query_blocks().count);
    const Index rows = problem_.shape.mix_query_blocks;
    if (packs || (recurs && rows == 1)) return {0, rows};
    if (!recurs) return queries;
    return {queries.first, queries.count + Index{queries.end() < problem_.query_blocks}};
  }
  /// Columns of mix that mix_gradient takes for some key blocks: theirs; of packed sequences, and
  /// of RecurrentMixing, all.
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
  // Of a padded batch, or of a packed sequence.
  StageBlocks(const Problem& problem, const V& attention)
      : attention_(attention), problem_(problem) {}

  // The blocks whose tokens tensors hold in a call on these.
  BlockRange held(bool of_keys, const BlockRange& blocks) const {
    return (of_keys ? held_keys_ : held_queries_).value_or(blocks);
  }
  auto queries_listed() const { return query_list(attention_, problem_); }
  auto keys_listed() const { return key_list(attention_, problem_); }

  // The call that a stage is: which blocks have rows and columns of mix, which have tokens.
  stages::Part<V> part_of(Stage stage, const BlockRange& blocks, const BlockRange& keys) const {
    Problem problem = problem_;
    problem.stage = stage;
    const bool reads_out = stage == Stage::read_out || stage == Stage::read_out_gradient;
    const bool of_keys = stage == Stage::summarize || stage == Stage::summarize_gradient;
    problem.queries = blocks;
    if (stage == Stage::summarize || (of_keys && !sees_own)) problem.queries = {};
    if (of_keys || recurs)
      problem.keys = blocks;
    else if (stage == Stage::mix_gradient)
      problem.keys = keys;
    problem.held_queries = held(false, problem.queries);
    problem.held_keys = held(true, problem.keys);
    problem.query_blocks = problem.queries.count;
    problem.key_blocks = problem.keys.count;
    if (!reads_out && !of_keys) problem.queries.count = 0;
    if (!of_keys) problem.keys.count = 0;
    require_chunks({problem.queries.first, problem.query_blocks});
    return {attention_, problem, masks_};
  }

  void require_blocks_of(Stage stage, const BlockRange& blocks, const BlockRange& keys) const {
    if (stage == Stage::summarize || stage == Stage::summarize_gradient)
      return require_blocks("keys", blocks, key_blocks().count);
    require_blocks("queries", blocks, query_blocks().count);
    if (stage == Stage::mix_gradient) require_blocks("keys", keys, key_blocks().count);
  }

  static void require_blocks(const char* argument, const BlockRange& blocks, Index all) {
    if (blocks.first < 0 || blocks.count < 0 || blocks.first > all - blocks.count)
      throw ShapeError({"mhla: ", argument, ": there are no blocks [", blocks.first, ", ",
                        blocks.first, " + ", blocks.count, "): the sequence has ", all});
  }
  void require_chunks(const BlockRange& blocks) const {
    constexpr Index chunk = RecurrentMixing::chunk;
    if (!recurs || blocks.count == 0) return;
    if (block_in_sequence(blocks.first) % chunk != 0 ||
        block_in_sequence(blocks.end()) % chunk != 0)
      throw ShapeError({"mhla: blocks: RecurrentMixing takes ", chunk, " blocks at a time: [",
                        blocks.first, ", ", blocks.end(), ") must begin at a multiple of ", chunk,
                        ", and end at one or with the sequence"});
  }

  V attention_;
  Problem problem_;
  // The blocks whose tokens tensors hold; none: those of a call.
  std::optional<BlockRange> held_queries_, held_keys_;
  StageMasks masks_;  // of which `attention_` has the tokens
};

/// \}

MHLA_NAMESPACE_END
