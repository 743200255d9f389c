// SPDX-License-Identifier: MIT
// A call of a stage (mhla/stages.hpp) as a value: the blocks that it runs on, and its views, which
// `visit` lists with what each holds; what one sequence of a packed batch has of it; and the checks
// that every backend makes before anything is written. A view that the variant, or these blocks, do
// not use is not on the list.
#pragma once

#include <mhla/stages/blocks.hpp>

MHLA_NAMESPACE_BEGIN

/// \addtogroup stages
/// \{

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

  /// One update for both.
  constexpr QueryUpdate(Update both) : query(both), mix(both) {}  // NOLINT: reads as one
  /// One for each.
  constexpr QueryUpdate(Update of_query, Update of_mix) : query(of_query), mix(of_mix) {}
};

/// \}

/// \cond INTERNAL
namespace stages {

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

// The key blocks of a call, of which mix_gradient alone has others than its `blocks`.
template <class Call>
BlockRange keys_of(const Call& call) {
  if constexpr (requires { call.keys; })
    return call.keys;
  else
    return call.blocks;
}

template <class Call, class Blocks, class F>
void visit_sums(Call& call, const Blocks& of, const F& f) {
  f("summaries", Holds::seen, call.sums.summaries);
  if (of.has_states_before(call.blocks.first)) f("states", Holds::states, call.sums.states);
}
template <class Call, class Blocks, class F>
void visit_operands(Call& call, const Blocks& of, const F& f) {
  f("q", Holds::query, call.x.q);
  if constexpr (Blocks::sees_own) {
    f("k", Holds::key, call.x.k);
    f("v", Holds::value, call.x.v);
  }
  f("mix", Holds::mix, call.x.mix);
  visit_sums(call, of, f);
}

template <class T>
struct Summarize {
  static constexpr Stage stage = Stage::summarize;
  BlockRange blocks;
  TensorView<const T, 4> k;
  TensorView<const T, 4> v;
  TensorView<Accumulator<T>, 2> summaries;

  template <class Call, class Blocks, class F>
  static void visit(Call& call, const Blocks&, const F& f) {
    f("k", Holds::key, call.k);
    f("v", Holds::value, call.v);
    f("summaries", Holds::summaries, call.summaries);
  }
};

template <class T>
struct ReadOut {
  static constexpr Stage stage = Stage::read_out;
  BlockRange blocks;
  OperandViews<T> x;
  Sums<Accumulator<T>> sums;
  TensorView<T, 4> y;

  template <class Call, class Blocks, class F>
  static void visit(Call& call, const Blocks& of, const F& f) {
    visit_operands(call, of, f);
    f("y", Holds::output, call.y);
  }
};

template <class T>
struct ReadOutGradient {
  static constexpr Stage stage = Stage::read_out_gradient;
  BlockRange blocks;
  OperandViews<T> x;
  Sums<Accumulator<T>> sums;
  TensorView<const T, 4> dy;
  GradientView<T, 4> dq;
  GradientView<Accumulator<T>, 3> dmix;
  Update update;  // of dq
  Update mix_update;
  QueryRows<Accumulator<T>> left;

  template <class Call, class Blocks, class F>
  static void visit(Call& call, const Blocks& of, const F& f) {
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
struct Advance {
  static constexpr Stage stage = Stage::advance;
  BlockRange blocks;
  TensorView<const Accumulator<T>, 3> mix;
  Sums<Accumulator<T>> sums;
  TensorView<Accumulator<T>, 2> after;

  template <class Call, class Blocks, class F>
  static void visit(Call& call, const Blocks& of, const F& f) {
    f("mix", Holds::mix, call.mix);
    visit_sums(call, of, f);
    f("after", Holds::states, call.after);
  }
};

template <class T>
struct AdvanceGradient {
  static constexpr Stage stage = Stage::advance_gradient;
  BlockRange blocks;
  TensorView<const Accumulator<T>, 3> mix;
  Sums<Accumulator<T>> sums;
  TensorView<const Accumulator<T>, 2> mixtures;
  StateGradients<Accumulator<T>> states;
  TensorView<Accumulator<T>, 2> summary_gradients;
  GradientView<Accumulator<T>, 3> dmix;
  Update mix_update;

  template <class Call, class Blocks, class F>
  static void visit(Call& call, const Blocks& of, const F& f) {
    f("mix", Holds::mix, call.mix);
    visit_sums(call, of, f);
    f("mixtures", Holds::mixtures, call.mixtures);
    if (of.has_states_before(call.blocks.end())) f("after", Holds::states, call.states.after);
    if (of.has_states_before(call.blocks.first)) f("before", Holds::states, call.states.before);
    f("summary_gradients", Holds::summaries, call.summary_gradients);
    if (call.dmix.wanted) f("dmix", Holds::mix, call.dmix.view);
  }
};

template <class T>
struct MixGradient {
  static constexpr Stage stage = Stage::mix_gradient;
  BlockRange blocks;
  BlockRange keys;
  TensorView<const Accumulator<T>, 3> mix;
  TensorView<const Accumulator<T>, 2> mixtures;
  TensorView<Accumulator<T>, 2> summary_gradients;

  template <class Call, class Blocks, class F>
  static void visit(Call& call, const Blocks&, const F& f) {
    f("mix", Holds::mix, call.mix);
    f("mixtures", Holds::mixtures, call.mixtures);
    f("summary_gradients", Holds::summaries, call.summary_gradients);
  }
};

template <class T>
struct SummarizeGradient {
  static constexpr Stage stage = Stage::summarize_gradient;
  BlockRange blocks;
  OperandViews<T> x;
  TensorView<const Accumulator<T>, 2> summary_gradients;
  TensorView<const T, 4> dy;
  TensorView<const Accumulator<T>, 2> denominators;
  GradientView<T, 4> dk;
  GradientView<T, 4> dv;
  GradientView<Accumulator<T>, 3> dmix;
  Update update;  // of dk and dv; dmix is added to

  template <class Call, class Blocks, class F>
  static void visit(Call& call, const Blocks&, const F& f) {
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

// The problem of one sequence.
template <bool recurs>
Problem problem_of(const SequencePart& sequence, Problem packed) {
  Shape& shape = packed.shape;
  packed.sequences = 1;
  shape.query_tokens = shape.key_tokens = sequence.length;
  packed.query_grid.extent[2] = packed.key_grid.extent[2] = sequence.length;
  packed.queries = packed.keys = {0, sequence.blocks};
  packed.query_blocks = packed.key_blocks = sequence.blocks;
  if (!recurs) shape.mix_query_blocks = shape.mix_key_blocks = sequence.blocks;
  return packed;
}

// The call of a sequence whose stages are `of`. The first row of summaries that queries read is
// block `first_seen`'s.
template <class Call, class Blocks>
Call part_of(const Call& call, const SequencePart& sequence, const Blocks& of, Index first_seen) {
  Call part = call;
  part.blocks = sequence.of(call.blocks);
  if constexpr (requires { part.keys; }) part.keys = sequence.part;
  const Index row = sequence.first_block + part.blocks.first - call.blocks.first;
  Call::visit(
      part, of, [&]<class X, int rank>(const char*, Holds holds, TensorView<X, rank>& view) {
        if constexpr (rank == 4) {
          view = blocks_along(2, view, sequence.tokens);
        } else if constexpr (rank == 3) {  // the corner that it uses
          view = columns_of(
              rows_of(view, of.mix_rows(part.blocks)),
              of.mix_columns(Call::stage == Stage::mix_gradient ? keys_of(part) : of.key_blocks()));
        } else if (holds == Holds::summaries) {
          view = rows_of(view, sequence.rows);
        } else if (holds == Holds::seen && !Blocks::recurs) {  // as far as they are there
          const Index first = sequence.first_block - first_seen;
          view =
              rows_of(view, {first, std::clamp(view.extent[0] - first, Index{0}, sequence.blocks)});
        } else if (holds != Holds::states) {
          view = rows_of(view, {row, part.blocks.count});
          if (holds == Holds::denominators)  // fewer if the sequence is shorter than a block
            view = blocks_along(1, view, {0, of.denominator_size()});
        }
      });
  return part;
}

}  // namespace stages

// Throws ShapeError unless a view of a call has the extents of what it holds.
template <class V, class T>
class StageViews {
 public:
  template <class Call>
  StageViews(const StageBlocks<V, T>& of, const Call& call)
      : of_(of), stage_(Call::stage), blocks_(call.blocks), keys_(stages::keys_of(call)) {
    of.require_blocks_of(stage_, blocks_, keys_);
    if (stage_ == Stage::advance && blocks_.end() == of.query_blocks().count)
      throw ShapeError({"mhla: blocks: [", blocks_.first, ", ", blocks_.end(),
                        ") ends the sequence: no blocks follow that receive states"});
  }

  // Tokens.
  template <class X>
  void require_view(const char* name, stages::Holds holds, const TensorView<X, 4>& tensor) const {
    using stages::Holds;
    const Shape& shape = of_.problem_.shape;
    const bool of_keys = holds == Holds::key || holds == Holds::value;
    const BlockRange held = (of_keys ? of_.held_keys_ : of_.held_queries_).value_or(blocks_);
    if (blocks_.count > 0 && (blocks_.first < held.first || blocks_.end() > held.end()))
      throw ShapeError({"mhla: ", of_keys ? "keys" : "queries", ": tensors hold blocks [",
                        held.first, ", ", held.end(), "), not all of [", blocks_.first, ", ",
                        blocks_.end(), ")"});
    const bool of_values = holds == Holds::output || holds == Holds::value;
    require_extents(tensor, name, shape.batch, of_keys ? shape.kv_heads : shape.heads,
                    of_keys ? of_.key_tokens(held) : of_.query_tokens(held),
                    of_values ? shape.value_dim : shape.key_dim,
                    "a stage's tensors have the tokens of its blocks");
  }

  template <class X>
  void require_view(const char* name, stages::Holds, const TensorView<X, 3>& mix) const {
    const Shape& shape = of_.problem_.shape;
    require_extents(
        mix, name, shape.mix_heads, of_.mix_rows(blocks_).count,
        stage_ == Stage::mix_gradient ? of_.mix_columns(keys_).count : shape.mix_key_blocks,
        "a stage's mix has the rows and columns of its blocks");
  }

  // A row for each block, or for each state.
  template <class X>
  void require_view(const char* name, stages::Holds holds, const TensorView<X, 2>& rows) const {
    using stages::Holds;
    const bool sums = holds == Holds::summaries || holds == Holds::seen;
    const Index size = sums                           ? of_.summary_size()
                       : holds == Holds::denominators ? of_.denominator_size()
                                                      : of_.mixture_size();
    if (holds == Holds::states)
      require_extent(name, "states", rows.extent[0], of_.num_states(),
                     "it has a row for each state");
    else if (holds == Holds::seen && !of_.recurs)
      require_seen(name, rows.extent[0]);
    else
      require_extent(name, "blocks", rows.extent[0],
                     holds == Holds::summaries ? keys_.count : blocks_.count,
                     "it has a row for each block");
    require_extent(name, "elements", rows.extent[1], size, "a row has what a block leaves");
    if (rows.size() > 0 && size > 1)
      require_extent(name, "elements' stride", rows.stride[1], 1, "a row is contiguous");
  }

 private:
  // Summaries of the key blocks, up to the last that queries see at least.
  void require_seen(const char* name, Index rows) const {
    const BlockRange keys = of_.key_blocks(blocks_);
    const Index seen = is_causal<V>
                           ? (std::max)(Index{0}, blocks_.end() - keys.first - lag_of(sight_of<V>))
                           : keys.count;
    if (rows < seen || rows > keys.count)
      throw ShapeError({"mhla: ", name, ": axis blocks is ", rows, " but must be ", seen,
                        " or more, which the queries see, and at most ", keys.count});
  }

  const StageBlocks<V, T>& of_;
  Stage stage_;
  BlockRange blocks_;
  BlockRange keys_;
};
/// \endcond

MHLA_NAMESPACE_END
