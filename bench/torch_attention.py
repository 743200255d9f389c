# SPDX-License-Identifier: MIT
"""The released formulation of MHLA in plain PyTorch operations, and a process that times it.

pytorch.py starts it with the interpreter of its virtual environment, once for every number of
threads, mode and dtype, and talks to it in lines of JSON: {"prepare": SHAPE}, {"time": "forward" |
"both", "seconds": S}, {"release": true}. The first line it prints says that its formulation was
checked against the definition, token by token, in double; what is timed has all its tensors in the
dtype, the mixing matrix and the rotation's tables among them."""
import argparse
import json
import statistics
import sys
import time
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402

EPSILON = 1e-6


def to_blocks(x, grid, block):
    """[batch, heads, tokens, dim] in raster order -> [batch, heads, blocks, tokens of a block, dim]"""
    batch, heads, _, dim = x.shape
    layout = [g // b for g, b in zip(grid, block)]
    x = x.view(batch, heads, layout[0], block[0], layout[1], block[1], layout[2], block[2], dim)
    x = x.permute(0, 1, 2, 4, 6, 3, 5, 7, 8)
    return x.reshape(batch, heads, layout[0] * layout[1] * layout[2], -1, dim)


def from_blocks(x, grid, block):
    batch, heads, _, _, dim = x.shape
    layout = [g // b for g, b in zip(grid, block)]
    x = x.view(batch, heads, *layout, *block, dim).permute(0, 1, 2, 5, 3, 6, 4, 7, 8)
    return x.reshape(batch, heads, grid[0] * grid[1] * grid[2], dim)


def mixed(mix, summaries):
    """One product for all entries of the summaries: [blocks, blocks] x [.., blocks, entries]."""
    return torch.matmul(mix, summaries.flatten(3)).view(summaries.shape)


def rotated_halves(x, cosine, sine):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cosine - b * sine, a * sine + b * cosine), dim=-1)


def rotated_pairs(x, cosine, sine):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cosine - b * sine, a * sine + b * cosine), dim=-1).flatten(-2)


def rotation(shape, dtype):
    """Cosine and sine of every token and pair: of position and frequency, for video on three axes."""
    pairs = shape["key_dim"] // 2
    if shape["model"] == "language":
        share, axes = [pairs], [shape["grid"][2]]
    elif shape["model"] == "video":
        share, axes = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3], shape["grid"]
    else:
        return None
    angles = []
    for axis, (count, extent) in enumerate(zip(share, axes)):
        frequency = 10000.0 ** (-torch.arange(count, dtype=torch.float64) / count)
        angle = torch.arange(extent, dtype=torch.float64)[:, None] * frequency
        expanded = [1] * len(axes) + [count]
        expanded[axis] = extent
        angles.append(angle.view(expanded).expand(*axes, count))
    angle = torch.cat(angles, dim=-1).reshape(-1, pairs)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def attention(shape, turn):
    """The function (q, k, v, mix) -> y of a shape; `turn` is what rotation() gives."""
    grid, block, model = shape["grid"], shape["block"], shape["model"]

    def bidirectional(q, k, v, mix):
        q, k = torch.relu(q) + EPSILON, torch.relu(k) + EPSILON
        if model == "video":
            q, k = rotated_pairs(q, *turn), rotated_pairs(k, *turn)
        q, k, v = (to_blocks(x, grid, block) for x in (q, k, v))
        y = q @ mixed(mix, k.transpose(-1, -2) @ v)
        if model == "key_sum":
            y = y / (q @ mixed(mix, k.sum(-2)).unsqueeze(-1) + EPSILON)
        elif model == "product":
            products = (q @ k.sum(-2).unsqueeze(-1)).squeeze(-1)
            y = y / (torch.matmul(mix, products).unsqueeze(-1) + EPSILON)
        return from_blocks(y, grid, block)

    def causal(q, k, v, mix):
        q = rotated_halves(torch.relu(q), *turn) * shape["key_dim"] ** -0.5
        k = rotated_halves(torch.relu(k), *turn)
        q, k, v = (x.unflatten(2, (-1, block[2])) for x in (q, k, v))
        past = q @ mixed(mix.tril(-1), k.transpose(-1, -2) @ v)
        own = (q @ k.transpose(-1, -2)).tril() @ v
        return (past + mix.diagonal()[:, None, None] * own).flatten(2, 3)

    return causal if model == "language" else bidirectional


def turned(x, shape, raster):
    """Rotary embedding by its definition: pairs as complex numbers, times exp(i position frequency)."""
    pairs = x.shape[-1] // 2
    if shape["model"] == "language":
        share, axis_of = [0, 0, pairs], [2] * pairs
        numbers = torch.complex(x[..., :pairs], x[..., pairs:])
    else:
        third = pairs // 3
        share = [pairs - 2 * third, third, third]
        axis_of = [axis for axis in range(3) for _ in range(share[axis])]
        numbers = torch.view_as_complex(x.unflatten(-1, (pairs, 2)).contiguous())
    angles = torch.empty(raster.shape[0], pairs, dtype=torch.float64)
    for pair, axis in enumerate(axis_of):
        own = pair - sum(share[:axis])
        angles[:, pair] = raster[:, axis].double() * 10000.0 ** (-own / share[axis])
    numbers = numbers * torch.polar(torch.ones_like(angles), angles)
    if shape["model"] == "language":
        return torch.cat((numbers.real, numbers.imag), dim=-1)
    return torch.view_as_real(numbers).flatten(-2)


def defined(shape, q, k, v, mix):
    """The same by its definition, token by token; quadratic."""
    causal = shape["model"] == "language"
    phi_q = torch.relu(q) + (0 if causal else EPSILON)
    phi_k = torch.relu(k) + (0 if causal else EPSILON)
    grid, block = shape["grid"], shape["block"]
    raster = torch.cartesian_prod(*(torch.arange(g) for g in grid))  # [tokens, 3]
    layout = [g // b for g, b in zip(grid, block)]
    where = [raster[:, a] // block[a] for a in range(3)]
    of = (where[0] * layout[1] + where[1]) * layout[2] + where[2]
    weights = mix[of][:, of]
    if causal:
        weights = weights.tril() * shape["key_dim"] ** -0.5
    if shape["model"] in ("language", "video"):
        return (weights * (turned(phi_q, shape, raster) @ turned(phi_k, shape, raster).mT)) @ v
    scores = weights * (phi_q @ phi_k.mT)
    if shape["model"] == "key_sum":
        return scores @ v / (scores.sum(-1, keepdim=True) + EPSILON)
    # The released denominator: the query at the same place of every other block.
    q_blocks = to_blocks(phi_q, grid, block)
    key_sums = to_blocks(phi_k, grid, block).sum(-2)
    own = torch.einsum("bhmnd,bhmd->bhmn", q_blocks, key_sums)
    den = torch.einsum("im,bhmn->bhin", mix, own) + EPSILON
    return (scores @ v) / from_blocks(den.unsqueeze(-1), grid, block)


def check():
    """Every model in double against its definition, at a small shape."""
    for model, grid, block in (("key_sum", [1, 4, 6], [1, 2, 3]), ("product", [1, 4, 6], [1, 2, 3]),
                               ("video", [2, 4, 6], [1, 2, 3]), ("language", [1, 1, 24], [1, 1, 4])):
        shape = {"model": model, "grid": grid, "block": block, "key_dim": 14}
        tokens = grid[0] * grid[1] * grid[2]
        blocks = tokens // (block[0] * block[1] * block[2])
        torch.manual_seed(0)
        q, k = (torch.randn(2, 3, tokens, 14, dtype=torch.float64) for _ in range(2))
        v = torch.randn(2, 3, tokens, 5, dtype=torch.float64)
        mix = torch.rand(blocks, blocks, dtype=torch.float64)
        turn = rotation(shape, torch.float64)
        actual = attention(shape, turn)(q, k, v, mix)
        expected = defined(shape, q, k, v, mix)
        error = float((actual - expected).norm() / expected.norm())
        if not error < 1e-12:
            raise SystemExit(f"{model}: the PyTorch formulation is off by {error}")


class Prepared:
    """Tensors of a shape as bench_attention makes them, and the two passes over them."""

    def __init__(self, shape, dtype, compiled):
        grid, block = shape["grid"], shape["block"]
        tokens = grid[0] * grid[1] * grid[2]
        blocks = tokens // (block[0] * block[1] * block[2])
        size = (shape["batch"], shape["heads"], tokens)
        self.q, self.k, self.v, self.dy = (
            (torch.rand(*size, shape[dim]) * 2 - 1).to(dtype)
            for dim in ("key_dim", "key_dim", "value_dim", "value_dim"))
        self.mix = (torch.rand(blocks, blocks) / blocks).to(dtype)
        function = attention(shape, rotation(shape, dtype))
        torch.compiler.reset()
        self.run = torch.compile(function, dynamic=False, fullgraph=True) if compiled else function
        self.warm = set()

    def operands(self, gradients):
        return [x.detach().requires_grad_(gradients) for x in (self.q, self.k, self.v, self.mix)]

    def forward(self):
        with torch.no_grad():
            self.run(self.q, self.k, self.v, self.mix)

    def both(self):
        operands = self.operands(True)
        y = self.run(*operands)
        torch.autograd.grad(y, operands, self.dy)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--mode", choices=("eager", "compiled"), required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_num_interop_threads(1)
    # As bench_attention: processor time where one thread does everything, else the wall's clock.
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    check()
    print(json.dumps({"torch": torch.__version__, "checked": True}), flush=True)
    prepared = None
    for line in sys.stdin:
        request = json.loads(line)
        answer = {}
        if "prepare" in request:
            prepared = Prepared(request["prepare"], getattr(torch, arguments.dtype),
                                arguments.mode == "compiled")
        elif "release" in request:
            prepared = None
        else:
            work = getattr(prepared, request["time"])
            if request["time"] not in prepared.warm:
                begin = time.perf_counter()
                work()  # compiles, where it is compiled
                answer["first_s"] = time.perf_counter() - begin
                prepared.warm.add(request["time"])
            work()
            taken = []
            while sum(taken) < request["seconds"] or len(taken) < 3:
                begin = clock()
                work()
                taken.append(clock() - begin)
            answer["seconds"] = taken
            answer["median_s"] = statistics.median(taken)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
