# SPDX-License-Identifier: MIT
"""Multi-Head Linear Attention (arXiv 2601.07832) for PyTorch: a function and a layer."""
from pathlib import Path

import torch
from torch import library

torch.ops.load_library(next(Path(__file__).parent.glob("_C*")))
_operators = torch.ops.mhla_torch


def attention(q, k, v, mix, *, block, grid=None, causal=False, normalize=True, scale=1.0):
    """Attention over tensors of any strides, in time linear in the tokens. Features are relu(x) + 1e-6.

    q [batch, heads, tokens, dim]; k, v [batch, kv_heads, tokens, dim], heads a multiple of kv_heads;
    mix [blocks, blocks] or [heads, blocks, blocks]: what a query's block (row) takes from each block
    of keys (column). float32, float64, or bfloat16 with a mix of float32.

    block      tokens of a block: an int for sequences, else an extent for each axis of the grid
    grid       (rows, columns) or (frames, rows, columns) of tokens in raster order; None: a sequence
    causal     a token sees itself and those before it; sequences only
    normalize  weights sum to one; without, put an RMS norm behind it
    """
    if q.dtype == torch.bfloat16:
        mix = mix.float()  # sums are float32, and so is what they are mixed with
    return _operators.attention(q, k, v, mix, _extents(block), _extents(grid), causal, normalize, scale)


def initial_mix(*, block, grid, causal=False):
    """[blocks, blocks] to begin training from: larger for near blocks than for far ones; causal: the
    mean of a block and those before it. grid: the tokens, a number for sequences."""
    return _operators.initial_mix(_extents(block), _extents(grid), causal)


class MultiHeadLinearAttention(torch.nn.Module):
    """[batch, tokens, dim] -> [batch, tokens, dim], with projections and a learned mix.

    grid: the tokens; a number for sequences of at most that length, or an extent for each axis."""

    def __init__(self, dim, heads, *, block, grid, kv_heads=None, causal=False, normalize=True):
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim is {dim}, which does not make {heads} heads of equal size")
        self.heads = [heads, kv_heads or heads, kv_heads or heads]
        self.options = dict(block=block, grid=None if isinstance(grid, int) else grid, causal=causal,
                            normalize=normalize)
        self.qkv = torch.nn.Linear(dim, sum(self.heads) * (dim // heads))
        self.mix = torch.nn.Parameter(initial_mix(block=block, grid=grid, causal=causal))
        self.out = torch.nn.Linear(dim, dim)

    def forward(self, x):
        packed = self.qkv(x).unflatten(-1, (sum(self.heads), -1)).transpose(1, 2)
        q, k, v = packed.split(self.heads, dim=1)  # views: the operator reads them where they are
        y = attention(q, k, v, self.mix, **self.options)
        return self.out(y.transpose(1, 2).flatten(2))

    @torch.no_grad()
    def project(self):
        """After each step of the optimizer: weights of the mix stay between 0 and 1."""
        self.mix.clamp_(0, 1)


def _extents(extents):
    return [] if extents is None else [extents] if isinstance(extents, int) else list(extents)


# What follows tells PyTorch of the operators' shapes, for torch.compile, and of their derivatives.


@library.register_fake("mhla_torch::attention")
def _(q, k, v, mix, *options):
    batch, heads, tokens, _ = q.shape
    return q.new_empty(batch, tokens, heads, v.shape[3]).transpose(1, 2)


@library.register_fake("mhla_torch::attention_backward")
def _(dy, q, k, v, mix, *options):
    return [torch.empty_like(x) for x, wanted in zip((q, k, v, mix), options[-1]) if wanted]


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:4])
    ctx.options = inputs[4:]


def _backward(ctx, dy):
    wanted = ctx.needs_input_grad[:4]
    gradients = iter(_operators.attention_backward(dy, *ctx.saved_tensors, *ctx.options, wanted))
    return *(next(gradients) if w else None for w in wanted), *(None for _ in ctx.options)


def _refuse(ctx, *gradients):
    raise RuntimeError("mhla_torch: attention has first derivatives only; "
                       "call backward without create_graph=True")


library.register_autograd("mhla_torch::attention", _backward, setup_context=_save)
library.register_autograd("mhla_torch::attention_backward", _refuse)
