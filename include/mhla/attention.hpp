// SPDX-License-Identifier: MIT
/// \defgroup attention Attention over Eigen tensors
/// Multi-Head Linear Attention (arXiv 2601.07832) as an Eigen expression. A variant of attention is
/// a type; its numbers are members:
/// \code
/// using Attention = mhla::Attention<mhla::Relu,           // feature map phi
///                                   mhla::Blocks2D,       // how tokens are cut into blocks
///                                   mhla::Bidirectional,  // what a query sees
///                                   mhla::MixedKeySum,    // what its sum is divided by
///                                   mhla::NoRotation,     // rotary embedding after phi
///                                   mhla::DenseMixing>;   // how blocks are mixed
/// const Attention attention{.blocks = {.grid = {32, 32}, .block = {8, 8}}};
/// \endcode
/// It is applied to tensors q [batch, heads, tokens, key_dim], k [batch, kv_heads, tokens,
/// key_dim], v [batch, kv_heads, tokens, value_dim] and a learned mix [1, heads or batch * heads,
/// query blocks, key blocks], or a structured mixing's parameters (\ref mixings); the result is
/// [batch, heads, tokens, value_dim]:
/// \code
/// y = attention(q, k, v, mix);
/// y.device(pool) = x + attention(q, k, v, mix) * 0.5f;       // composes as any Eigen expression
/// y.device(pool) = attention(q, k, v, mix).with(workspace);  // allocates nothing
/// y.device(pool) = attention(q, k, v, mix).save(state);      // keeps summaries for backward
///
/// mhla::gradients(dq, dk, dv, dmix).device(pool) = attention.backward(q, k, v, mix, dy);
/// mhla::gradients(dq, mhla::skip, dv, dmix) += attention.backward(q, k, v, mix, dy).saved(state);
/// \endcode
/// Operands are tensors, maps, lazy expressions and views (mhla::TensorView), RowMajor or, with the
/// axes reversed, ColMajor; mhla::tokens_first(q) reads [batch, tokens, heads, dim], and
/// mhla::heads_view the columns of an Eigen::Matrix [tokens, heads * dim]. Tensors are read and
/// written in place; a lazy operand takes one temporary, and so does the result where it
/// is part of a larger expression or shares memory with an operand. Each evaluation allocates its
/// workspace unless .with(workspace) provides one, or the expression is of an mhla::CpuPlan.
///
/// Wrong types do not compile; wrong sizes throw ShapeError before anything is allocated or
/// written. `tensor = expression` resizes the tensor to the result; with .device(...) a destination
/// keeps its shape. On one machine results have the same bits on every CPU device, with any number
/// of threads.
///
/// See also: mhla::Attention has the equations, \ref core_calls the same calls on views without
/// Eigen, \ref mixing_matrix initial values of mix.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/cpu/explain.hpp>
#include <mhla/eigen/gradient_op.hpp>
