# SPDX-License-Identifier: MIT
"""What check.py runs once the operator is built. Each function below is a check: it returns what it
has measured, or raises."""
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from argparse import Namespace
from pathlib import Path

warnings.filterwarnings("ignore")
import numpy  # noqa: E402
import torch  # noqa: E402
from torch import library  # noqa: E402

import mhla_torch  # noqa: E402
from dump_case import dump_case  # noqa: E402
from layer_checks import *  # noqa: E402, F403: checks, found by their names
from mhla_torch.check import OTHERS, VARIANTS, errors, operands, results  # noqa: E402
from mhla_torch.formula import formula  # noqa: E402

def worst(bound, among=VARIANTS, **how):
    y, gradient = map(max, zip(*(errors(*variant, **how) for variant in among)))
    assert y < bound and gradient < bound, f"y is off by {y:.1e}, a gradient by {gradient:.1e}"
    return f"y {y:.1e}, gradients {gradient:.1e}"


def raises(error, sentence, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except error as raised:
        assert sentence in str(raised), raised
        return
    raise AssertionError(f"no {error.__name__} that says: {sentence}")


def check_float64():
    return worst(1e-12)


def check_float32():
    return worst(1e-5, dtype=torch.float32)


def check_bfloat16():
    return worst(6e-3, dtype=torch.bfloat16)


def check_float16():
    return worst(1e-3, VARIANTS[:1] + VARIANTS[-1:], dtype=torch.float16)


def check_variants_compiled_on_first_use():
    return worst(1e-12, OTHERS)


def check_masks():
    """Padding changes nothing of the other tokens, whatever it holds."""
    *x, dy = operands(30, dict(block=4))
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[0, 25:] = mask[1, 7:] = False
    with torch.no_grad():
        x[1][0, :, 25:] = x[2][0, :, 25:] = float("nan")
    options = dict(block=4, query_mask=mask, key_mask=mask)
    y, *gradients = results(mhla_torch.attention, *x, dy, options)
    clean = [a.detach().nan_to_num().requires_grad_() for a in x]
    exact = results(formula, *clean, dy, options)
    for a, b in zip((y, *gradients), exact):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


def check_cross_attention():
    options = dict(block=4, key_block=(2, 3), key_grid=(4, 6), normalizer=None)
    raises(ValueError, "mix: axis key blocks", lambda: mhla_torch.attention(
        *operands(30, dict(block=4))[:4], block=4, key_block=5))
    *x, dy = operands(30, dict(block=4))
    options = dict(block=4, key_block=6)
    x[1:] = (x[1].detach()[:, :, :17].requires_grad_(), x[2].detach()[:, :, :17].requires_grad_(),
             torch.rand(8, 3, dtype=torch.float64).requires_grad_())
    for a, b in zip(results(mhla_torch.attention, *x, dy, options), results(formula, *x, dy, options)):
        assert torch.allclose(a, b, rtol=1e-11)


def check_structured_mixings():
    """Equal to the dense mix that their parameters stand for."""
    *x, dy = operands(30, dict(block=(2, 2), grid=(5, 6)))
    rows, columns = (torch.rand(2, n, n, dtype=torch.float64) for n in (3, 3))
    dense = torch.einsum("rij,rkl->ikjl", rows, columns).reshape(9, 9)
    factors = torch.cat((rows.flatten(1), columns.flatten(1)), 1)
    options = dict(block=(2, 2), grid=(5, 6))
    want = mhla_torch.attention(*x[:3], dense, **options)
    y = mhla_torch.attention(*x[:3], factors, **options, mixing="separable", mixing_size=2)
    assert torch.allclose(y, want, rtol=1e-11)
    own, read, write, keep = torch.rand(4, dtype=torch.float64)
    i = torch.arange(8)
    power = (i[:, None] - i - 1).clamp(min=0)
    dense = (read * write * keep ** power).tril(-1) + own * torch.eye(8)
    options = dict(block=4, causal=True)
    want = mhla_torch.attention(*x[:3], dense.double(), **options)
    row = torch.stack((own, read, write, keep))[None].requires_grad_()
    y = mhla_torch.attention(*x[:3], row, **options, mixing="recurrent")
    assert torch.allclose(y, want, rtol=1e-11)
    y.sum().backward()
    assert row.grad.abs().min() > 0


def check_decoder():
    """Sequences of different lengths, token by token, as attention gives them over the whole."""
    options = dict(block=4, normalizer=None, rotation="half_split")
    q, k, v, mix, _ = (x.detach() for x in operands(30, dict(block=4), kv_heads=2))
    whole = mhla_torch.attention(q, k, v, mix, causal=True, **options)
    decoder = mhla_torch.Decoder(mix, batch=2, heads=4, kv_heads=2, dim=6, value_dim=5, dtype=q.dtype, **options)
    first = decoder.prefill(1, *(x[1:, :, :7] for x in (q, k, v)))
    assert torch.allclose(first, whole[1:, :, :7], rtol=1e-11)
    for t in range(20):
        tokens = (torch.stack((x[0, :, t], x[1, :, 7 + t]))[:, :, None] for x in (q, k, v))
        y = decoder.step(*tokens)[:, :, 0]
        assert torch.allclose(y, torch.stack((whole[0, :, t], whole[1, :, 7 + t])), rtol=1e-11)
    assert [decoder.position(0), decoder.position(1), decoder.capacity] == [20, 27, 32]
    raises(RuntimeError, "exceed the rows of mix, for 32", decoder.step, *(x[:, :, :7] for x in (q, k, v)))
    decoder.reset(0)
    assert decoder.position(0) == 0
    raises(ValueError, "must be a multiple of the heads", mhla_torch.Decoder, mix, heads=4, kv_heads=3, dim=6, block=4)


def check_layout():
    *x, dy = operands(30, dict(block=4))
    options = dict(block=4, layout="bnhd")
    other = [a.detach().transpose(1, 2).contiguous().requires_grad_() for a in x[:3]]
    y = mhla_torch.attention(*other, x[3], **options)
    assert y.is_contiguous()
    assert torch.equal(y.transpose(1, 2), mhla_torch.attention(*x, block=4))


def check_grouped_heads():
    return worst(1e-12, heads=6, kv_heads=2)


def check_matrix_per_head():
    return worst(1e-12, heads=6, kv_heads=3, mix_heads=6)


def check_gradcheck():
    for tokens, options in VARIANTS:
        *x, _ = operands(tokens, options, heads=2, kv_heads=1)
        assert torch.autograd.gradcheck(lambda *x: mhla_torch.attention(*x, **options), x,
                                        fast_mode=True)
    x = [a.detach()[:1, :1, :7].requires_grad_() for a in x[:3]] + [torch.rand(2, 2).double()]
    assert torch.autograd.gradcheck(lambda *x: mhla_torch.attention(*x, block=4), x)
    return f"{len(VARIANTS)} variants along random directions, one element by element"


def check_opcheck():
    """Of dense, packed and padded batches."""
    offsets, mask = torch.tensor([0, 5, 5, 30]), torch.rand(2, 30) < 0.7
    for batch, tensors in ((None, (None, None, None)), ("packed", (offsets, None, None)),
                           ("padded", (None, mask, mask))):
        variant = mhla_torch.variants.name("float64", batch=batch)
        mhla_torch.compiling.ready(variant)
        options = (*tensors, variant, [1, 1, 4, 1, 1, 0] + 6 * [0] + [1, 4], [1.0, 1e-6, 1e-6, 1.0], False)
        q, k, v, mix, dy = operands(30, dict(block=4, **({"offsets": offsets} if batch == "packed" else {})),
                                    kv_heads=2)
        library.opcheck(torch.ops.mhla_torch.attention.default, (q, k, v, mix, *options))
        detached = (x.detach() for x in (dy, q, k, v, mix))
        library.opcheck(torch.ops.mhla_torch.attention_backward.default,
                        (*detached, *options, [True, False, True, True]))


def check_compile():
    options = dict(block=4, causal=True)
    x = operands(30, options)
    for backend in ("aot_eager", "inductor"):
        torch.compiler.reset()
        compiled = torch.compile(lambda *x, **o: mhla_torch.attention(*x, **o), backend=backend, fullgraph=True)
        for a, b in zip(results(compiled, *x, options), results(mhla_torch.attention, *x, options)):
            assert torch.equal(a, b), backend


def check_packed_qkv():
    packed = torch.randn(2, 30, 3, 4, 6).permute(2, 0, 3, 1, 4)  # [3, batch, heads, tokens, dim]
    mix, dy = torch.rand(8, 8), torch.randn(2, 4, 30, 6)
    results_of = [results(mhla_torch.attention, *(x.detach().requires_grad_() for x in qkv),
                          mix.clone().requires_grad_(), dy, dict(block=4))
                  for qkv in (packed, packed.contiguous())]
    for strided, contiguous in zip(*results_of):
        assert torch.equal(strided, contiguous)
    assert results_of[0][0].transpose(1, 2).is_contiguous()  # joining the heads copies nothing
    return "the same bits as contiguous tensors"


def check_expanded_gradient():
    *x, _ = operands(30, dict(block=4))
    y = mhla_torch.attention(*x, block=4)
    expanded = torch.autograd.grad(y.sum(), x, retain_graph=True)  # dy has strides of 0
    for a, b in zip(expanded, torch.autograd.grad(y, x, torch.ones_like(y).contiguous())):
        assert torch.equal(a, b)
    q, k, v, mix = x
    shared = q[:, :1].detach().requires_grad_()  # an expanded operand
    y = mhla_torch.attention(shared.expand_as(q), k, v, mix, block=4)
    y.square().sum().backward()
    want, = torch.autograd.grad(formula(shared.expand_as(q), k, v, mix, block=4).square().sum(), shared)
    assert torch.allclose(shared.grad, want, rtol=1e-12)


def check_wanted_gradients():
    *x, dy = operands(30, dict(block=4))
    every = results(mhla_torch.attention, *x, dy, dict(block=4))[1:]
    for wanted in range(4):
        y = mhla_torch.attention(*(a if i == wanted else a.detach() for i, a in enumerate(x)), block=4)
        y.backward(dy)
        assert torch.equal(x[wanted].grad, every[wanted])
    assert not mhla_torch.attention(*(a.detach() for a in x), block=4).requires_grad
    return "each alone, with the same bits"


def check_threads():
    before, bits = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        bits.append(results(mhla_torch.attention, *operands(30, dict(block=4)), dict(block=4)))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in bits[1:] for a, b in zip(bits[0], other))
    return "the same bits on 1, 2 and 3"


def check_interpreter_is_free():
    """Another thread of Python goes on while the operator runs."""
    x = [torch.randn(1, 2, 32768, 64) for _ in range(3)] + [torch.rand(64, 64)]

    def longest_wait():
        taken = []

        def work():
            begin = time.perf_counter()
            mhla_torch.attention(*(a.requires_grad_() for a in x), block=512).sum().backward()
            taken.append(time.perf_counter() - begin)

        thread, last, wait = threading.Thread(target=work), time.perf_counter(), 0.0
        thread.start()
        while not taken:
            now = time.perf_counter()
            last, wait = now, max(wait, now - last)
        thread.join()
        return wait, taken[0]

    # The best of some, as the machine may be busy with something else.
    wait, taken = min((longest_wait() for _ in range(4)), key=lambda times: times[0] / times[1])
    assert wait < taken / 8, f"waits for {wait * 1e3:.0f} ms of {taken * 1e3:.0f}"
    return f"waits for {wait * 1e3:.0f} ms at most, in {taken * 1e3:.0f} ms"


def check_errors():
    call = mhla_torch.attention
    q, k, v, mix, _ = (x.detach() for x in operands(30, dict(block=4)))
    raises(ValueError, "mhla: mix: axis query blocks is 8", call, q, k, v, mix, block=3)
    raises(ValueError, "mhla: v: axis tokens is 29 but must be 30", call, q, k, v[:, :, :29], mix, block=4)
    raises(ValueError, "must be a multiple of the heads", call, q, k[:, :3], v[:, :3], mix, block=4)
    raises(ValueError, "block holds 0", call, q, k, v, mix, block=0)
    raises(ValueError, "block has 1 extents, but must have 2", call, q, k, v, mix, block=4, grid=(5, 6))
    raises(ValueError, "block has 2 extents, but must have 1", call, q, k, v, mix, block=(2, 2))
    raises(ValueError, "causal attention takes no grid", call, q, k, v, mix, block=(2, 2), grid=(5, 6),
           causal=True)
    raises(ValueError, "q has 3 axes", call, q[0], k, v, mix, block=4)
    raises(TypeError, "k is of Float, but must be of Double", call, q, k.float(), v, mix, block=4)
    raises(TypeError, "mix is of Float, but must be of Double", call, q, k, v, mix.float(), block=4)
    raises(TypeError, "must be of float32, float64, bfloat16 or float16", call, *(x.int() for x in (q, k, v)),
           mix, block=4)
    raises(ValueError, "normalizer is 'mean', but must be one of", call, q, k, v, mix, block=4, normalizer="mean")
    raises(TypeError, "query_mask is of Float on cpu, but must be of Bool", call, q, k, v, mix, block=4,
           query_mask=torch.ones(2, 30))
    raises(ValueError, "layout is 'hnd'", call, q, k, v, mix, block=4, layout="hnd")
    raises(ValueError, "MixedProduct divides by products of later blocks' queries", call, q, k, v, mix, block=4,
           causal=True, normalizer="mixed_product")


def check_autograd_rules():
    *x, dy = operands(30, dict(block=4))
    changed = x[1] * 1
    y = mhla_torch.attention(x[0], changed, *x[2:], block=4)
    changed.add_(1)
    raises(RuntimeError, "modified by an inplace operation", y.backward, dy)
    y = mhla_torch.attention(*x, block=4)
    gradient, = torch.autograd.grad(y.sum(), x[0], create_graph=True)
    raises(RuntimeError, "first derivatives only", gradient.sum().backward)


def check_training():
    """Every token learns to tell the mean of the block beside its own."""
    torch.manual_seed(0)
    layer = mhla_torch.nn.MultiHeadLinearAttention(16, heads=4, block=(2, 2), grid=(4, 4))
    optimizer = torch.optim.Adam(layer.parameters(), lr=2e-2)
    losses = []
    for _ in range(200):
        blocks = torch.randn(16, 2, 2, 2, 2, 16)  # [batch, rows, columns of blocks, of tokens, dim]
        means = blocks.mean((3, 4), keepdim=True).roll(1, dims=2).expand_as(blocks)
        x, target = (t.transpose(2, 3).reshape(16, 16, 16) for t in (blocks, means))
        loss = torch.nn.functional.mse_loss(layer(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        layer.project()
        losses.append(loss.item())
    first, last = losses[0], sum(losses[-10:]) / 10
    assert last < first / 10, f"{first:.3f} -> {last:.3f}"
    assert layer.mix[0, 1] > 0.5 and layer.mix[0].sum() - layer.mix[0, 1] < 0.1  # where it looks
    for half in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", half):
            layer(x).sum().backward()
    layer.bfloat16()(x.bfloat16()).sum().backward()
    return f"loss {first:.3f} -> {last:.4f}; then in bfloat16, by autocast and as a whole"


def dpfp(x):
    y = torch.relu(torch.cat((x, -x), -1))
    return torch.cat([y * y.roll(j, -1) for j in (1, 2, 3)], -1)


# The words of mhla_replay.
WORDS = {"normalizer": {"mixed_key_sum": "paper", "mixed_product": "code", None: "none"},
         "rotation": {"half_split": "neox_1d", "axial": "wan_3d"}}


def replay_every_key(verdict, folder):
    """mhla_replay agrees with the formula for every argument of dump_case; returns the keys written."""
    projection = torch.randn(7, 6, dtype=torch.float64)

    def favor(x):
        x = x / 6 ** 0.25
        return (x @ projection.mT - x.square().sum(-1, keepdim=True) / 2).exp() / 7 ** 0.5

    def turned(x, theta=100.0):
        positions, pairs = (torch.arange(n, dtype=torch.float64) for n in (x.shape[2], 3))
        angle = positions[:, None] * theta ** -(pairs / 3)
        a, b = x.chunk(2, -1)
        return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)

    hedgehog = dict(feature_map=lambda x: torch.cat((2 * x, -2 * x), -1).softmax(-1))
    other = dict(block=4, normalizer=None)
    cases = {  # what the formula takes, and dump_case
        "dpfp": (dict(other, feature_map=dpfp), dict(nu=3)),
        "favor": (dict(other, feature_map=favor), dict(projection=projection)),
        "hedgehog": (dict(other, **hedgehog), {}),
        "relu": (dict(block=4, key_block=3), dict(normalizer="paper", note="a\nkind x")),
        "identity": (dict(other, feature_map=turned), dict(rotation="neox_1d", theta=100.0)),
    }
    written = set()
    for name, (options, said) in cases.items():
        *x, dy = operands(30, options)
        if "key_block" in options:
            x[1:] = (*(a.detach()[:, :, :20].requires_grad_() for a in x[1:3]),
                     torch.rand(8, 7, dtype=torch.float64).requires_grad_())
        blocks = {key: options[key] for key in ("block", "key_block") if key in options}
        dump_case(folder / name, lambda *x: formula(*x, **options), *x, dout=dy, feature_map=name,
                  **{"normalizer": "none", **said, **blocks})
        run = verdict(folder / name)
        assert run.returncode == 0, run.stdout + run.stderr
        written |= {line.split()[0] for line in (folder / name / "case.txt").read_text().splitlines()}
    for wrong in (dict(feature_map="dpfp"), dict(feature_map="favor"), dict(nu=2), dict(key_grid=5),
                  dict(projection=projection)):
        raises(ValueError, "dump_case: ", dump_case, folder / "no", None, *x, block=4, **wrong)
    return written


def check_replay(program):
    """mhla_replay agrees with what dump_case writes, and notices what is wrong with it."""
    def verdict(folder):
        return subprocess.run([program, folder], capture_output=True, text=True)

    with tempfile.TemporaryDirectory() as temporary:
        for i, (tokens, options) in enumerate(VARIANTS):
            *x, dy = operands(tokens, options, heads=4, kv_heads=2)
            said = {name: value for name, value in options.items() if name not in WORDS}
            for name, words in WORDS.items():
                if name in options or name == "normalizer":
                    said[name] = words[options.get(name, "mixed_key_sum")]
            folder = Path(temporary, str(i))
            dump_case(folder, lambda *x: formula(*x, **options), *x, dout=dy, **said)
            run = verdict(folder)
            assert run.returncode == 0, run.stdout + run.stderr
            said["scale"] = options.get("scale", 1.0) * 1.001
            dump_case(folder, lambda *x: formula(*x, **options), *x, dout=dy,
                      **{**said, "normalizer_epsilon": 1e-3})
            assert verdict(folder).returncode == 1
        written = replay_every_key(verdict, Path(temporary, "keys"))
        listed = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
        listed = listed.split("attention:\n")[1].split("\n\n")[0]
        needless = {"name", "layout", "blocks", "key_layout", "key_blocks"}  # derived from other keys
        missing = {line.split()[0] for line in listed.splitlines()} - written - needless
        assert not missing, f"dump_case never writes {missing}"
        here = Path(__file__).parent
        subprocess.run([sys.executable, here / "dump_case.py", temporary], check=True,
                       stdout=subprocess.DEVNULL)
        assert verdict(Path(temporary, "right")).returncode == 0
        assert verdict(Path(temporary, "wrong")).returncode == 1
    return run.stdout.split("  ", 1)[1].strip()


def check_to_safetensors():
    """to_safetensors.py extracts state dictionaries of training scripts; no code in a file runs."""
    program = Path(__file__).parents[1] / "released" / "to_safetensors.py"
    weights = {"a.weight": torch.randn(3, 4), "a.bias": torch.randn(4, 3).mT.bfloat16()}
    worse = {name: tensor + 1 for name, tensor in weights.items()}
    rest = dict(epoch=1, args=Namespace(lr=1e-3), metric=numpy.float64(1), opt=Execute(),
                rng_state=dict(numpy=numpy.random.get_state(), python=random.getstate()))
    written = {
        "timm": dict(rest, state_dict=worse, state_dict_ema={"module." + n: t for n, t in weights.items()}),
        "dit": dict(rest, model=worse, ema=weights),
        "wan": dict(rest, state_dict={"_orig_mod." + n: t for n, t in weights.items()}),
        "plain": weights,
        "student": dict(student=weights, teacher=worse),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, content in written.items():
            torch.save(content, Path(folder, "x.pth"))
            key = ["--key", name] if name == "student" else []
            subprocess.run([sys.executable, program, "x.pth", "x.safetensors", *key], cwd=folder,
                           check=True, stdout=subprocess.DEVNULL)
            data = Path(folder, "x.safetensors").read_bytes()
            begin = 8 + int.from_bytes(data[:8], "little")
            header = json.loads(data[8:begin])
            assert header.keys() == weights.keys(), f"{name}: {list(header)}"
            for key, entry in header.items():
                first, last = (begin + offset for offset in entry["data_offsets"])
                stored = torch.frombuffer(bytearray(data[first:last]), dtype=weights[key].dtype)
                assert torch.equal(stored.view(entry["shape"]), weights[key]), f"{name}: {key}"
        assert not Path(folder, "executed").exists()
        torch.save(dict(student=weights, teacher=worse), Path(folder, "x.pth"))
        refused = subprocess.run([sys.executable, program, "x.pth", "y"], cwd=folder,
                                 capture_output=True, text=True)
        assert refused.returncode == 1 and "choose one with --key" in refused.stderr


class Execute:
    """Creates a file if it is unpickled."""

    def __reduce__(self):
        return open, ("executed", "w")


def check_cuda():
    return worst(1e-12, device="cuda") + "; float32 " + worst(1e-5, device="cuda", dtype=torch.float32)


def eager(q, k, v, mix, block):
    """The same for whole blocks of a sequence, in a time linear in the tokens too."""
    q, k, v = (x.unflatten(2, (-1, block)) for x in (torch.relu(q) + 1e-6, torch.relu(k) + 1e-6, v))
    summaries = k.mT @ v
    mixed = (mix @ summaries.flatten(3)).view(summaries.shape)
    return (q @ mixed / (q @ (mix @ k.sum(-2))[..., None] + 1e-6)).flatten(2, 3)


def timing():
    x = [torch.randn(1, 8, 4096, 64) for _ in range(3)] + [torch.rand(64, 64)]
    dy = torch.randn(1, 8, 4096, 64)
    fastest = {}
    for _ in range(5):  # in turns
        for function in (mhla_torch.attention, eager):
            for backward in (False, True):
                begin = time.perf_counter()
                y = function(*(a.requires_grad_(backward) for a in x), block=64)
                if backward:
                    torch.autograd.grad(y, x, dy)
                taken = 1e3 * (time.perf_counter() - begin)
                key = (function, backward)
                fastest[key] = min(taken, fastest.get(key, taken))
    ours, theirs = ([fastest[function, b] for b in (False, True)]
                    for function in (mhla_torch.attention, eager))
    print(f"8 heads of 4096 tokens, 64 blocks, {torch.get_num_threads()} threads: forward {ours[0]:.1f} "
          f"ms, with backward {ours[1]:.1f} ms; eager PyTorch {theirs[0]:.1f} and {theirs[1]:.1f} ms")


def main():
    replay = sys.argv[1] if len(sys.argv) > 1 else None
    checks = {name[len("check_"):].replace("_", " "): function
              for name, function in globals().items() if name.startswith("check_")}
    if not torch.cuda.is_available():
        del checks["cuda"]
    if replay:
        checks["replay"] = lambda: check_replay(replay)
    else:
        del checks["replay"]
    failed = 0
    for name, function in checks.items():
        try:
            measured = function()
            print(f"passed  {name}" + (f": {measured}" if measured else ""), flush=True)
        except Exception as error:  # whatever it is, it fails this check and no other
            failed += 1
            print(f"FAILED  {name}: {type(error).__name__}: {error}", flush=True)
    timing()
    print(f"{len(checks) - failed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
