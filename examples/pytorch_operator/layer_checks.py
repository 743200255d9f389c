# SPDX-License-Identifier: MIT
"""Checks of mhla_torch.nn: small models of the released kinds, around its layers, against what the
released implementation computes (tests/models), and trained beside the same layers by the formula."""
import contextlib
import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import mhla_torch
import mhla_torch.eager
from mhla_torch.formula import formula

MODELS = Path(__file__).resolve().parents[2] / "tests" / "models"
TYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}


def tensors(model, name):
    """The tensors of a safetensors file; floating-point ones in double."""
    data = bytearray((MODELS / model / f"{name}.safetensors").read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    read = {}
    for key, entry in json.loads(data[8:begin]).items():
        if key == "__metadata__":
            continue
        first, last = (begin + offset for offset in entry["data_offsets"])
        tensor = torch.frombuffer(data[first:last], dtype=TYPES[entry["dtype"]]).view(entry["shape"])
        read[key] = tensor if tensor.dtype == torch.int64 else tensor.double()
    return read


class Block(nn.Module):
    """Of DeiT, and with `modulated` of DiT: then c modulates the tokens."""

    def __init__(self, attn, dim, modulated=False):
        super().__init__()
        self.attn = attn
        self.norm1, self.norm2 = (nn.LayerNorm(dim, 1e-6, elementwise_affine=not modulated) for _ in range(2))
        self.mlp = nn.ModuleDict(dict(fc1=nn.Linear(dim, 4 * dim), fc2=nn.Linear(4 * dim, dim)))
        if modulated:
            self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def forward(self, x, c=None):
        if c is None:
            x = x + self.attn(self.norm1(x))
            return x + self.mlp.fc2(functional.gelu(self.mlp.fc1(self.norm2(x))))
        h1, a1, g1, h2, a2, g2 = self.adaLN_modulation(c)[:, None].chunk(6, -1)
        x = x + g1 * self.attn(self.norm1(x) * (1 + a1) + h1)
        y = functional.gelu(self.mlp.fc1(self.norm2(x) * (1 + a2) + h2), approximate="tanh")
        return x + g2 * self.mlp.fc2(y)


class LanguageLayer(nn.Module):
    def __init__(self, dim, inner, heads, **attention):
        super().__init__()
        self.attn_norm, self.mlp_norm = (nn.RMSNorm(dim, 1e-6) for _ in range(2))
        self.attn = mhla_torch.nn.LanguageAttention(dim, heads, **attention)
        self.mlp = nn.ModuleDict({name: nn.Linear(*sizes, bias=False) for name, sizes in dict(
            gate_proj=(dim, inner), up_proj=(dim, inner), down_proj=(inner, dim)).items()})

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        f = self.mlp_norm(x)
        return x + self.mlp.down_proj(functional.silu(self.mlp.gate_proj(f)) * self.mlp.up_proj(f))


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, dim, layers, tied, **layer):
        super().__init__()
        self.model = nn.ModuleDict(dict(
            embeddings=nn.Embedding(vocabulary, dim), norm=nn.RMSNorm(dim, 1e-6),
            layers=nn.ModuleList(LanguageLayer(dim, **layer) for _ in range(layers))))
        self.lm_head = None if tied else nn.Linear(dim, vocabulary, bias=False)

    def forward(self, ids):
        x = self.model.embeddings(ids)
        for layer in self.model.layers:
            x = layer(x)
        x = self.model.norm(x)
        return x @ self.model.embeddings.weight.mT if self.lm_head is None else self.lm_head(x)


def compare(module, state, inputs, output, gradients, loss_weight, prefix="", bound=1e-11):
    """Loads a state strictly, and compares the output and every gradient, in double."""
    module.double().load_state_dict(state)
    for x in inputs:
        if x.is_floating_point():
            x.requires_grad_()
    y = module(*inputs)
    (y * loss_weight).sum().backward()
    worst = relative(y, output)
    for name, parameter in module.named_parameters():
        worst = max(worst, relative(parameter.grad, gradients[f"grad.{prefix}{name}"]))
    assert worst < bound, f"off by {worst:.1e}"
    return worst


def relative(a, b):
    return float((a - b).abs().max() / b.abs().max())


def without(state, prefix):
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def check_layer_of_deit():
    forward, state = tensors("deit", "forward"), tensors("deit", "model")
    attn = mhla_torch.nn.WindowAttention(48, 3, 16, 4)
    block = Block(attn, 48).double()
    for norm in (attn.q_norm, attn.k_norm):
        norm.eps = 2.0 ** -23  # that of float32, as the file says
    block.load_state_dict(without(state, "blocks.0."))
    off = relative(block(forward["tokens"]), forward["blocks.0.out"])
    blocks = nn.ModuleList(Block(mhla_torch.nn.WindowAttention(48, 3, 16, 4), 48) for _ in range(2)).double()
    blocks.load_state_dict(without(state, "blocks."))
    for block in blocks:
        block.attn.q_norm.eps = block.attn.k_norm.eps = 2.0 ** -23
    image = forward["image"].requires_grad_()
    x = functional.conv2d(functional.pad(image, (4, 4, 4, 4)), state["patch_embed.proj.weight"],
                          state["patch_embed.proj.bias"], stride=4)
    x = attn._blocks(x + state["pos_embed"].mT.unflatten(2, (16, 16)))
    for block in blocks:
        x = block(x)
    x = functional.layer_norm(x.mean(1), (48,), state["fc_norm.weight"], state["fc_norm.bias"], 1e-6)
    logits = functional.linear(x, state["head.weight"], state["head.bias"])
    gradients = tensors("deit", "gradients")
    (logits * gradients["loss_weight.logits"]).sum().backward()
    worst = max(relative(logits, forward["logits"]), relative(image.grad, gradients["grad.image"]), *(
        relative(p.grad, gradients[f"grad.blocks.{name}"]) for name, p in blocks.named_parameters()))
    assert off < 1e-6 and worst < 1e-11, f"{off:.1e} {worst:.1e}"
    return f"off by {worst:.1e}"


def check_layer_of_dit():
    forward, gradients = tensors("dit", "forward"), tensors("dit", "gradients_block")
    attn = mhla_torch.nn.WindowAttention(32, 2, 8, 4, qkv_bias=True, qk_norm=False, lepe_kernel=3)
    worst = compare(Block(attn, 32, modulated=True), without(tensors("dit", "model"), "blocks.0."),
                    [forward["tokens"], forward["c"]], gradients["blocks.0.out"] if "blocks.0.out" in gradients
                    else forward["blocks.0.out"], gradients, gradients["loss_weight.blocks.0.out"], "blocks.0.",
                    bound=1e-6 if "blocks.0.out" not in gradients else 1e-11)
    return f"off by {worst:.1e}"


def check_layers_of_wan():
    worst = 0.0
    uni, small = (32, 2, (3, 4, 6), (3, 2, 2)), (24, 2, (2, 4, 4), (2, 2, 2))
    for model, sizes, options in (
            ("wan", uni, dict(normalize_out=False)),
            ("wan_gated", uni, dict(normalize_out=False, gate=True, lepe=True)),
            ("wan_gated_mhla", small, dict(norm="tokens", gate=True)),
            ("wan_mhla_lepe", small, dict(normalize_out=False, norm=None, lepe=True, out_rmsnorm=True))):
        forward, gradients = tensors(model, "forward"), tensors(model, "gradients")
        layer = mhla_torch.nn.VideoAttention(*sizes, **options)
        worst = max(worst, compare(layer, tensors(model, "model"), [forward["x"]], forward["output"], gradients,
                                   gradients["loss_weight.output"]))
    return f"off by {worst:.1e}"


def check_layers_of_language_models():
    worst = 0.0
    for name, model in dict(
            lm=LanguageModel(47, 40, 2, True, inner=80, heads=2),
            lm_conv=LanguageModel(29, 32, 1, False, inner=48, heads=4, kv_heads=2, expand_k=1.0, conv_size=4),
            **{f"lm_{kind}": LanguageModel(7, 8, 1, False, inner=8, heads=2, kv_heads=1, expand_k=1.0, expand_v=1.5,
                                           gate=kind == "elu", feature_map=kind)
               for kind in ("dpfp", "elementwise_product", "elu", "hedgehog", "identity", "t2r")},
    ).items():
        forward, gradients = tensors(name, "forward"), tensors(name, "gradients")
        worst = max(worst, compare(model, tensors(name, "model"), [forward["input_ids"]], forward["logits"],
                                   gradients, gradients["loss_weight.logits"]))
    return f"off by {worst:.1e}"


def by_formula():
    return mhla_torch.eager.layers_by(formula)


def layers():
    """Each kind of layer, and what goes in."""
    torch.manual_seed(0)
    return {
        "DeiT": (mhla_torch.nn.WindowAttention(48, 3, 8, 4), torch.randn(2, 64, 48)),
        "DiT": (mhla_torch.nn.WindowAttention(32, 2, 8, 2, qkv_bias=True, qk_norm=False, lepe_kernel=3),
                torch.randn(2, 64, 32)),
        "Wan": (mhla_torch.nn.VideoAttention(48, 2, (3, 4, 6), (3, 2, 2), normalize_out=False, gate=True, lepe=True),
                torch.randn(2, 72, 48)),
        "LM": (mhla_torch.nn.LanguageAttention(64, 4, kv_heads=2, block=16, conv_size=4, feature_epsilon=1e-6),
               torch.randn(2, 72, 64)),
    }


def trained(layer, x, context, steps=50):
    """Losses of AdamW on a target that the layer can learn in part."""
    torch.manual_seed(1)
    target = functional.gelu(x.roll(1, dims=-1)) @ torch.randn(x.shape[-1], x.shape[-1]) / x.shape[-1] ** 0.5
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    losses = []
    with context():
        for _ in range(steps):
            loss = functional.mse_loss(layer(x), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            layer.project()
            losses.append(loss.item())
    return torch.tensor(losses)


def check_swapped_layers_train_the_same():
    """50 steps: losses differ no more than ten times as much as after a change of 1e-7 in the weights."""
    said = []
    for name in layers():
        runs = []
        for change, context in ((0, by_formula), (1e-7, by_formula), (0, contextlib.nullcontext)):
            layer, x = layers()[name]
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.mul_(1 + change)
            runs.append(trained(layer, x, context))
        exact, changed, ours = runs
        spread = max(float((changed - exact).abs().max()), 1e-7 * float(exact[0]))
        off = float((ours - exact).abs().max())
        assert off < 10 * spread, f"{name}: {off:.1e}, spread {spread:.1e}"
        assert exact[-1] < 0.9 * exact[0], name
        said.append(f"{name} {off / spread:.1f}")
    return "times the spread: " + ", ".join(said)


def check_first_gradients():
    said = []
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        for name, (layer, x) in layers().items():
            layer, x = layer.to(dtype), x.to(dtype)
            gradients = []
            for context in (by_formula, contextlib.nullcontext):
                layer.zero_grad()
                with context():
                    layer(x).square().sum().backward()
                gradients.append([p.grad.clone() for p in layer.parameters()])
            off = max(map(relative, *reversed(gradients)))
            assert off < bound, f"{name}, {dtype}: {off:.1e}"
            said.append(off)
    return f"off by {max(said[:4]):.1e} in double, {max(said[4:]):.1e} in float"


def check_autocast_of_layers():
    """In 16 bits, errors are at most twice those of the formula in the same."""
    for half in (torch.bfloat16, torch.float16):
        for name, (layer, x) in layers().items():
            exact = layer(x)
            with torch.autocast("cpu", half):
                ours = relative(layer(x).float(), exact)
                with by_formula():
                    theirs = relative(layer(x).float(), exact)
            assert ours < 2 * theirs, f"{name}, {half}: {ours:.1e}, the formula {theirs:.1e}"


def check_layers_compile():
    for name, (layer, x) in layers().items():
        compiled = torch.compile(layer, fullgraph=True)
        assert relative(compiled(x), layer(x)) < 1e-5, name


def check_like():
    """A layer takes the place of one with the same state."""
    deit, x = layers()["DeiT"]
    wan, video = layers()["Wan"]
    lm, text = layers()["LM"]
    deit.norm.eps, deit.q_norm.eps, deit.to_out[1].p = 1e-3, 1e-2, 0.1
    swapped = mhla_torch.nn.WindowAttention.like(deit.eval(), heads=3, grid=8)
    assert torch.equal(swapped(x), deit(x)) and not swapped.training and swapped.to_out[1].p == 0.1
    assert torch.equal(mhla_torch.nn.VideoAttention.like(wan, 2, (3, 4, 6), (3, 2, 2))(video), wan(video))
    assert torch.equal(mhla_torch.nn.LanguageAttention.like(lm, 4, block=16, feature_epsilon=1e-6)(text), lm(text))


def check_generation():
    """A stream gives what the layer gives over the whole sequence, whatever pieces it comes in."""
    worst = 0.0
    for conv_size, kv_heads, feature_map in ((0, 4, "relu"), (4, 2, "relu"), (0, 4, "hedgehog")):
        torch.manual_seed(0)
        layer = mhla_torch.nn.LanguageAttention(64, 4, kv_heads=kv_heads, block=16, conv_size=conv_size,
                                                feature_map=feature_map, feature_epsilon=1e-6)
        x = torch.randn(3, 72, 64)
        stream = layer.stream(batch=3)
        pieces = [stream(x[:, a:b]) for a, b in ((0, 40), (40, 41), (41, 42), (42, 43), (43, 72))]
        worst = max(worst, relative(torch.cat(pieces, 1), layer(x)))
        assert stream.decoder.position(1) == 72 and stream.decoder.capacity == 32 * 16
    assert worst < 1e-5
    return f"off by {worst:.1e}"


def check_eager():
    """What the operator is timed beside computes the same."""
    for name, (layer, x) in layers().items():
        with mhla_torch.eager.layers_by(mhla_torch.eager.attention):
            theirs = layer(x)
        assert relative(theirs, layer(x)) < 1e-5, name


def check_two_passes_before_a_backward():
    for name, (layer, x) in layers().items():
        (layer(x).sum() + layer(2 * x).sum()).backward()
        assert all(p.grad is not None for p in layer.parameters()), name
