// SPDX-License-Identifier: MIT
// What one sequence has of a stage's call on a packed batch.
#pragma once

#include <mhla/stages/blocks.hpp>
#include <mhla/stages/calls.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
namespace stages {

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
/// \endcond

MHLA_NAMESPACE_END
