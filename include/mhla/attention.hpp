// SPDX-License-Identifier: MIT
// The front door: Multi-Head Linear Attention (arXiv 2601.07832) over Eigen tensors.
//
// A variant of attention is a type; its numbers are members:
//
//   using Attention = mhla::Attention<mhla::Relu,           // feature map phi
//                                     mhla::Blocks2D,       // how tokens are cut into blocks
//                                     mhla::Bidirectional,  // what a query sees
//                                     mhla::MixedKeySum,    // what its sum is divided by
//                                     mhla::NoRotation>;    // rotary embedding after phi
//   const Attention attention{.blocks = {.grid = {32, 32}, .block = {8, 8}}};
//
// It is applied to tensors q [batch, heads, tokens, key_dim], k [batch, kv_heads, tokens, key_dim],
// v [batch, kv_heads, tokens, value_dim] and a learned mix [1 | heads, query blocks, key blocks]:
//
//   y = attention(q, k, v, mix);                              // [batch, heads, tokens, value_dim]
//   y.device(pool) = x + attention(q, k, v, mix) * 0.5f;      // composes as any Eigen expression
//   y.device(pool) = attention(q, k, v, mix).with(workspace);  // allocates nothing
//   y.device(pool) = attention(q, k, v, mix).save(state);     // keeps summaries for backward
//
//   mhla::gradients(dq, dk, dv, dmix).device(pool) = attention.backward(q, k, v, mix, dy);
//   mhla::gradients(dq, mhla::skip, dv, dmix) += attention.backward(q, k, v, mix, dy).saved(state);
//
// Operands are tensors, maps, lazy expressions and views (mhla::TensorView), RowMajor or, with the
// axes reversed, ColMajor; mhla::tokens_first(q) reads [batch, tokens, heads, dim], and
// mhla::heads_view the columns of an Eigen::Matrix [tokens, heads * dim]. Tensors are
// read and written where they lie; a lazy operand takes one temporary, and so does the result where
// it is part of a larger expression or shares memory with an operand. The workspace lives for one
// evaluation unless .with(workspace) brings one.
//
// Wrong types do not compile, wrong sizes throw ShapeError before anything is allocated or written.
// `tensor = expression` gives the tensor the result's shape, once the result is there; with
// .device(...) a destination keeps its own. Results are the same bits on every device, with any
// number of threads.
//
// From here: policy/variant.hpp has the equations and every policy, cpu/pipeline.hpp the same calls
// on views without Eigen, mixing_matrix.hpp initial values of mix.
#pragma once

#include <mhla/core/error.hpp>
#include <mhla/core/forward_state.hpp>
#include <mhla/core/gradient_views.hpp>
#include <mhla/core/tensor_view.hpp>
#include <mhla/core/workspace.hpp>
#include <mhla/cpu/pipeline.hpp>
#include <mhla/eigen/forward_evaluator.hpp>
#include <mhla/eigen/forward_op.hpp>
#include <mhla/eigen/gradient_op.hpp>
#include <mhla/eigen/matrix_views.hpp>
#include <mhla/eigen/tensor_views.hpp>
#include <mhla/eigen/thread_pool_executor.hpp>
#include <mhla/policy/variant.hpp>
