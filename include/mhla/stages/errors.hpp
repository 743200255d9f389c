// SPDX-License-Identifier: MIT
// What is said where stages (mhla/stages.hpp) do not compile.
#pragma once

#include <mhla/policy/variant.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// Rejects, at compile time, a variant whose stages need more than blocks of their own.
template <AttentionVariant V>
struct RequireStages {
  static_assert(!is_structured<V> || std::is_same_v<typename V::MixingType, RecurrentMixing>,
                "mhla: Stages have rows of the mixing matrix, or of RecurrentMixing's parameters: "
                "for another structured mixing use DenseMixing, with the matrix that mhla::expand "
                "makes");
  static_assert(!mixes_products<V>,
                "mhla: MixedProduct ties a token to the same offset of every other block, which a "
                "stage does not have: use MixedKeySum or Unnormalized for Stages");
};

#define MHLA_STAGE_ARGUMENTS                                                                    \
  "tensors are views of the scalar of Stages; rows and mix have its accumulator type; results " \
  "are not const; mhla::skip leaves a gradient out"

// Overloads that say why a call of a stage does not compile.
struct StageErrors {
  MHLA_NO_SUCH_CALL(
      static void summarize,
      "mhla: call summarize(executor, keys, k, v, summaries, workspace): " MHLA_STAGE_ARGUMENTS)
  MHLA_NO_SUCH_CALL(static void read_out,
                    "mhla: call read_out(executor, queries, {q, k, v, mix}, sums, y, "
                    "workspace): " MHLA_STAGE_ARGUMENTS)
  MHLA_NO_SUCH_CALL(
      static void read_out_gradient,
      "mhla: call read_out_gradient(executor, queries, {q, k, v, mix}, sums, dy, "
      "{dq, dk, dv, dmix}, update, {mixtures, denominators}, workspace): " MHLA_STAGE_ARGUMENTS)
  MHLA_NO_SUCH_CALL(static void mix_gradient,
                    "mhla: call mix_gradient(executor, queries, keys, mix, mixtures, "
                    "summary_gradients, workspace): " MHLA_STAGE_ARGUMENTS)
  MHLA_NO_SUCH_CALL(static void advance,
                    "mhla: call advance(executor, blocks, mix, sums, after, workspace), with "
                    "RecurrentMixing: " MHLA_STAGE_ARGUMENTS)
  MHLA_NO_SUCH_CALL(static void advance_gradient,
                    "mhla: call advance_gradient(executor, blocks, mix, sums, mixtures, {after, "
                    "before}, summary_gradients, dmix, update, workspace), with "
                    "RecurrentMixing: " MHLA_STAGE_ARGUMENTS)
  MHLA_NO_SUCH_CALL(static void summarize_gradient,
                    "mhla: call summarize_gradient(executor, keys, {q, k, v, mix}, "
                    "summary_gradients, dy, denominators, {dq, dk, dv, dmix}, update, "
                    "workspace): " MHLA_STAGE_ARGUMENTS)
  MHLA_NO_SUCH_CALL(static Index workspace_size,
                    "mhla: call workspace_size(stage, executor, blocks), and for mix_gradient "
                    "(stage, executor, queries, keys), with an mhla::Stage, an executor, or for "
                    "CudaStages an mhla::CudaDevice, and mhla::BlockRange")
};

#undef MHLA_STAGE_ARGUMENTS
/// \endcond

MHLA_NAMESPACE_END
