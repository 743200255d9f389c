# SPDX-License-Identifier: MIT
"""Multi-Head Linear Attention (arXiv 2601.07832) for PyTorch: functions here, layers in mhla_torch.nn."""
from pathlib import Path

import torch
from torch import library

torch.ops.load_library(next(Path(__file__).parent.glob("_C*")))
from . import compiling, variants  # noqa: E402: they take the operators

_operators = torch.ops.mhla_torch
_SIXTEEN_BITS = (torch.bfloat16, torch.float16)
TRANSFORMS = ("automatic", "linear", "cos", "exp", "gaussian", "local", "uniform", "identity", "causal")
MAX_MODES = ("global", "row")
NORM_AXES = ("automatic", "column", "row", None)


def attention(q, k, v, mix, *, block, grid=None, key_block=None, key_grid=None, causal=False,
              feature_map="relu", feature_epsilon=1e-6, nu=4, normalizer="mixed_key_sum",
              normalizer_epsilon=1e-6, rotation=None, theta=10000.0, scale=1.0, mixing="dense",
              mixing_size=1, offsets=None, query_mask=None, key_mask=None, layout="bhnd", precision="exact"):
    """Attention over tensors of any strides, in a time linear in the tokens.

    q [batch, heads, tokens, dim]; k, v [batch, kv_heads, tokens, dim], heads a multiple of kv_heads;
    mix [blocks, blocks], [heads, blocks, blocks] or [batch * heads, blocks, blocks]: what a query's
    block (row) takes from each block of keys (column). float32, float64, bfloat16 or float16; mix of
    16-bit tensors is float32. Returns y, shaped as q with the dim of v.

    block, grid        Without grid, tokens are a sequence in blocks of `block`, the last may be shorter.
                       With grid, (rows, columns) or (frames, rows, columns), they are in raster order,
                       and block is an extent for each axis. Tokens in block order, as the released
                       vision models keep them, [batch, blocks, tokens of a block, dim], are a sequence:
                       flatten the two axes, and block is their tokens of a block.
    key_block, key_grid  the same for the keys of cross-attention; by default those of the queries
    causal             False; True: a token attends to itself and to earlier tokens; "block": also to the
                       later tokens of its own block. Sequences only
    feature_map        "relu": relu(x) + feature_epsilon, "squared_relu", "elu_plus_one", "exp",
                       "identity", "softmax", "hedgehog", "dpfp" (of nu)
    normalizer         "mixed_key_sum": divides by the mixed key sums, as the paper; "mixed_product": as the
                       released vision models; None: does not divide, as Wan and the language model, where
                       an RMS norm follows. normalizer_epsilon is added to the divisor
    rotation           of features, after the map: "half_split", pairs (j, j + dim / 2) of a sequence;
                       "axial", pairs (2j, 2j + 1) shared out to the axes of the grid; with theta
    scale              multiplies the features of q
    mixing             "dense"; "separable": mix is [mixing_size, sum of blocks^2 along the axes];
                       "recurrent": mix is [blocks or 1, 3 mixing_size + 1], causal only
    offsets            [sequences + 1], int64: the batch of 1 holds sequences end to end
    query_mask, key_mask  [batch, tokens], bool: which tokens are real; causal: one and the same
    layout             "bhnd"; "bnhd": q, k, v and the result are [batch, tokens, heads, dim]
    precision          "exact", or "fast": bfloat16 tensors are multiplied in 16 bits on the CPU
    """
    if torch.is_autocast_enabled(q.device.type):
        q, k, v = (x.to(torch.get_autocast_dtype(q.device.type)) for x in (q, k, v))
    if q.dtype in _SIXTEEN_BITS:
        mix = mix.float()  # sums are float32, and so is what they are mixed with
    if layout == "bnhd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    elif layout != "bhnd":
        raise ValueError(f'mhla: layout is {layout!r}, but must be "bhnd" or "bnhd"')
    if precision not in ("exact", "fast"):
        raise ValueError(f'mhla: precision is {precision!r}, but must be "exact" or "fast"')
    if query_mask is not None or key_mask is not None:
        if offsets is not None:
            raise ValueError("mhla: offsets pack sequences end to end, and masks are of padded ones: give one")
        batch = "padded"
    else:
        batch = None if offsets is None else "packed"
    y = _operators.attention(q, k, v, mix, offsets, query_mask, key_mask, *_variant(
        q.dtype, batch, block=block, grid=grid, key_block=key_block, key_grid=key_grid, causal=causal,
        feature_map=feature_map, feature_epsilon=feature_epsilon, nu=nu, normalizer=normalizer,
        normalizer_epsilon=normalizer_epsilon, rotation=rotation, theta=theta, scale=scale, mixing=mixing,
        mixing_size=mixing_size), precision == "fast")
    return y.transpose(1, 2) if layout == "bnhd" else y


def _variant(dtype, batch=None, *, block, grid=None, key_block=None, key_grid=None, causal=False,
             feature_map="relu", feature_epsilon=1e-6, nu=4, normalizer="mixed_key_sum",
             normalizer_epsilon=1e-6, rotation=None, theta=10000.0, scale=1.0, mixing="dense", mixing_size=1):
    """The name of a variant, which is compiled by then, its extents and its numbers."""
    if causal and grid is not None:
        raise ValueError("mhla: causal attention takes no grid")
    axes, extents = _extents(block, grid)
    key_extents = [0] * 6 if key_block is None else _extents(key_block, key_grid)[1]
    scalar = str(dtype).removeprefix("torch.")
    if scalar not in variants.SCALARS:
        raise TypeError(f"mhla: q is of {dtype}, but must be of float32, float64, bfloat16 or float16")
    variant = variants.name(scalar, feature_map=feature_map, axes=axes, causal=causal, normalizer=normalizer,
                            rotation=rotation, mixing=mixing, batch=batch)
    _ready(variant)
    return (variant, [*extents, *key_extents, mixing_size, nu],
            [float(scale), float(feature_epsilon), float(normalizer_epsilon), float(theta)])


class Decoder:
    """Causal attention token by token, from a state that it keeps, on the CPU:

        decoder = mhla_torch.Decoder(mix, heads=8, dim=64, block=64, normalizer=None)
        y = decoder.step(q, k, v)              # the next tokens of all sequences, any number of them
        y = decoder.prefill(3, q, k, v)        # those of one sequence, with a batch of 1

    batch      sequences, each with a length of its own
    heads, kv_heads, dim, value_dim   of q, k and v, which are [batch, heads, tokens, dim] of `dtype`
    max_tokens of a sequence that a "recurrent" mix of one row does not limit, if there is a rotation

    mix, which is copied, and the other options are those of mhla_torch.attention; causal is True. Has no
    gradients. Results are those of mhla_torch.attention over the whole sequence, but for rounding."""

    def __init__(self, mix, *, heads, dim, block, batch=1, kv_heads=None, value_dim=None, max_tokens=0,
                 dtype=torch.float32, **options):
        variant = _variant(dtype, block=block, causal=True, **options)
        sums = torch.float64 if dtype == torch.float64 else torch.float32
        self._decoder = torch.classes.mhla_torch.Decoder(
            mix.detach().to("cpu", sums), [batch, heads, kv_heads or heads, dim, value_dim or dim, max_tokens],
            *variant)

    def step(self, q, k, v):
        """y of the next tokens of every sequence."""
        return self._decoder.step(q, k, v)

    def prefill(self, sequence, q, k, v):
        """y of the next tokens of one sequence, [1, heads, tokens, dim]."""
        return self._decoder.prefill(sequence, q, k, v)

    def reset(self, sequence):
        """Forgets the tokens of a sequence."""
        self._decoder.reset(sequence)

    def position(self, sequence):
        """Tokens that a sequence has seen."""
        return self._decoder.position(sequence)

    @property
    def capacity(self):
        """The most tokens of a sequence: mix has no row for the next one."""
        return self._decoder.capacity()


def initial_mix(*, block, grid, key_block=None, key_grid=None, causal=False, transform="automatic",
                max_mode="global", norm_axis="automatic", exp_sigma=3.0, local_threshold=1.5):
    """[blocks, blocks] to begin training from: larger for near blocks than for far ones; causal: the
    mean of a block and those before it. grid: the tokens, a number for sequences. The defaults are those
    of the released code; the paper has max_mode="row" and norm_axis="row".

    transform  of the distance between blocks: one of TRANSFORMS
    max_mode   what distances are relative to: one of MAX_MODES
    norm_axis  what sums to one: one of NORM_AXES
    """
    if transform == "automatic":
        transform = "causal" if causal else "linear"
    queries = _extents(block, [grid] if isinstance(grid, int) else grid)[1]
    keys = queries
    if key_block is not None:
        keys = _extents(key_block, [key_grid] if isinstance(key_grid, int) else key_grid)[1]
    numbers = [_index(transform, TRANSFORMS, "transform"), _index(max_mode, MAX_MODES, "max_mode"),
               _index(norm_axis, NORM_AXES, "norm_axis")]
    return _operators.initial_mix(queries[:3], queries[3:], keys[:3], keys[3:], *numbers, exp_sigma,
                                  local_threshold)


@torch.no_grad()
def project_(mix, low=0.0, high=1.0, lower_triangle=False):
    """Limits the entries of a mix, in place: after each step of the optimizer, the released DeiT and DiT to
    [0, 1]; before each forward pass, the language model to [1e-5, 1] with nothing above the diagonal. Wan
    does not limit it."""
    mix.clamp_(low, high)
    return mix.tril_() if lower_triangle else mix


@torch.compiler.assume_constant_result
def _ready(variant):
    compiling.ready(variant)
    return True


def _index(value, values, argument):
    if value not in values:
        raise ValueError(f"mhla: {argument} is {value!r}, but must be one of " + ", ".join(map(repr, values)))
    return values.index(value)


def _extents(block, grid):
    """The number of axes; block and grid on three axes each, those that are missing in front."""
    block = [block] if isinstance(block, int) else list(block)
    grid = [0] if grid is None else list(grid)
    if not 1 <= len(grid) <= 3:
        raise ValueError(f"mhla: grid has {len(grid)} extents, but must have 1 to 3")
    if len(block) != len(grid):
        raise ValueError(f"mhla: block has {len(block)} extents, but must have {len(grid)}, one for each axis "
                         "of grid; without grid the tokens are a sequence")
    if min(block) < 1:
        raise ValueError(f"mhla: block holds {min(block)}, but must hold at least 1 token")
    missing = [1] * (3 - len(grid))
    return len(grid), [*missing, *block, *missing, *grid]


# What follows tells PyTorch of the operators' shapes, for torch.compile, and of their derivatives.


@library.register_fake("mhla_torch::attention")
def _(q, k, v, mix, *options):
    batch, heads, tokens, _ = q.shape
    return q.new_empty(batch, tokens, heads, v.shape[3]).transpose(1, 2)


@library.register_fake("mhla_torch::attention_backward")
def _(dy, q, k, v, mix, *options):
    return [torch.empty_like(x) for x, wanted in zip((q, k, v, mix), options[-1]) if wanted]


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:7])
    ctx.options = inputs[7:]


def _backward(ctx, dy):
    wanted = ctx.needs_input_grad[:4]
    gradients = iter(_operators.attention_backward(dy, *ctx.saved_tensors, *ctx.options, wanted))
    return *(next(gradients) if w else None for w in wanted), *(None for _ in range(3 + len(ctx.options)))


def _refuse(ctx, *gradients):
    raise RuntimeError("mhla_torch: attention has first derivatives only; "
                       "call backward without create_graph=True")


library.register_autograd("mhla_torch::attention", _backward, setup_context=_save)
library.register_autograd("mhla_torch::attention_backward", _refuse)


from . import nn  # noqa: E402: it takes what is above
