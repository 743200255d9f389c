# SPDX-License-Identifier: MIT
"""The attention by its definition (arXiv 2601.07832), pair of tokens by pair of tokens: quadratic, and
for any grid. What the operator is compared with."""
import torch


def blocks_of_tokens(tokens, block, grid):
    """The number of each token's block, in raster order, and its place in the block; the last blocks of an
    axis may be shorter."""
    axes = [tokens] if grid is None else grid
    block = [block] if isinstance(block, int) else block
    number = place = torch.zeros(1, dtype=torch.long)
    for extent, length in zip(axes, block):
        position = torch.arange(extent)
        number = (number[:, None] * -(-extent // length) + position // length).flatten()
        place = (place[:, None] * length + position % length).flatten()
    return number, place


def relu(x, epsilon=1e-6):
    return torch.relu(x) + epsilon


FEATURE_MAPS = {
    "relu": relu,
    "squared_relu": lambda x, epsilon: torch.relu(x).square() + epsilon,
    "elu_plus_one": lambda x, _: torch.nn.functional.elu(x) + 1,
    "exp": lambda x, _: x.exp(),
    "identity": lambda x, _: x,
    "softmax": lambda x, _: x.softmax(-1),
    "hedgehog": lambda x, _: torch.cat((2 * x, -2 * x), -1).softmax(-1),
}


def rotated(x, rotation, theta, grid):
    """Features turned by the positions of their tokens."""
    if rotation is None:
        return x
    pairs = x.shape[-1] // 2
    axes = [x.shape[2]] if grid is None else grid
    share = [pairs // len(axes)] * len(axes)
    share[0] += pairs - sum(share)
    angles = []
    for axis, count in enumerate(share):
        position = torch.arange(axes[axis], dtype=torch.float64)
        angle = position[:, None] * theta ** -(torch.arange(count, dtype=torch.float64) / max(count, 1))
        shape = [1] * len(axes) + [count]
        shape[axis] = axes[axis]
        angles.append(angle.view(shape).expand(*axes, count))
    angle = torch.cat(angles, -1).flatten(0, -2).to(x.dtype)
    cos, sin = angle.cos(), angle.sin()
    if rotation == "half_split":
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)
    a, b = x.unflatten(-1, (pairs, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def formula(q, k, v, mix, *, block, grid=None, key_block=None, key_grid=None, causal=False,
            normalizer="mixed_key_sum", normalizer_epsilon=1e-6, feature_map="relu", feature_epsilon=1e-6,
            rotation=None, theta=10000.0, scale=1.0, query_mask=None, key_mask=None, offsets=None,
            layout="bhnd", precision="exact"):
    """As mhla_torch.attention, of a dense mix; feature_map may be a function of x."""
    options = dict(causal=causal, normalizer=normalizer, normalizer_epsilon=normalizer_epsilon, theta=theta,
                   feature_map=feature_map, feature_epsilon=feature_epsilon, rotation=rotation, scale=scale)
    if layout == "bnhd":
        return formula(*(x.transpose(1, 2) for x in (q, k, v)), mix, block=block, grid=grid, key_block=key_block,
                       key_grid=key_grid, query_mask=query_mask, key_mask=key_mask, offsets=offsets,
                       **options).transpose(1, 2)
    if offsets is not None:
        return torch.cat([formula(*(x[:, :, a:b] for x in (q, k, v)), mix, block=block, **options)
                          for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist())], 2)
    phi = feature_map
    if isinstance(feature_map, str):
        def phi(x):
            return FEATURE_MAPS[feature_map](x, feature_epsilon)
    q, k = scale * phi(q), phi(k)
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    number, place = blocks_of_tokens(q.shape[2], block, grid)
    key_number = number
    if key_block is not None:
        key_number, _ = blocks_of_tokens(k.shape[2], key_block, key_grid)
    seen = mix[..., number, :][..., key_number]
    if mix.dim() == 3 and len(mix) != q.shape[1]:
        seen = seen.unflatten(0, (q.shape[0], -1))
    if key_mask is not None:
        seen = seen * key_mask[:, None, None, :]
        v = v.masked_fill(~key_mask[:, None, :, None], 0)
    if causal is True:
        seen = seen * torch.ones_like(seen).tril()
    elif causal == "block":
        seen = seen * (number[:, None] >= key_number)
    turned_q, turned_k = rotated(q, rotation, theta, grid), rotated(k, rotation, theta, key_grid or grid)
    y = (turned_q @ turned_k.mT * seen) @ v
    if normalizer == "mixed_key_sum":
        y = y / ((q @ k.mT * seen).sum(-1, keepdim=True) + normalizer_epsilon)
    elif normalizer == "mixed_product":
        blocks, places = mix.shape[-1], int(place.max()) + 1
        sums = k.new_zeros(*k.shape[:2], blocks, k.shape[3]).index_add(2, key_number, k)
        own = (q * sums[:, :, number]).sum(-1)  # each query with its own block's key sum
        by_place = own.new_zeros(*own.shape[:2], blocks * places).index_copy(2, number * places + place, own)
        mixed = mix @ by_place.unflatten(2, (blocks, places))
        y = y / (mixed.flatten(2)[:, :, number * places + place, None] + normalizer_epsilon)
    return y if query_mask is None else y.masked_fill(~query_mask[:, None, :, None], 0)
