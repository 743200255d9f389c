// SPDX-License-Identifier: MIT
/// \defgroup distributed Several processes
/// A sequence too long for one machine, divided over ranks. Each has some whole blocks of
/// tokens, and asks for what it computes itself:
/// \code
/// // On every rank; `ranks` is an mhla::MpiCommunicator, or any other Communicator.
/// const mhla::Shares shares = mhla::equal_shares(sequence, call, ranks.size());
/// const auto layer = mhla::sequence_parallel<float>(sequence, call, ranks, shares);
/// const mhla::Workspace forward(layer.forward_workspace_size(executor));
/// layer.forward(executor, {q_view, k_view, v_view, mix_view}, y_view, forward);
/// const mhla::Workspace backward(layer.backward_workspace_size(executor));
/// layer.backward(executor, {q_view, k_view, v_view, mix_view}, dy_view,
///                {dq_view, dk_view, dv_view, dmix_view}, mhla::Update::overwrite, backward);
/// \endcode
/// By sequence, blocks' summaries travel; by heads, with `head_parallel` in its place, tokens do.
/// `propose_split` says which moves less, `explain` why. Engines: `<mhla/mpi.hpp>`,
/// `<mhla/nccl.hpp>`, or a Communicator of yours. On GPUs: `<mhla/cuda_distributed.hpp>`.
#pragma once

#include <mhla/distributed/communicator.hpp>
#include <mhla/distributed/head_parallel.hpp>
#include <mhla/distributed/propose_split.hpp>
#include <mhla/distributed/sequence_parallel.hpp>
#include <mhla/distributed/shares.hpp>
