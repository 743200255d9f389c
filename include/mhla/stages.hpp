// SPDX-License-Identifier: MIT
/// \defgroup stages Stages
/// What a whole pass does in turn, on blocks of a sequence: for caches of summaries, and for
/// sequences that are divided.
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
/// end (BasicStages); positions of a rotation are those of the whole sequence, with which neither
/// a stage's time nor its memory grows, except by sums and rows of mix that it is given. What
/// passes from stage to stage is matrices whose row b is all that block b leaves, for the whole
/// batch, so that some blocks are some rows: an all-gather appends them, a reduce-scatter adds them
/// up and scatters the sums.
///
/// forward_into and backward_into are these stages, called in turn: however blocks are divided,
/// y, dq and dmix have their bits, and so have dk and dv, unless feature_dim is not a multiple of
/// 16 under Bidirectional with more than 128 query blocks, or with a matrix for each of the query
/// heads that share a kv head. `mix_gradient` then is given all query blocks that see its keys;
/// sums of several calls differ in rounding.
///
/// With Precision::fast `summarize` and `read_out` round what they multiply, but mix in the
/// accumulator type: y has the same bits however blocks are divided, though not those of
/// forward_into, which also rounds what it mixes. Gradients are always exact. Pass their stages the
/// sums that `exact()` summarizes: in rounded sums, a mean that all values share shows as an error.
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
/// mhla::TensorView<float, 2> sums, before, after, mixtures, dens, dsums, dbefore, dafter;
/// mhla::TensorView<float, 3> drows;  // of dmix, as rows of mix
/// stages.summarize(executor, own, k_view, v_view, sums, workspace);
/// // Receive `before`,
/// stages.advance(executor, own, rows, {sums, before}, after, workspace);
/// // send `after`.
/// const mhla::OperandViews<float> x{q_view, k_view, v_view, rows};
/// stages.read_out(executor, own, x, {sums, before}, y_view, workspace);
///
/// stages.read_out_gradient(executor, own, x, {sums, before}, dy_view,
///                          {dq_view, mhla::skip, mhla::skip, mhla::skip}, mhla::Update::overwrite,
///                          {mixtures, dens}, workspace);
/// // Receive `dafter`,
/// stages.advance_gradient(executor, own, rows, {sums, before}, mixtures, {dafter, dbefore},
///                         dsums, drows, mhla::Update::overwrite, workspace);
/// // send `dbefore`.
/// stages.summarize_gradient(executor, own, x, dsums, dy_view, dens,
///                           {mhla::skip, dk_view, dv_view, drows}, mhla::Update::overwrite,
///                           workspace);
/// \endcode
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/cpu/stage_runs.hpp>
#include <mhla/stages/basic_stages.hpp>

MHLA_NAMESPACE_BEGIN

/// The stages of V, an attention, packed or not, over tensors of T, on any Executor.
/// \ingroup stages
template <class V, class T = void>
using Stages = BasicStages<V, T, cpu::StageBackend>;

MHLA_NAMESPACE_END
