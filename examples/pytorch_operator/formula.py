# SPDX-License-Identifier: MIT
"""The attention by its definition, pair of tokens by pair of tokens: quadratic, and for any grid."""
import torch

EPSILON = 1e-6


def block_of_tokens(tokens, block, grid):
    """The number of each token's block, in raster order; the last ones of an axis may be shorter."""
    axes = [tokens] if grid is None else grid
    block = [block] if isinstance(block, int) else block
    number = torch.zeros(1, dtype=torch.long)
    for extent, length in zip(axes, block):
        along_axis = torch.arange(extent) // length
        number = (number[:, None] * -(-extent // length) + along_axis).flatten()
    return number


def relu(x):
    return torch.relu(x) + EPSILON


def formula(q, k, v, mix, *, block, grid=None, key_block=None, key_grid=None, causal=False,
            normalize=True, scale=1.0, feature_map=relu):
    q, k = feature_map(q), feature_map(k)
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    number = block_of_tokens(q.shape[2], block, grid)
    key_number = number if key_block is None else block_of_tokens(k.shape[2], key_block, key_grid)
    weights = scale * (q @ k.mT) * mix[..., number, :][..., key_number]
    if causal:
        weights = weights.tril()
    y = weights @ v
    return y / (weights.sum(-1, keepdim=True) + EPSILON) if normalize else y
