// SPDX-License-Identifier: MIT
// The checks of a stage's call (stages/calls.hpp), which every backend makes before anything is
// written.
#pragma once

#include <mhla/stages/blocks.hpp>
#include <mhla/stages/calls.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
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
    const BlockRange held = of_keys ? of_.held_keys(blocks_) : of_.held_queries(blocks_);
    if (blocks_.count > 0 && (blocks_.first < held.first || blocks_.end() > held.end()))
      throw ShapeError({"mhla: ", of_keys ? "keys" : "queries", ": tensors hold blocks [",
                        held.first, ", ", held.end(), "), not all of [", blocks_.first, ", ",
                        blocks_.end(), ")"});
    const bool of_values = holds == Holds::output || holds == Holds::value;
    require_extents(tensor, name, shape.batch, of_keys ? shape.kv_heads : shape.heads,
                    of_keys ? of_.key_tokens(held) : of_.query_tokens(held),
                    of_values ? shape.value_dim : shape.key_dim,
                    "a stage's tensors have the tokens of its blocks");
    require_aligned(tensor, name);
  }

  template <class X>
  void require_view(const char* name, stages::Holds, const TensorView<X, 3>& mix) const {
    const Shape& shape = of_.problem_.shape;
    require_extents(
        mix, name, shape.mix_heads, of_.mix_rows(blocks_).count,
        stage_ == Stage::mix_gradient ? of_.mix_columns(keys_).count : shape.mix_key_blocks,
        "a stage's mix has the rows and columns of its blocks");
    require_aligned(mix, name);
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
    require_aligned(rows, name);
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

// Throws unless a call's views fit; returns the memory that it touches.
template <class V, class T, class Call>
Footprint checked_stage(const StageBlocks<V, T>& of, const V& attention, const Call& call,
                        WorkspaceView workspace) {
  const StageViews<V, T> views(of, call);
  Footprint footprint;
  Call::visit(call, of,
              [&]<class X, int rank>(const char* name, stages::Holds holds,
                                     const TensorView<X, rank>& view) {
                views.require_view(name, holds, view);
                if constexpr (std::is_const_v<X>)
                  footprint.reads(view, name);
                else
                  footprint.writes(view, name);
              });
  require_apart(footprint, attention, workspace, {});
  return footprint;
}
/// \endcond

MHLA_NAMESPACE_END
