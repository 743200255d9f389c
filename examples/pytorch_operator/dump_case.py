#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes what an attention of a PyTorch program computes where mhla_replay reads it:

    from dump_case import dump_case
    dump_case("dumped/layer3", my_attention, q, k, v, mix, block=(8, 8), grid=(32, 32))

    mhla_replay dumped/layer3

says whether the library agrees with my_attention(q, k, v, mix) and with its gradients. Compute in
float64 where you can; for others give mhla_replay a --tolerance, such as 1e-5 for float32.

As a program it dumps two cases into a folder, one of them with a fault: dump_case.py FOLDER."""
import sys
from pathlib import Path

import numpy
import torch


def dump_case(folder, attention, q, k, v, mix, *, block, grid=None, key_block=None, key_grid=None,
              dout=None, causal=False, feature_map="relu", feature_epsilon=1e-6, nu=None,
              projection=None, normalizer="paper", normalizer_epsilon=1e-6, scale=1.0,
              rotation="none", theta=10000.0, note=""):
    """Shapes as mhla_torch.attention has them; mhla_replay --help lists the words. The
    arguments after mix must describe `attention`: the library is run with them. dout is random unless
    it is given. causal is False, True, or 2 for block by block; key_block and key_grid belong to
    cross-attention, nu to dpfp, projection [features, key_dim] to favor."""

    def require(argument, name, is_needed, reason):
        if (argument is not None) != is_needed:
            raise ValueError(f"dump_case: {name} is {'missing' if is_needed else 'given'}, but {reason}")

    require(nu, "nu", feature_map == "dpfp", f"feature_map is {feature_map}")
    require(projection, "projection", feature_map == "favor", f"feature_map is {feature_map}")
    if key_block is None:
        require(key_grid, "key_grid", False, "key_block is missing")
        require(key_block, "key_block", k.shape[2] != q.shape[2],
                f"q has {q.shape[2]} tokens and k {k.shape[2]}")
    operands = [x.detach().clone().requires_grad_() for x in (q, k, v, mix)]
    out = attention(*operands)
    dout = torch.randn_like(out) if dout is None else dout
    arrays = dict(zip(("q", "k", "v", "mix"), operands), out=out, dout=dout)
    arrays.update(zip(("dq", "dk", "dv", "dmix"), torch.autograd.grad(out, operands, dout)))
    for name in ("mix", "dmix"):  # with an axis of heads
        arrays[name] = arrays[name].reshape(-1, *mix.shape[-2:])

    def words(extents):
        return " ".join(map(str, [extents] if isinstance(extents, int) else extents))

    lines = {
        "kind": "attention", "batch": q.shape[0], "heads": q.shape[1], "kv_heads": k.shape[1],
        "tokens": q.shape[2], "key_dim": q.shape[3], "value_dim": v.shape[3],
        "grid": words(q.shape[2] if grid is None else grid), "block": words(block),
        "mix_heads": arrays["mix"].shape[0], "causal": int(causal), "feature_map": feature_map,
        "normalizer": normalizer, "normalizer_epsilon": normalizer_epsilon, "scale": scale,
        "rotation": rotation}
    if feature_map in ("relu", "sqrelu"):
        lines["feature_map.eps"] = feature_epsilon
    if nu is not None:
        lines["feature_map.nu"] = nu
    if projection is not None:
        arrays["proj"] = projection
    if key_block is not None:
        lines.update(key_tokens=k.shape[2], key_block=words(key_block),
                     key_grid=words(k.shape[2] if key_grid is None else key_grid))
    if rotation != "none":
        lines["rotation.theta"] = theta
    # Errors are judged by the largest element. That of dmix by what it is a sum of as well: under a
    # normalizer these terms can cancel.
    terms = (dout * out).abs().sum() / mix.shape[-2]
    for name in ("out", "dq", "dk", "dv", "dmix"):
        largest = arrays[name].abs().max()
        lines[f"tol_scale.{name}"] = max(largest, terms if name == "dmix" else 0.0).item()
    if note:
        lines["note"] = " ".join(note.split())

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "case.txt").write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
    for name, array in arrays.items():
        numpy.save(folder / f"{name}.npy", array.detach().cpu().double().contiguous().numpy())


def main():
    sys.path.append(str(Path(__file__).parent / "src" / "mhla_torch"))
    from formula import formula  # the attention of your program

    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 6 * 6, 8, dtype=torch.float64) for _ in range(3))
    mix = torch.rand(9, 9, dtype=torch.float64)
    blocks = dict(block=(2, 2), grid=(6, 6))
    folder = Path(sys.argv[1])
    dump_case(folder / "right", lambda *x: formula(*x, **blocks), q, k, v, mix, **blocks)
    dump_case(folder / "wrong", lambda q, k, v, mix: formula(q, k, v, mix.mT, **blocks), q, k, v, mix,
              **blocks, note="rows and columns of mix confused")
    print(f"mhla_replay {folder / 'right'} {folder / 'wrong'}")


if __name__ == "__main__":
    main()
