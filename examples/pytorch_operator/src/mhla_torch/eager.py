# SPDX-License-Identifier: MIT
"""The attention in a time linear in the tokens by PyTorch's own operations, as the released code computes
it, for blocks of one size and a dense mix: what mhla_torch.bench is timed beside."""
import contextlib

import torch

from . import nn
from .formula import FEATURE_MAPS, rotated


@contextlib.contextmanager
def layers_by(other):
    """Layers of mhla_torch.nn compute by another attention."""
    kept, nn.attention = nn.attention, other
    try:
        yield
    finally:
        nn.attention = kept


def attention(q, k, v, mix, *, block, grid=None, causal=False, normalizer="mixed_key_sum",
              normalizer_epsilon=1e-6, feature_map="relu", feature_epsilon=1e-6, rotation=None, theta=10000.0,
              scale=1.0, layout="bhnd", precision="exact"):
    if layout == "bnhd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    kind, tokens = v.dtype, q.shape[2]
    q, k = (FEATURE_MAPS[feature_map](x, feature_epsilon) for x in (q, k))
    q = q * scale if scale != 1 else q
    turned_q, turned_k = (rotated(x, rotation, theta, grid).to(kind) for x in (q, k))
    if k.shape[1] != q.shape[1]:
        k, turned_k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, turned_k, v))
    mix = mix.to(kind)
    if causal:
        size = -(-tokens // block)
        mix = mix[:size, :size].tril()
        missing = size * block - tokens
        q, k, turned_q, turned_k, v = (torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x
                                       for x in (q, k, turned_q, turned_k, v))
    axes, extents = ([q.shape[2]], [block]) if grid is None else (grid, block)

    def cut(x):  # [batch, heads, blocks, tokens of a block, dim]
        shape = [part for extent, length in zip(axes, extents) for part in (extent // length, length)]
        x = x.unflatten(2, shape)
        order = [2 + 2 * axis for axis in range(len(axes))] + [3 + 2 * axis for axis in range(len(axes))]
        x = x.permute(0, 1, *order, x.dim() - 1)
        return x.flatten(2 + len(axes), 1 + 2 * len(axes)).flatten(2, 1 + len(axes))

    def join(x):
        counts = [extent // length for extent, length in zip(axes, extents)]
        x = x.unflatten(3, list(extents)).unflatten(2, counts)
        order = [part for axis in range(len(axes)) for part in (2 + axis, 2 + len(axes) + axis)]
        return x.permute(0, 1, *order, x.dim() - 1).flatten(2, 1 + 2 * len(axes))

    blocks_q, blocks_k, blocks_v = cut(turned_q), cut(turned_k), cut(v)
    summaries = blocks_k.mT @ blocks_v
    between = mix.tril(-1) if causal else mix
    mixed = (between @ summaries.flatten(3)).view(summaries.shape)
    y = blocks_q @ mixed
    own = mix.diagonal()[:, None, None]
    if causal:
        y = y + own * ((blocks_q @ blocks_k.mT).tril() @ blocks_v)
    if normalizer is not None:
        keys, queries = (blocks_k, blocks_q) if rotation is None else (cut(k), cut(q))
        sums = keys.sum(3)
        if normalizer == "mixed_product":
            divisor = mix @ (queries @ sums[..., None])[..., 0]
        else:
            divisor = (queries @ (between @ sums)[..., None])[..., 0]
            if causal:
                divisor = divisor + own[..., 0] * (queries @ keys.mT).tril().sum(-1)
        y = y / (divisor[..., None] + normalizer_epsilon)
    y = join(y)[:, :, :tokens]
    return y.transpose(1, 2) if layout == "bnhd" else y
