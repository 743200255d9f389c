#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The library's kernels on a GPU beside what a user would run instead, shape by shape, in turns:

    bench/gpu.sh results build && python3 bench/gpu_peers.py --json results/peers.json

  eager_float32      the released formulation of MHLA (torch_attention.py)
  compiled_bfloat16  the same by torch.compile
  softmax_flash, softmax_cudnn   softmax attention, PyTorch's fastest kernels
  fla_linear         flash-linear-attention's plain linear attention, where it is installed: no mixing

Medians of CUDA's events with a cold L2 cache, forward and backward apart. Inputs are those of
bench_gpu, and y of the released formulation has to be ours. Needs PyTorch with CUDA; exits with 77
where there is no GPU."""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=os.path.join(os.path.dirname(HERE), "build", "gpu",
                                                        "bench_gpu"))
    parser.add_argument("--shapes", default="", help="part of shapes' names")
    parser.add_argument("--peers", default="eager_float32,compiled_bfloat16,softmax_flash,"
                                           "softmax_cudnn,fla_linear")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.2, help="for each measurement of a round")
    parser.add_argument("--json", help="where the results are written as JSON, as they come")
    return parser.parse_args()


def filled(torch, count, seed, device):
    """What bench/gpu_fill.cu fills tensors with: eight uniform 16-bit numbers of a hash, summed."""
    def shifted(x, bits):  # to the right, as an unsigned number
        return (x >> bits) & ((1 << (64 - bits)) - 1)

    def signed(x):
        return x - (1 << 64) if x >= 1 << 63 else x

    def mixed(x):
        x = (x ^ shifted(x, 30)) * signed(0xbf58476d1ce4e5b9)
        x = (x ^ shifted(x, 27)) * signed(0x94d049bb133111eb)
        return x ^ shifted(x, 31)

    start = mixed(torch.tensor(seed, dtype=torch.int64, device=device))
    values = torch.empty(count, dtype=torch.bfloat16, device=device)
    for begin in range(0, count, 1 << 24):
        end = min(count, begin + (1 << 24))
        number = 2 * torch.arange(begin, end, dtype=torch.int64, device=device)
        total = torch.full_like(number, -4 * 65535)
        for word in range(2):
            bits = mixed(start + signed(0x9e3779b97f4a7c15) * (number + word + 1))
            for part in range(4):
                total += shifted(bits, 16 * part) & 0xffff if part else bits & 0xffff
        values[begin:end] = (total.float() * (1 / 53509.7)).to(torch.bfloat16)
    return values


class Clock:
    """CUDA's events around work with a cold cache."""

    def __init__(self, torch, seconds):
        self.torch, self.seconds = torch, seconds
        self.flush = torch.zeros(64 << 20, device="cuda")

    def median_us(self, work):
        torch = self.torch
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        taken = []
        while len(taken) < 5 or sum(taken) * 1e-6 < self.seconds and len(taken) < 500:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.flush.sum()  # reads: dirty lines would be written back while work is timed
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            taken.append(begin.elapsed_time(end) * 1e3)
        return statistics.median(taken)


class Peers:
    """A shape's operands, and the functions (q, k, v, mix) -> y that are timed over them."""

    def __init__(self, torch, shape):
        import torch_attention
        for axes in ("grid", "block"):
            shape[axes] = [int(extent) for extent in shape[axes]]
        self.torch, self.shape = torch, shape
        tokens = shape["grid"][0] * shape["grid"][1] * shape["grid"][2]
        size = (int(shape["batch"]), int(shape["heads"]), tokens)
        dims = [int(shape[dim]) for dim in ("key_dim", "key_dim", "value_dim", "value_dim")]
        self.q, self.k, self.v, self.dy = (
            filled(torch, size[0] * size[1] * tokens * dim, seed, "cuda").view(*size, dim)
            for seed, dim in enumerate(dims, start=1))
        blocks = round(len(shape["mix"]) ** 0.5)
        self.mix = torch.tensor(shape["mix"], device="cuda").view(blocks, blocks)
        turn = torch_attention.rotation(shape, torch.float32)
        self.turn = turn and tuple(x.cuda() for x in turn)

    def formulation(self, dtype):
        import torch_attention
        turn = self.turn and tuple(x.to(dtype) for x in self.turn)
        return torch_attention.attention(self.shape, turn)

    def softmax(self, backend):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        causal = self.shape["model"] == "language"

        def run(q, k, v, mix):
            with sdpa_kernel(getattr(SDPBackend, backend)):
                return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return run

    def fla_linear(self):
        from fla.ops.linear_attn import chunk_linear_attn  # causal; without normalizer

        def run(q, k, v, mix):
            q, k, v = (x.transpose(1, 2) for x in (q.relu(), k.relu(), v))
            return chunk_linear_attn(q, k, v, normalize=False)[0].transpose(1, 2)
        return run

    def named(self, name):
        """(function, operands) of a peer; raises where it is not there."""
        torch = self.torch
        operands = [self.q, self.k, self.v, self.mix]
        if name == "eager_float32":
            return self.formulation(torch.float32), [x.float() for x in operands]
        if name == "compiled_bfloat16":
            torch.compiler.reset()
            run = torch.compile(self.formulation(torch.bfloat16), dynamic=False, fullgraph=True)
            return run, [x.to(torch.bfloat16) for x in operands]
        if name == "softmax_flash":
            return self.softmax("FLASH_ATTENTION"), operands
        if name == "softmax_cudnn":
            return self.softmax("CUDNN_ATTENTION"), operands
        return self.fla_linear(), operands

    def times(self, name, clock):
        run, operands = self.named(name)
        with self.torch.no_grad():
            times = {"forward": clock.median_us(lambda: run(*operands))}
        leaves = [x.detach().requires_grad_() for x in operands]
        y = run(*leaves)
        dy = self.dy.to(y.dtype)
        used = [x for x in leaves if x is not leaves[3] or "softmax" not in name and "fla" not in name]
        times["backward"] = clock.median_us(
            lambda: self.torch.autograd.grad(y, used, dy, retain_graph=True))
        return times

    def difference(self, last):
        """Of ours, of which `last` are the last elements of y, from the released formulation's, in
        units of its RMS."""
        function = self.formulation(self.torch.float32)
        one = [x[-1:, -1:].float() for x in (self.q, self.k, self.v)]  # a head is independent of others
        y = function(*one, self.mix)
        ours = self.torch.tensor(last, device="cuda")
        return float((y.flatten()[-len(last):] - ours).abs().max() / y.square().mean().sqrt())


def run_library(arguments, shape):
    """{pass: line of bench_gpu} of the path that the library chooses."""
    done = subprocess.run(
        [arguments.bench, "--shapes", shape["name"], "--scalars", "bfloat16", "--no-ceilings",
         "--no-errors", "--seconds", str(arguments.seconds)], stdout=subprocess.PIPE, text=True)
    found = {}
    for line in done.stdout.splitlines():
        line = json.loads(line) if line.startswith("{") else {}
        if line.get("shape") == shape["name"] and line.get("mode") == "graph, cold L2" \
                and line.get("path") == line.get("automatic") and "us" in line:
            found[line["pass"]] = line
    if not {"forward", "backward"} <= set(found):
        raise RuntimeError(f"bench_gpu ended with {done.returncode} and has no {shape['name']}")
    return found


def main():
    arguments = parse_arguments()
    if not os.path.exists(arguments.bench):
        sys.exit(f"{arguments.bench} is missing: build it by bench/gpu.sh, or name it with --bench.")
    try:
        import torch
    except ImportError:
        print("Skipped: the peers are PyTorch's, and it is not installed here")
        return 77
    if not torch.cuda.is_available():
        print("Skipped: PyTorch finds no GPU")
        return 77
    sys.path.insert(0, HERE)
    shapes = [s for s in json.loads(subprocess.run([arguments.bench, "--list"], check=True,
                                                   capture_output=True, text=True).stdout)
              if arguments.shapes in s["name"]]
    clock = Clock(torch, arguments.seconds)
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": []}
    print("| shape | pass | mhla us | " + " | ".join(arguments.peers.split(",")) + " |")
    for shape in shapes:
        peers = Peers(torch, shape)
        ours, theirs, refused = {}, {}, {}
        for _ in range(arguments.rounds):
            library = run_library(arguments, shape)
            for name in ("forward", "backward"):
                ours.setdefault(name, []).append(library[name]["us"])
            for peer in arguments.peers.split(","):
                try:
                    for name, us in peers.times(peer, clock).items():
                        theirs.setdefault((peer, name), []).append(us)
                except Exception as error:  # not installed, or not for this shape: said in the table
                    refused[peer] = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
                    torch.cuda.empty_cache()
        difference = peers.difference(library["forward"]["y_last"])
        if not difference < 0.05:
            print(f"{shape['name']}: y is NOT that of the released formulation: {difference:.3g}")
        for name in ("forward", "backward"):
            row = {"shape": shape["name"], "pass": name, "mhla_us": statistics.median(ours[name]),
                   "path": library[name]["path"], "y_difference": difference, "refused": refused}
            cells = []
            for peer in arguments.peers.split(","):
                us = theirs.get((peer, name))
                row[peer + "_us"] = us and statistics.median(us)
                cells.append(f"{statistics.median(us):.0f} ({statistics.median(us) / row['mhla_us']:.1f} x)"
                             if us else refused.get(peer, "-"))
            about["rows"].append(row)
            print(f"| {shape['name']} | {name} | {row['mhla_us']:.0f} | " + " | ".join(cells) + " |",
                  flush=True)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(about, file, indent=1)
        del peers
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
