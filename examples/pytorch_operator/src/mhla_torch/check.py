# SPDX-License-Identifier: MIT
"""Is what was built here right?

    python -m mhla_torch.check

compares each variant that is installed, and one that is compiled on first use, with its formula in double:
values and all gradients."""
import sys

import torch

from . import attention
from .formula import formula

# (tokens, options): with shorter blocks at the edges. First those that the extension has, then some of
# what is compiled on first use.
VARIANTS = [
    (30, dict(block=4)),
    (30, dict(block=5, causal=True)),
    (30, dict(block=4, causal=True, normalizer=None, rotation="half_split", theta=100.0, scale=0.5)),
    (30, dict(block=(2, 3), grid=(5, 6), feature_epsilon=1e-3, normalizer_epsilon=1e-2)),
    (48, dict(block=(1, 2, 2), grid=(3, 4, 4), scale=2.0)),
    (48, dict(block=(2, 4, 1), grid=(3, 4, 4), normalizer=None, rotation="axial")),
    (32, dict(block=4, normalizer="mixed_product", normalizer_epsilon=1e-2)),
]
OTHERS = [
    (30, dict(block=4, normalizer=None, scale=0.5)),
    (30, dict(block=(2, 2), grid=(6, 5), rotation="axial", theta=50.0)),
    (24, dict(block=(2, 3), grid=(4, 6), normalizer="mixed_product")),
    (30, dict(block=5, causal="block", feature_map="elu_plus_one")),
    (30, dict(block=4, feature_map="hedgehog")),
    (30, dict(block=4, offsets=torch.tensor([0, 5, 5, 30]), causal=True)),
]


def operands(tokens, options, dtype=torch.float64, heads=4, kv_heads=4, mix_heads=None, device="cpu"):
    """q, k, v, mix and dy, with gradients; the dimension of values is another than that of keys."""
    torch.manual_seed(tokens)
    block, grid = options["block"], options.get("grid") or (tokens,)
    blocks = 1
    for extent, length in zip(grid, (block,) if isinstance(block, int) else block):
        blocks *= -(-extent // length)
    batch = 1 if "offsets" in options else 2
    shapes = [(batch, heads, tokens, 6), (batch, kv_heads, tokens, 6), (batch, kv_heads, tokens, 5)]
    q, k, v = (torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes)
    mix = torch.rand(*([mix_heads] if mix_heads else []), blocks, blocks,
                     dtype=torch.float32 if dtype.itemsize == 2 else dtype)
    dy = torch.randn(batch, heads, tokens, 5, dtype=torch.float64).to(dtype)
    return [x.to(device).requires_grad_() for x in (q, k, v, mix)] + [dy.to(device)]


def results(function, q, k, v, mix, dy, options):
    """y, dq, dk, dv, dmix"""
    y = function(q, k, v, mix, **options)
    return [y, *torch.autograd.grad(y, (q, k, v, mix), dy)]


def errors(tokens, options, **how):
    """Of y and of the worst gradient, relative to the formula in double."""
    *x, dy = operands(tokens, options, **how)
    actual = results(attention, *x, dy, options)
    exact = results(formula, *(a.detach().cpu().double().requires_grad_() for a in x),
                    dy.cpu().double(), options)
    off = [float(((a.cpu().double() - e).norm() / e.norm()).detach()) for a, e in zip(actual, exact)]
    return off[0], max(off[1:])


def main():
    bounds = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 2e-2}
    failed = 0
    on_gpu = torch.cuda.is_available() and torch.ops.mhla_torch.is_for_gpu()
    for device, (tokens, options) in [(device, variant) for device in ["cpu", "cuda"][: 1 + on_gpu]
                                      for variant in VARIANTS + OTHERS[:1]]:
        said = [] if device == "cpu" else ["on the GPU"]
        for dtype, bound in bounds.items():
            worst = max(errors(tokens, options, dtype=dtype, device=device))
            failed += not worst < bound
            said.append(f"{str(dtype).removeprefix('torch.')} {worst:.1e}{'' if worst < bound else ' WRONG'}")
        print(", ".join(f"{name}={value!r}" for name, value in options.items()) + ":  " + ", ".join(said))
    print("wrong" if failed else "as the formula in double", "on", torch.get_num_threads(), "threads")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
