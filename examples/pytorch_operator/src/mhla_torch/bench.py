# SPDX-License-Identifier: MIT
"""How long does a layer take here, beside PyTorch's own operations?

    python -m mhla_torch.bench                                    # layers of the released models
    python -m mhla_torch.bench --dtype bfloat16 --threads 1
    python -m mhla_torch.bench WindowAttention --dim 384 --heads 6 --grid 16 16 --block 4 4 --batch 8
    python -m mhla_torch.bench VideoAttention --dim 1536 --heads 12 --grid 21 30 52 --blocks 7 3 5
    python -m mhla_torch.bench LanguageAttention --dim 1024 --heads 4 --tokens 2048

Milliseconds of the whole layer, medians of turns: forward, and forward and backward with all gradients; with
this attention and with PyTorch's own operations ("eager"), each also compiled by torch.compile."""
import argparse
import statistics
import sys
import time
import warnings

import torch

from . import eager, nn

RELEASED = {
    "DeiT-S": ("WindowAttention", dict(dim=384, heads=6, grid=(16, 16), window=(4, 4)), 4),
    "DiT-S/2 512, blocks of 16": ("WindowAttention", dict(dim=384, heads=6, grid=(32, 32), window=(4, 4),
                                                          qkv_bias=True, qk_norm=False, lepe_kernel=3), 1),
    "DiT-S/2 512, blocks of 64": ("WindowAttention", dict(dim=384, heads=6, grid=(32, 32), window=(8, 8),
                                                          qkv_bias=True, qk_norm=False, lepe_kernel=3), 1),
    "Wan, 7 frames": ("VideoAttention", dict(dim=1536, heads=12, grid=(7, 30, 50), layout=(7, 3, 5),
                                        normalize_out=False), 1),
    "language model": ("LanguageAttention", dict(dim=1024, heads=4), 1),
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer", nargs="?", choices=["WindowAttention", "VideoAttention", "LanguageAttention"])
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--grid", type=int, nargs="+", default=[16, 16], help="tokens of each axis")
    parser.add_argument("--block", type=int, nargs="+", default=[4, 4], help="tokens of a window, each axis")
    parser.add_argument("--blocks", type=int, nargs="+", help="of VideoAttention: blocks of each axis")
    parser.add_argument("--tokens", type=int, default=2048, help="of LanguageAttention")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--precision", choices=["exact", "fast"],
                        help="of mhla_torch: fast for bfloat16, whose products PyTorch rounds, too")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    if arguments.layer == "VideoAttention" and (not arguments.blocks or len(arguments.grid) != 3):
        parser.error("VideoAttention needs --grid and --blocks, three numbers each")
    return arguments


def chosen(arguments):
    sizes = dict(dim=arguments.dim, heads=arguments.heads)
    if arguments.layer == "WindowAttention":
        sizes |= dict(grid=arguments.grid, window=arguments.block)
    elif arguments.layer == "VideoAttention":
        sizes |= dict(grid=arguments.grid, layout=arguments.blocks)
    return {"yours": (arguments.layer, sizes, arguments.batch)}


def tokens_of(layer, tokens):
    grid = getattr(layer, "grid", (tokens,))
    count = 1
    for extent in grid:
        count *= extent
    return count


def with_attention(attention, function):
    """A function that computes a layer by an attention, also while torch.compile traces it."""
    def run(layer, x):
        with eager.layers_by(attention):
            return function(layer, x)
    return run


def ways(kind, compiled):
    """Functions of a layer and x."""
    found = {}
    for way, attention in (("mhla_torch", nn.attention), ("eager", eager.attention)):
        found[way] = with_attention(attention, kind.forward)
        if compiled:
            torch.compiler.reset()

            def forward(layer, x):  # one for each, so that neither has the other's graph
                return kind.forward(layer, x)

            found[f"{way}, compiled"] = with_attention(attention, torch.compile(forward))
    return found


def time_of(function, layer, x, backward):
    begin = time.perf_counter()
    if backward:
        layer.zero_grad(set_to_none=True)
        function(layer, x).sum().backward()
    else:
        with torch.no_grad():
            function(layer, x)
    return 1e3 * (time.perf_counter() - begin)


def main():
    warnings.filterwarnings("ignore")
    arguments = parse_arguments()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    precision = arguments.precision or ("fast" if dtype == torch.bfloat16 else "exact")
    print(f"PyTorch {torch.__version__}, {arguments.dtype}, {torch.get_num_threads()} threads, "
          f"{torch.backends.cpu.get_cpu_capability()}; milliseconds: forward, both passes")
    for name, (kind, sizes, batch) in (chosen(arguments) if arguments.layer else RELEASED).items():
        torch.manual_seed(0)
        layer = getattr(nn, kind)(**sizes, precision=precision).to(dtype)
        x = torch.randn(batch, tokens_of(layer, arguments.tokens), sizes["dim"], dtype=dtype, requires_grad=True)
        functions = ways(type(layer), not arguments.no_compile)
        taken = {(way, backward): [] for way in functions for backward in (False, True)}
        for turn in range(arguments.turns + 1):  # the first compiles
            for (way, backward), times in taken.items():
                times.append(time_of(functions[way], layer, x, backward))
        medians = {key: statistics.median(times[1:]) for key, times in taken.items()}
        print(f"{name:28}" + "   ".join(f"{way} {medians[way, False]:8.2f} {medians[way, True]:8.2f}"
                                        for way in functions), flush=True)


if __name__ == "__main__":
    sys.exit(main())
